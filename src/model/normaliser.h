// Unicode normalisation of a text before it is cut into tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvik::internal {

// A text in NFC, and where it comes from.
class NfcText {
 public:
  // Bytes that are not UTF-8 stay as they are, and nothing composes across them. O(n log n).
  explicit NfcText(std::string_view text);

  std::string_view view() const { return is_changed_ ? changed_ : original_; }
  // Where in the text given the byte at `offset` of view() stands; inside a changed stretch, where
  // that begins. Requires: offset <= view().size().
  size_t original_offset(size_t offset) const;

 private:
  // From `here` on, view() runs along the original from `there`.
  struct Anchor {
    size_t here, there;
    bool is_changed;  // a stretch without a byte-to-byte relation
  };
  void add_stretch(std::string_view stretch, size_t there);

  std::string_view original_;
  std::string changed_;
  std::vector<Anchor> anchors_;
  bool is_changed_ = false;
};

// The version of Unicode whose compositions are made, for example "15.0.0".
std::string_view nfc_unicode_version();

}  // namespace kvik::internal
