// Finds a token by the bytes of a string of its own.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "kvik/model/vocabulary.h"

namespace kvik::internal {

// Open addressing, at most two thirds full. The strings live elsewhere: `string_of(id)` gives the
// one that an id was inserted with.
class PieceTable {
 public:
  // Requires: max_entries inserts at most.
  explicit PieceTable(size_t max_entries)
      : slots_(std::bit_ceil(max_entries + max_entries / 2 + 1)) {}

  // The first insert of a string wins; the id that it has then.
  template <class StringOf>
  TokenId insert(std::string_view string, TokenId id, const StringOf& string_of) {
    const uint32_t hash = hash_of(string);
    Slot& slot = slots_[slot_of(string, hash, string_of)];
    if (slot.id == kEmpty) slot = {hash, id};
    return slot.id;
  }

  template <class StringOf>
  std::optional<TokenId> find(std::string_view string, const StringOf& string_of) const {
    const TokenId id = slots_[slot_of(string, hash_of(string), string_of)].id;
    if (id == kEmpty) return std::nullopt;
    return id;
  }

 private:
  static constexpr TokenId kEmpty = -1;
  struct Slot {
    uint32_t hash = 0;
    TokenId id = kEmpty;
  };

  static uint32_t hash_of(std::string_view string) {
    const uint64_t hash = std::hash<std::string_view>()(string);
    return static_cast<uint32_t>(hash ^ hash >> 32);
  }

  template <class StringOf>
  size_t slot_of(std::string_view string, uint32_t hash, const StringOf& string_of) const {
    size_t index = hash & (slots_.size() - 1);
    while (slots_[index].id != kEmpty) {
      const Slot& slot = slots_[index];
      if (slot.hash == hash && string_of(slot.id) == string) break;
      index = (index + 1) & (slots_.size() - 1);
    }
    return index;
  }

  std::vector<Slot> slots_;
};

}  // namespace kvik::internal
