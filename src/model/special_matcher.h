// Finds tokens that are matched as whole strings, before anything is merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/model/vocabulary.h"

namespace kvik::internal {

// Longer tokens win over shorter ones wherever they stand, then lower ids, then the occurrence
// further left: every occurrence of the first token in that order is taken, then every one of the
// second in what is left, and so on. (So does llama.cpp.)
class SpecialMatcher {
 public:
  struct Special {
    std::string text;  // not empty
    TokenId id;
    bool trusted_only;  // matches only inside a trusted range
  };
  struct Range {
    size_t begin, end;
  };
  // A stretch of the text: a token or plain text.
  struct Fragment {
    size_t begin, end;
    bool is_token;
    TokenId id;  // meaningless unless is_token
  };

  // Requires: no two with the same text.
  explicit SpecialMatcher(std::vector<Special> specials);

  // Cuts `text` into fragments that cover it. `trusted`: disjoint, ascending, not touching.
  // A text of n bytes takes O(n (l + log n)), with l the length of the longest token.
  // Requires: less than 2 GiB.
  std::vector<Fragment> split(std::string_view text, std::span<const Range> trusted) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Of a trie over the texts. Node 0 is the root; children lie side by side, in order of their
  // byte.
  struct Node {
    uint32_t first_child = 0, num_children = 0;
    uint32_t special = kNone;  // index into specials_ of the token that ends here
    uint8_t byte = 0;          // that leads here
  };
  // The first special in order that starts at `begin`.
  struct Candidate {
    uint32_t special, begin;
  };
  static bool later(const Candidate& a, const Candidate& b) {
    return a.special != b.special ? a.special > b.special : a.begin > b.begin;
  }

  void build_trie();
  uint32_t child(uint32_t node, uint8_t byte) const;
  // The first special in order that is text[begin, end) for some end up to `limit`; kNone if there
  // is none.
  uint32_t first_at(std::string_view text, size_t begin, size_t limit,
                    std::span<const Range> trusted) const;

  std::vector<Special> specials_;  // in order of precedence
  std::vector<Node> nodes_;
  bool starts_[256] = {};
};

}  // namespace kvik::internal
