#include <cstdio>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"

namespace kvik::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(std::optional<int64_t> indent, size_t offset, Budget& budget)
      : indent_(indent), offset_(offset), budget_(budget) {}

  // Recursion is bounded: values nest at most kMaxDepth deep.
  void write(const Value& value) {
    budget_.pay_step(offset_);
    if (value.text() != nullptr) {
      write_string(*value.text());
    } else if (value.list() != nullptr) {
      write_list(*value.list());
    } else if (value.dict() != nullptr) {
      write_dict(*value.dict());
    } else if (value.is_none()) {
      put("null");
    } else if (const bool* boolean = value.boolean()) {
      put(*boolean ? "true" : "false");
    } else if (const int64_t* integer = value.integer()) {
      put(std::to_string(*integer));
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

  void write_string(const Text& text) {
    put("\"");
    size_t begin = 0;
    for (const Text::Run& run : text.runs()) {
      std::string escaped;
      for (; begin < run.end; ++begin) append_escaped(text.bytes()[begin], escaped);
      put(escaped, run.trusted);
    }
    put("\"");
  }

  static void append_escaped(char c, std::string& out) {
    static constexpr std::string_view kPlain = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kNames = "\"\\nrtfb";
    if (const size_t known = kPlain.find(c); known != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kNames[known]);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
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

  void write_dict(const Dict& dict) {
    put("{");
    ++level_;
    bool first = true;
    for (const auto& [key, value] : dict.items) {
      separate(first);
      first = false;
      write_string(key);
      put(": ");
      write(value);
    }
    --level_;
    if (!first) new_line();
    put("}");
  }

  void separate(bool first) {
    if (!first) put(indent_ ? "," : ", ");
    new_line();
  }

  void new_line() {
    if (!indent_) return;
    const auto spaces = static_cast<size_t>(level_ * *indent_);
    budget_.pay(spaces, offset_);
    put("\n" + std::string(spaces, ' '));
  }

  std::optional<int64_t> indent_;
  size_t offset_;
  Budget& budget_;
  int64_t level_ = 0;
  Text out_;
};

}  // namespace

Text to_json(const Value& value, std::optional<int64_t> indent, size_t offset, Budget& budget) {
  if (indent && (*indent < 0 || *indent > 64)) {
    refuse("\"tojson\" with an indent outside 0 to 64 is not supported", offset);
  }
  JsonWriter writer(indent, offset, budget);
  writer.write(value);
  return writer.take();
}

}  // namespace kvik::jinja
