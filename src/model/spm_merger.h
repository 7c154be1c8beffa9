// Merges by score: neighbours join while the joined bytes are a piece, the best score first, the
// leftmost of equals. This is how SentencePiece's byte-pair models encode.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/model/vocabulary.h"
#include "model/piece_table.h"

namespace kvik::internal {

// The bytes of all tokens in one block, and those that merges may give found by their bytes.
class SpmPieces {
 public:
  // What merges may do with a piece.
  enum class Merging : uint8_t {
    never,
    passing,  // may be a step on the way to another piece; if it is left over, it falls apart again
    yes,
  };

  SpmPieces(size_t max_pieces, size_t total_bytes);

  // Adds the piece with the next id, counting from 0.
  // Requires: no other piece that takes part in merges has these bytes; the two limits.
  void add(std::string_view bytes, float score, Merging merging);

  // Requires, here and below: an id that has been added.
  std::string_view bytes(TokenId id) const {
    const auto index = static_cast<size_t>(id);
    return std::string_view(bytes_).substr(begins_[index], begins_[index + 1] - begins_[index]);
  }
  float score(TokenId id) const { return scores_[static_cast<size_t>(id)]; }
  bool passing(TokenId id) const { return merging_[static_cast<size_t>(id)] == Merging::passing; }
  // The piece that takes part in merges and is exactly these bytes.
  std::optional<TokenId> find(std::string_view bytes) const;

  // False if no piece that takes part in merges has these two bytes side by side: a text can be cut
  // between them, its parts merge as the whole would.
  bool side_by_side(char left, char right) const { return neighbours_[pair_index(left, right)]; }

 private:
  static size_t pair_index(char left, char right) {
    return size_t{static_cast<uint8_t>(left)} << 8 | static_cast<uint8_t>(right);
  }

  std::string bytes_;
  std::vector<size_t> begins_{0};  // in bytes_; the last is the end
  std::vector<float> scores_;
  std::vector<Merging> merging_;
  PieceTable table_;
  std::bitset<size_t{1} << 16> neighbours_;
  size_t longest_ = 0;  // bytes, of those that take part in merges
};

// Merges one text after another; keeps its working memory between them. One thread at a time.
// A text of n characters takes O(n log n).
class SpmMerger {
 public:
  struct Part {
    uint32_t begin, length;     // in the text
    std::optional<TokenId> id;  // unset: a character that is no piece
  };

  // The pieces must outlive the merger.
  explicit SpmMerger(const SpmPieces& pieces) : pieces_(&pieces) {}

  // What `text` falls into, in order; valid until the next call. What is not UTF-8 starts as single
  // bytes. Requires: less than 2 GiB.
  const std::vector<Part>& merge(std::string_view text);

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // A character, or two nodes that were merged. The first of each live node's characters is its
  // place in symbols_.
  struct Node {
    uint32_t begin, length;
    std::optional<TokenId> id;
    uint32_t left = kNone, right = kNone;  // nodes
  };
  struct Symbol {
    uint32_t node;  // kNone: merged into its left neighbour
    uint32_t previous, next;
  };
  struct Candidate {
    float score;
    uint32_t left;    // index of the left symbol
    uint32_t length;  // bytes of both: tells whether either has grown since
    TokenId id;
  };
  static bool worse(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  }

  void split(std::string_view text);
  void offer(std::string_view text, uint32_t left);
  void join(const Candidate& candidate);
  void emit(uint32_t node);

  const SpmPieces* pieces_;
  std::vector<Node> nodes_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<Part> parts_;
};

}  // namespace kvik::internal
