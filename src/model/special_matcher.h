// Finds tokens that are matched as whole strings, before anything is merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
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

  explicit SpecialMatcher(std::vector<Special> specials);

  // Cuts `text` into fragments that cover it. `trusted`: disjoint, ascending, not touching.
  std::vector<Fragment> split(std::string_view text, std::span<const Range> trusted) const;

 private:
  std::vector<bool> occurring(std::string_view text) const;
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Special> specials_;  // in order of precedence
  // A trie over the texts: node << 8 | byte -> node. Node 0 is the root.
  std::unordered_map<uint64_t, uint32_t> children_;
  std::vector<int32_t> special_at_node_;  // index into specials_, or kNotEnd
  bool starts_[256] = {};
};

}  // namespace kvik::internal
