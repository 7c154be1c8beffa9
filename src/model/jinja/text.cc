#include "model/jinja/text.h"

#include <algorithm>
#include <cstring>

namespace kvik::jinja {

size_t Text::run_at(size_t pos) const {
  const auto it = std::upper_bound(runs_.begin(), runs_.end(), pos,
                                   [](size_t p, const Run& run) { return p < run.end; });
  return static_cast<size_t>(it - runs_.begin());
}

bool Text::trusted_at(size_t pos) const { return runs_[run_at(pos)].trusted; }

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), trusted});
  }
}

void Text::append(const Text& text, size_t begin, size_t end) {
  for (size_t run = text.run_at(begin); begin < end; ++run) {
    const size_t run_end = std::min(end, text.runs_[run].end);
    append(std::string_view(text.bytes_).substr(begin, run_end - begin), text.runs_[run].trusted);
    begin = run_end;
  }
}

size_t find_bytes(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // glibc's memmem is linear for any input; string_view::find is not.
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace kvik::jinja
