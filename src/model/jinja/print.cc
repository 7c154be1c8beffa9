// Values as Python's str() and repr() print them, and what loops go over.
#include <cstdio>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/strings.h"
#include "model/unicode.h"

namespace kvik::jinja {
namespace {

class ReprWriter {
 public:
  ReprWriter(size_t offset, Budget& budget) : offset_(offset), budget_(budget) {}

  // Recursion is bounded: values nest at most kMaxDepth deep.
  void write(const Value& value) {
    budget_.pay_step(offset_);
    if (value.text() != nullptr) {
      if (value.text()->markup()) put("Markup(");
      write_string(*value.text());
      if (value.text()->markup()) put(")");
    } else if (value.list() != nullptr) {
      write_list(*value.list());
    } else if (value.dict() != nullptr) {
      write_dict(*value.dict());
    } else if (value.ns() != nullptr) {
      write_namespace(*value.ns());
    } else if (value.is_undefined()) {
      put("Undefined");
    } else if (value.is_none()) {
      put("None");
    } else if (const bool* boolean = value.boolean()) {
      put(*boolean ? "True" : "False");
    } else if (const int64_t* integer = value.integer()) {
      put(std::to_string(*integer));
    } else if (const double* real = value.real()) {
      put(float_repr(*real));
    } else {
      refuse("printing " + std::string(value.kind()) + " is not supported", offset_);
    }
  }

  Text take() { return std::move(out_); }

 private:
  void put(std::string_view bytes, bool trusted = true) {
    budget_.pay(bytes.size(), offset_);
    out_.append(bytes, trusted);
  }

  void write_string(const Text& text) {
    const bool single = text.bytes().find('\'') != std::string::npos;
    const char quote = single && text.bytes().find('"') == std::string::npos ? '"' : '\'';
    put(std::string_view(&quote, 1));
    size_t begin = 0;
    for (const Text::Run& run : text.runs()) {
      std::string escaped;
      while (begin < run.end) {
        const internal::Utf8Char c = internal::decode_utf8(text.bytes(), begin);
        const size_t length = std::min<size_t>(c.length, run.end - begin);
        append_escaped(std::string_view(text.bytes()).substr(begin, length), c, quote, escaped);
        begin += length;
      }
      put(escaped, run.trusted);
    }
    put(std::string_view(&quote, 1));
  }

  static void append_escaped(std::string_view bytes, const internal::Utf8Char& c, char quote,
                             std::string& out) {
    static constexpr std::string_view kPlain = "\\\n\r\t";
    static constexpr std::string_view kNames = "\\nrt";
    const size_t known = bytes.size() == 1 ? kPlain.find(bytes[0]) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kNames[known]);
    } else if (bytes.size() == 1 && bytes[0] == quote) {
      out.push_back('\\');
      out.push_back(quote);
    } else if (!c.valid || is_printable(c.code_point)) {
      out += bytes;
    } else {
      char code[16];
      const char* form = c.code_point < 0x100     ? "\\x%02x"
                         : c.code_point < 0x10000 ? "\\u%04x"
                                                  : "\\U%08x";
      std::snprintf(code, sizeof code, form, c.code_point);
      out += code;
    }
  }

  void write_items(const std::vector<Value>& items) {
    bool first = true;
    for (const Value& item : items) {
      if (!first) put(", ");
      first = false;
      write(item);
    }
  }

  void write_list(const List& list) {
    switch (list.kind) {
      case List::Kind::list:
        put("[");
        write_items(list.items);
        return put("]");
      case List::Kind::tuple:
        put("(");
        write_items(list.items);
        return put(list.items.size() == 1 ? ",)" : ")");
      case List::Kind::range:
        return write_range(list);
      case List::Kind::generator:
        refuse("printing a generator is not supported; use list or join", offset_);
      case List::Kind::keys:
        put("dict_keys([");
        break;
      case List::Kind::values:
        put("dict_values([");
        break;
      case List::Kind::items:
        put("dict_items([");
        break;
    }
    write_items(list.items);
    put("])");
  }

  void write_range(const List& list) {
    if (list.items.empty()) {
      refuse("printing an empty range is not supported", offset_);
    }
    if (list.step != 1) refuse("printing a range with a step is not supported", offset_);
    put("range(");
    write(list.items.front());
    put(", ");
    put(std::to_string(*list.items.back().integer() + 1));
    put(")");
  }

  void write_dict(const Dict& dict) {
    dict.note_whole();
    put("{");
    bool first = true;
    for (const auto& [key, value] : dict.items) {
      if (!first) put(", ");
      first = false;
      write(key);
      put(": ");
      write(value);
    }
    put("}");
  }

  void write_namespace(const Namespace& ns) {
    put("<Namespace {");
    bool first = true;
    for (const auto& [name, value] : ns.items) {
      if (!first) put(", ");
      first = false;
      write_string(Text(name, true));
      put(": ");
      write(value);
    }
    put("}>");
  }

  size_t offset_;
  Budget& budget_;
  Text out_;
};

}  // namespace

Text to_repr(const Value& value, size_t offset, Budget& budget) {
  ReprWriter writer(offset, budget);
  writer.write(value);
  return writer.take();
}

Text to_text(const Value& value, size_t offset, Budget& budget) {
  if (value.text() != nullptr) return *value.text();
  if (value.is_undefined()) return {};
  return to_repr(value, offset, budget);
}

std::vector<Value> to_items(const Value& value, size_t offset, Budget& budget) {
  if (value.is_undefined()) return {};
  if (const List* list = value.list()) {
    budget.pay_values(list->items.size(), offset);
    if (!list->error.empty()) fail(list->error, offset);
    if (list->kind != List::Kind::generator) return list->items;
    const auto from = list->items.begin() + static_cast<ptrdiff_t>(list->taken);
    list->taken = list->items.size();
    return {from, list->items.end()};
  }
  std::vector<Value> items;
  if (const Dict* dict = value.dict()) {
    dict->note_whole();
    budget.pay_values(dict->items.size(), offset);
    for (const auto& item : dict->items) items.push_back(item.first);
    return items;
  }
  const Text* text = value.text();
  if (text == nullptr) fail(std::string(value.kind()) + " has no items", offset);
  budget.pay(text->size() * (sizeof(Value) + sizeof(Text)), offset);
  const std::vector<size_t> offsets = char_offsets(text->bytes());
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    items.emplace_back(text->substr(offsets[i], offsets[i + 1]));
  }
  return items;
}

}  // namespace kvik::jinja
