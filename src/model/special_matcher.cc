#include "model/special_matcher.h"

#include <algorithm>
#include <utility>

namespace kvik::internal {
namespace {

constexpr uint32_t kNoNode = 0;  // the root is nobody's child
constexpr int32_t kNotEnd = -1;

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
  special_at_node_.push_back(kNotEnd);
  for (size_t i = 0; i < specials_.size(); ++i) {
    uint32_t node = 0;
    for (const char c : specials_[i].text) {
      const uint64_t key = uint64_t{node} << 8 | static_cast<uint8_t>(c);
      const auto [it, added] =
          children_.try_emplace(key, static_cast<uint32_t>(special_at_node_.size()));
      if (added) special_at_node_.push_back(kNotEnd);
      node = it->second;
    }
    if (special_at_node_[node] == kNotEnd) special_at_node_[node] = static_cast<int32_t>(i);
    starts_[static_cast<uint8_t>(specials_[i].text[0])] = true;
  }
}

uint32_t SpecialMatcher::child(uint32_t node, uint8_t byte) const {
  const auto it = children_.find(uint64_t{node} << 8 | byte);
  return it == children_.end() ? kNoNode : it->second;
}

std::vector<bool> SpecialMatcher::occurring(std::string_view text) const {
  std::vector<bool> occurs(specials_.size(), false);
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    uint32_t node = 0;
    for (size_t pos = begin; pos < text.size(); ++pos) {
      node = child(node, static_cast<uint8_t>(text[pos]));
      if (node == kNoNode) break;
      if (special_at_node_[node] != kNotEnd) {
        occurs[static_cast<size_t>(special_at_node_[node])] = true;
      }
    }
  }
  return occurs;
}

std::vector<SpecialMatcher::Fragment> SpecialMatcher::split(std::string_view text,
                                                            std::span<const Range> trusted) const {
  std::vector<Fragment> fragments;
  if (text.empty()) return fragments;
  fragments.push_back({0, text.size(), false, 0});
  if (specials_.empty()) return fragments;

  // One pass finds which tokens occur at all, so that the passes below are few.
  const std::vector<bool> occurs = occurring(text);
  std::vector<Fragment> refined;
  for (size_t i = 0; i < specials_.size(); ++i) {
    const Special& special = specials_[i];
    if (!occurs[i] || (special.trusted_only && trusted.empty())) continue;
    refined.clear();
    for (const Fragment& fragment : fragments) {
      size_t plain = fragment.begin;
      size_t from = fragment.begin;
      const std::string_view part = text.substr(0, fragment.end);
      while (!fragment.is_token) {
        const size_t found = part.find(special.text, from);
        if (found == std::string_view::npos) break;
        const size_t end = found + special.text.size();
        if (special.trusted_only && !inside(trusted, found, end)) {
          from = found + 1;
          continue;
        }
        if (found > plain) refined.push_back({plain, found, false, 0});
        refined.push_back({found, end, true, special.id});
        plain = from = end;
      }
      if (fragment.is_token) {
        refined.push_back(fragment);
      } else if (plain < fragment.end) {
        refined.push_back({plain, fragment.end, false, 0});
      }
    }
    fragments.swap(refined);
  }
  return fragments;
}

}  // namespace kvik::internal
