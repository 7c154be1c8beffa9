// A string that remembers which of its bytes the template wrote itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvik::jinja {

class Text {
 public:
  struct Run {
    size_t end;
    bool trusted;
  };

  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)) {
    if (!bytes_.empty()) runs_.push_back({bytes_.size(), trusted});
  }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Escaped for HTML already, as Markup of Python.
  bool markup() const { return markup_; }
  Text with_markup(bool markup) && {
    markup_ = markup;
    return std::move(*this);
  }
  // Cover the text in order; neighbours differ.
  const std::vector<Run>& runs() const { return runs_; }
  // Memory and copying in bytes, roughly.
  size_t cost() const { return bytes_.size() + runs_.size() * sizeof(Run); }

  void append(std::string_view bytes, bool trusted);
  void append(const Text& text) { append(text, 0, text.size()); }
  // Requires: begin <= end <= text.size(); text is not *this.
  void append(const Text& text, size_t begin, size_t end);
  Text substr(size_t begin, size_t end) const {
    Text part;
    part.append(*this, begin, end);
    return part;
  }
  // Requires: pos < size().
  bool trusted_at(size_t pos) const;

 private:
  size_t run_at(size_t pos) const;

  std::string bytes_;
  std::vector<Run> runs_;
  bool markup_ = false;
};

// Like std::string_view::find, in linear time for any needle.
size_t find_bytes(std::string_view text, std::string_view needle, size_t from);

}  // namespace kvik::jinja
