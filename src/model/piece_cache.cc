#include "model/piece_cache.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace kvik::internal {
namespace {

constexpr size_t kMaxEntries = size_t{1} << 14;
// Longer pieces hardly come twice.
constexpr size_t kMaxPieceBytes = 64;

}  // namespace

PieceCache::PieceCache(size_t text_bytes)
    : entries_(std::min(std::bit_ceil(text_bytes / 8 + 1), kMaxEntries)) {}

size_t PieceCache::index_of(std::string_view piece) const {
  return std::hash<std::string_view>()(piece) & (entries_.size() - 1);
}

bool PieceCache::append_known(std::string_view text, size_t begin, size_t end,
                              std::vector<TokenId>& ids) const {
  const std::string_view piece = text.substr(begin, end - begin);
  if (piece.size() > kMaxPieceBytes) return false;
  const Entry& entry = entries_[index_of(piece)];
  if (entry.length != piece.size() || text.substr(entry.begin, entry.length) != piece) return false;
  for (uint32_t i = 0; i < entry.ids_count; ++i) ids.push_back(ids[entry.ids_begin + i]);
  return true;
}

void PieceCache::remember(std::string_view text, size_t begin, size_t end, size_t ids_begin,
                          const std::vector<TokenId>& ids) {
  const std::string_view piece = text.substr(begin, end - begin);
  if (piece.size() > kMaxPieceBytes) return;
  entries_[index_of(piece)] = {static_cast<uint32_t>(begin), static_cast<uint32_t>(piece.size()),
                               static_cast<uint32_t>(ids_begin),
                               static_cast<uint32_t>(ids.size() - ids_begin)};
}

}  // namespace kvik::internal
