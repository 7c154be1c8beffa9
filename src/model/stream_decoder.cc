#include "kvik/model/stream_decoder.h"

#include <utility>

#include "model/unicode.h"

namespace kvik {

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t pos = 0; pos < bytes.size();) {
    const internal::Utf8Char c = internal::decode_utf8(bytes, pos);
    if (c.valid) {
      text.append(bytes.substr(pos, c.length));
    } else {
      text.append("\xEF\xBF\xBD");
    }
    pos += c.length;
  }
  return text;
}

Result<std::string> StreamDecoder::push(TokenId id) {
  const Result<std::string> bytes = tokenizer_->decode({&id, 1}, skip_special_);
  if (!bytes.ok()) return bytes.status();
  return push_bytes(bytes.value());
}

std::string StreamDecoder::push_bytes(std::string_view bytes) {
  pending_.append(bytes);
  const size_t complete = pending_.size() - internal::incomplete_utf8_tail(pending_);
  std::string text = to_valid_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string StreamDecoder::flush() { return to_valid_utf8(std::exchange(pending_, {})); }

}  // namespace kvik
