// What the pieces of one text became: most words of a long text come again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvik/model/vocabulary.h"

namespace kvik::internal {

// Remembers places, not copies: a piece by where it stands in the text, its ids by where they stand
// in the ids found so far. Both must stay as they are but may grow. One thread at a time.
class PieceCache {
 public:
  // `text_bytes`: about how long the text is.
  explicit PieceCache(size_t text_bytes);

  // If text[begin, end) has been remembered, appends its ids once more.
  bool append_known(std::string_view text, size_t begin, size_t end,
                    std::vector<TokenId>& ids) const;
  // text[begin, end) gave the ids from ids_begin on.
  void remember(std::string_view text, size_t begin, size_t end, size_t ids_begin,
                const std::vector<TokenId>& ids);

 private:
  struct Entry {
    uint32_t begin = 0, length = 0;  // in the text; length 0: nothing here
    uint32_t ids_begin = 0, ids_count = 0;
  };
  size_t index_of(std::string_view piece) const;

  std::vector<Entry> entries_;  // direct-mapped by hash
};

}  // namespace kvik::internal
