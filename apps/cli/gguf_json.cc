#include "gguf_json.h"

#include <charconv>
#include <cmath>
#include <cstring>

#include "cli.h"
#include "kvik/model/stream_decoder.h"

namespace kvik::cli {
namespace {

using nlohmann::ordered_json;

template <typename Number>
Number load(const std::byte* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

// Through decimal digits: a float widened to double would show digits that it does not have.
template <typename Real>
ordered_json real_json(Real value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char digits[64];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
  double shown = 0;
  std::from_chars(std::begin(digits), end, shown);
  return shown;
}

// The element at `bytes`, which move past it. The file has been checked.
ordered_json next_json(GgufType type, const std::byte*& bytes) {
  const auto take = [&]<typename T>(T) {
    const T value = load<T>(bytes);
    bytes += sizeof value;
    return value;
  };
  switch (type) {
    case GgufType::u8:
      return take(uint8_t{});
    case GgufType::i8:
      return take(int8_t{});
    case GgufType::u16:
      return take(uint16_t{});
    case GgufType::i16:
      return take(int16_t{});
    case GgufType::u32:
      return take(uint32_t{});
    case GgufType::i32:
      return take(int32_t{});
    case GgufType::u64:
      return take(uint64_t{});
    case GgufType::i64:
      return take(int64_t{});
    case GgufType::f32:
      return real_json(take(float{}));
    case GgufType::f64:
      return real_json(take(double{}));
    case GgufType::boolean:
      return take(uint8_t{}) != 0;
    case GgufType::string: {
      const auto size = static_cast<size_t>(take(uint64_t{}));
      const std::string_view text(reinterpret_cast<const char*>(bytes), size);
      bytes += size;
      return text_json(text);
    }
    case GgufType::array:
      break;
  }
  return nullptr;
}

}  // namespace

ordered_json text_json(std::string_view text) {
  if (to_valid_utf8(text) == text) return std::string(text);
  std::string digits;
  for (const char c : text) digits += format("%02x", static_cast<unsigned char>(c));
  return {{"not_utf8", digits}};
}

ordered_json value_json(const GgufValue& value, int64_t max_elements) {
  const std::byte* bytes = value.bytes.data();
  if (!value.is_array) return next_json(value.type, bytes);
  if (value.count > max_elements) {
    return {{"array_of", gguf_type_name(value.type)}, {"count", value.count}};
  }
  ordered_json list = ordered_json::array();
  for (int64_t i = 0; i < value.count; ++i) list.push_back(next_json(value.type, bytes));
  return list;
}

}  // namespace kvik::cli
