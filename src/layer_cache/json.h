// Writing flat JSON objects.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kvik::internal {

// {"key": value, ...} in the order of the calls. Keys and texts may hold any bytes.
class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view text) { return raw(key, quoted(text)); }
  JsonObject& add(std::string_view key, const char* text) {
    return add(key, std::string_view(text));
  }
  JsonObject& add(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonObject& add(std::string_view key, int64_t value) { return raw(key, std::to_string(value)); }
  JsonObject& add(std::string_view key, int value) { return raw(key, std::to_string(value)); }
  JsonObject& add(std::string_view key, double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    return raw(key, text);
  }
  JsonObject& add(std::string_view key, const std::map<std::string, int64_t>& counts) {
    JsonObject inner;
    for (const auto& [name, count] : counts) inner.add(name, count);
    return raw(key, inner.text());
  }
  template <class T>
  JsonObject& add(std::string_view key, const std::optional<T>& value) {
    return value ? add(key, *value) : raw(key, "null");
  }
  JsonObject& raw(std::string_view key, const std::string& json) {
    text_ += (text_.empty() ? "" : ", ") + quoted(key) + ": " + json;
    return *this;
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  static std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
        out += escape;
      } else {
        out += c;
      }
    }
    return out + "\"";
  }

  std::string text_;
};

}  // namespace kvik::internal
