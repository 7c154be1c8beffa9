#include "model/special_matcher.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvik::internal {
namespace {

bool inside(std::span<const SpecialMatcher::Range> ranges, size_t begin, size_t end) {
  const auto next = std::upper_bound(
      ranges.begin(), ranges.end(), begin,
      [](size_t pos, const SpecialMatcher::Range& range) { return pos < range.begin; });
  return next != ranges.begin() && end <= (next - 1)->end;
}

}  // namespace

SpecialMatcher::SpecialMatcher(std::vector<Special> specials) : specials_(std::move(specials)) {
  std::sort(specials_.begin(), specials_.end(), [](const Special& a, const Special& b) {
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
  });
  for (const Special& special : specials_) starts_[static_cast<uint8_t>(special.text[0])] = true;
  build_trie();
}

void SpecialMatcher::build_trie() {
  std::vector<uint32_t> by_text(specials_.size());
  std::iota(by_text.begin(), by_text.end(), uint32_t{0});
  std::sort(by_text.begin(), by_text.end(),
            [this](uint32_t a, uint32_t b) { return specials_[a].text < specials_[b].text; });
  // The texts below a node are neighbours in by_text and share `depth` bytes.
  struct Below {
    size_t begin, end, depth;
  };
  std::vector<Below> below = {{0, by_text.size(), 0}};
  nodes_ = {Node()};
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = below[node];
    const auto text = [&](size_t i) -> const std::string& { return specials_[by_text[i]].text; };
    if (begin < end && text(begin).size() == depth) nodes_[node].special = by_text[begin++];
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      size_t next = begin;
      while (next < end && text(next)[depth] == text(begin)[depth]) ++next;
      nodes_.push_back({.byte = static_cast<uint8_t>(text(begin)[depth])});
      below.push_back({begin, next, depth + 1});
      ++nodes_[node].num_children;
      begin = next;
    }
  }
}

uint32_t SpecialMatcher::child(uint32_t node, uint8_t byte) const {
  const auto begin = nodes_.begin() + nodes_[node].first_child;
  const auto end = begin + nodes_[node].num_children;
  const auto it = std::lower_bound(begin, end, byte,
                                   [](const Node& n, uint8_t wanted) { return n.byte < wanted; });
  return it == end || it->byte != byte ? kNone : static_cast<uint32_t>(it - nodes_.begin());
}

uint32_t SpecialMatcher::first_at(std::string_view text, size_t begin, size_t limit,
                                  std::span<const Range> trusted) const {
  uint32_t found = kNone;
  uint32_t node = 0;
  for (size_t pos = begin; pos < limit; ++pos) {
    node = child(node, static_cast<uint8_t>(text[pos]));
    if (node == kNone) break;
    const uint32_t special = nodes_[node].special;
    if (special == kNone) continue;
    // Longer ones come first in order, so the last that is found is the one.
    if (!specials_[special].trusted_only || inside(trusted, begin, pos + 1)) found = special;
  }
  return found;
}

std::vector<SpecialMatcher::Fragment> SpecialMatcher::split(std::string_view text,
                                                            std::span<const Range> trusted) const {
  std::vector<Candidate> candidates;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    if (!starts_[static_cast<uint8_t>(text[pos])]) continue;
    const uint32_t special = first_at(text, pos, text.size(), trusted);
    if (special != kNone) candidates.push_back({special, static_cast<uint32_t>(pos)});
  }
  std::make_heap(candidates.begin(), candidates.end(), later);

  std::vector<Fragment> tokens;
  std::vector<bool> taken(candidates.empty() ? 0 : text.size());
  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), later);
    Candidate& top = candidates.back();
    const Special& special = specials_[top.special];
    const size_t end = top.begin + special.text.size();
    size_t free_end = top.begin;
    while (free_end < end && !taken[free_end]) ++free_end;
    if (free_end < end) {
      // Earlier ones have left room for a shorter one at most; that comes later in order.
      top.special = first_at(text, top.begin, free_end, trusted);
      if (top.special != kNone) {
        std::push_heap(candidates.begin(), candidates.end(), later);
        continue;
      }
    } else {
      std::fill_n(taken.begin() + static_cast<ptrdiff_t>(top.begin), special.text.size(), true);
      tokens.push_back({top.begin, end, true, special.id});
    }
    candidates.pop_back();
  }

  std::sort(tokens.begin(), tokens.end(),
            [](const Fragment& a, const Fragment& b) { return a.begin < b.begin; });
  std::vector<Fragment> fragments;
  size_t done = 0;
  for (const Fragment& token : tokens) {
    if (token.begin > done) fragments.push_back({done, token.begin, false, 0});
    fragments.push_back(token);
    done = token.end;
  }
  if (done < text.size()) fragments.push_back({done, text.size(), false, 0});
  return fragments;
}

}  // namespace kvik::internal
