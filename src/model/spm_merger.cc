#include "model/spm_merger.h"

#include <algorithm>

#include "model/unicode.h"

namespace kvik::internal {

SpmPieces::SpmPieces(size_t max_pieces, size_t total_bytes) : table_(max_pieces) {
  bytes_.reserve(total_bytes);
  begins_.reserve(max_pieces + 1);
  scores_.reserve(max_pieces);
  merging_.reserve(max_pieces);
}

void SpmPieces::add(std::string_view bytes, float score, Merging merging) {
  const auto id = static_cast<TokenId>(scores_.size());
  bytes_ += bytes;
  begins_.push_back(bytes_.size());
  scores_.push_back(score);
  merging_.push_back(merging);
  if (merging == Merging::never || bytes.empty()) return;
  table_.insert(bytes, id, [this](TokenId other) { return this->bytes(other); });
  longest_ = std::max(longest_, bytes.size());
  for (size_t i = 1; i < bytes.size(); ++i) neighbours_.set(pair_index(bytes[i - 1], bytes[i]));
}

std::optional<TokenId> SpmPieces::find(std::string_view bytes) const {
  if (bytes.size() > longest_) return std::nullopt;
  return table_.find(bytes, [this](TokenId id) { return this->bytes(id); });
}

void SpmMerger::split(std::string_view text) {
  nodes_.clear();
  symbols_.clear();
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    const size_t length = c.valid ? c.length : 1;
    const auto index = static_cast<uint32_t>(symbols_.size());
    nodes_.push_back({static_cast<uint32_t>(pos), static_cast<uint32_t>(length),
                      pieces_->find(text.substr(pos, length)), kNone, kNone});
    pos += length;
    symbols_.push_back({index, index - 1, pos < text.size() ? index + 1 : kNone});
  }
}

void SpmMerger::offer(std::string_view text, uint32_t left) {
  if (left == kNone || symbols_[left].next == kNone) return;
  const Node& node = nodes_[symbols_[left].node];
  const uint32_t length = node.length + nodes_[symbols_[symbols_[left].next].node].length;
  const std::optional<TokenId> id = pieces_->find(text.substr(node.begin, length));
  if (!id) return;
  heap_.push_back({pieces_->score(*id), left, length, *id});
  std::push_heap(heap_.begin(), heap_.end(), worse);
}

void SpmMerger::join(const Candidate& candidate) {
  Symbol& left = symbols_[candidate.left];
  Symbol& right = symbols_[left.next];
  nodes_.push_back(
      {nodes_[left.node].begin, candidate.length, candidate.id, left.node, right.node});
  left.node = static_cast<uint32_t>(nodes_.size() - 1);
  right.node = kNone;
  left.next = right.next;
  if (right.next != kNone) symbols_[right.next].previous = candidate.left;
}

// The depth is at most the length of the longest piece.
void SpmMerger::emit(uint32_t index) {
  const Node& node = nodes_[index];
  if (node.id && !pieces_->passing(*node.id)) {
    parts_.push_back({node.begin, node.length, node.id});
  } else if (node.left == kNone) {
    parts_.push_back({node.begin, node.length, std::nullopt});
  } else {
    emit(node.left);
    emit(node.right);
  }
}

const std::vector<SpmMerger::Part>& SpmMerger::merge(std::string_view text) {
  parts_.clear();
  if (text.empty()) return parts_;
  split(text);
  heap_.clear();
  for (uint32_t i = 0; i < symbols_.size(); ++i) offer(text, i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), worse);
    const Candidate top = heap_.back();
    heap_.pop_back();
    // A candidate outlives its pair when either side has merged with something else since: then the
    // left one is gone, or the two are longer together. Symbols never shrink.
    const Symbol& left = symbols_[top.left];
    if (left.node == kNone || left.next == kNone) continue;
    const uint32_t length = nodes_[left.node].length + nodes_[symbols_[left.next].node].length;
    if (length != top.length) continue;
    join(top);
    offer(text, symbols_[top.left].previous);
    offer(text, top.left);
  }
  for (uint32_t i = 0; i != kNone; i = symbols_[i].next) emit(symbols_[i].node);
  return parts_;
}

}  // namespace kvik::internal
