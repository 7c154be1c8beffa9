// JSON as json.dumps of Python writes it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/numbers.h"
#include "model/jinja/strings.h"
#include "model/unicode.h"

namespace kvik::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, size_t offset, Budget& budget)
      : style_(style),
        item_separator_(style.item_separator.value_or(Text(style.indent ? "," : ", ", true))),
        key_separator_(style.key_separator.value_or(Text(": ", true))),
        offset_(offset),
        budget_(budget) {}

  // Recursion is bounded: values nest at most kMaxDepth deep.
  void write(const Value& value) {
    budget_.pay_step(offset_);
    if (value.text() != nullptr) {
      write_string(*value.text());
    } else if (value.list() != nullptr && (value.list()->kind == List::Kind::list ||
                                           value.list()->kind == List::Kind::tuple)) {
      write_list(*value.list());
    } else if (value.dict() != nullptr) {
      write_dict(*value.dict());
    } else if (const std::optional<std::string> text = scalar(value)) {
      put(*text);
    } else {
      fail("\"tojson\" of " + std::string(value.kind()), offset_);
    }
  }

  Text take() { return std::move(out_); }

 private:
  void put(std::string_view bytes, bool trusted = true) {
    budget_.pay(bytes.size(), offset_);
    out_.append(bytes, trusted);
  }
  void put(const Text& text) {
    budget_.pay_text(text, offset_);
    out_.append(text);
  }

  static std::optional<std::string> scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* boolean = value.boolean()) return *boolean ? "true" : "false";
    if (const int64_t* integer = value.integer()) return std::to_string(*integer);
    const double* real = value.real();
    if (real == nullptr) return std::nullopt;
    if (std::isnan(*real)) return "NaN";
    if (std::isinf(*real)) return *real < 0 ? "-Infinity" : "Infinity";
    return float_repr(*real);
  }

  void write_string(const Text& text) {
    put("\"");
    size_t begin = 0;
    for (const Text::Run& run : text.runs()) {
      std::string escaped;
      while (begin < run.end) {
        const internal::Utf8Char c = internal::decode_utf8(text.bytes(), begin);
        if (style_.ensure_ascii && c.valid && c.code_point >= 0x7F) {
          append_code(c.code_point, escaped);
          begin += c.length;
        } else {
          append_escaped(text.bytes()[begin++], escaped);
        }
      }
      put(escaped, run.trusted);
    }
    put("\"");
  }

  static void append_code(uint32_t code_point, std::string& out) {
    char code[16];
    if (code_point < 0x10000) {
      std::snprintf(code, sizeof code, "\\u%04x", code_point);
    } else {
      const uint32_t rest = code_point - 0x10000;
      std::snprintf(code, sizeof code, "\\u%04x\\u%04x", 0xD800 + (rest >> 10),
                    0xDC00 + (rest & 0x3FF));
    }
    out += code;
  }

  static void append_escaped(char c, std::string& out) {
    static constexpr std::string_view kPlain = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kNames = "\"\\nrtfb";
    if (const size_t known = kPlain.find(c); known != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kNames[known]);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      append_code(static_cast<unsigned char>(c), out);
    } else {
      out.push_back(c);
    }
  }

  void write_list(const List& list) {
    put("[");
    ++level_;
    bool first = true;
    for (const Value& item : list.items) {
      separate(first);
      first = false;
      write(item);
    }
    --level_;
    if (!first) new_line();
    put("]");
  }

  // Both are strings, or both are numbers.
  static bool key_less(const Value& a, const Value& b) {
    if (a.text() != nullptr) return a.text()->bytes() < b.text()->bytes();
    const auto exact = [](const Value& value) {
      const std::optional<int64_t> integer = as_integer(value);
      return integer ? static_cast<long double>(*integer) : static_cast<long double>(*value.real());
    };
    return exact(a) < exact(b);
  }

  // By key as Python orders strings or numbers; a mixture fails there too.
  std::vector<const std::pair<Value, Value>*> sorted(const Dict& dict) const {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (!style_.sort_keys) return items;
    if (dict.items.size() < 2) return items;
    const bool texts = dict.items.front().first.text() != nullptr;
    for (const auto& [key, value] : dict.items) {
      if (texts ? key.text() == nullptr : !as_double(key)) {
        fail("\"tojson\" with sort_keys of keys that have no order: " +
                 std::string(dict.items.front().first.kind()) + " and " + std::string(key.kind()),
             offset_);
      }
    }
    budget_.pay(dict.items.size() * 64, offset_);
    std::sort(items.begin(), items.end(),
              [](const auto* a, const auto* b) { return key_less(a->first, b->first); });
    return items;
  }

  void write_dict(const Dict& dict) {
    dict.note_whole();
    put("{");
    ++level_;
    bool first = true;
    for (const auto* item : sorted(dict)) {
      separate(first);
      first = false;
      if (item->first.text() != nullptr) {
        write_string(*item->first.text());
      } else if (const std::optional<std::string> key = scalar(item->first)) {
        put("\"" + *key + "\"");
      } else {
        fail("\"tojson\" of a mapping with " + std::string(item->first.kind()) + " as a key",
             offset_);
      }
      put(key_separator_);
      write(item->second);
    }
    --level_;
    if (!first) new_line();
    put("}");
  }

  void separate(bool first) {
    if (!first) put(item_separator_);
    new_line();
  }

  void new_line() {
    if (!style_.indent) return;
    put("\n");
    for (int i = 0; i < level_; ++i) put(*style_.indent);
  }

  const JsonStyle& style_;
  Text item_separator_, key_separator_;
  size_t offset_;
  Budget& budget_;
  int level_ = 0;
  Text out_;
};

}  // namespace

Text to_json(const Value& value, const JsonStyle& style, size_t offset, Budget& budget) {
  JsonWriter writer(style, offset, budget);
  writer.write(value);
  return writer.take();
}

}  // namespace kvik::jinja
