// Functions that templates call without anything before them.
#include <clocale>
#include <ctime>
#include <memory>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/methods.h"
#include "model/jinja/numbers.h"

namespace kvik::jinja {
namespace {

constexpr size_t kMaxRange = 100000;  // of Jinja's sandbox

Value range_function(const Call& call) {
  if (!call.args.named.empty()) call.wrong("takes no named arguments");
  const auto args = call.bind({"start", "stop", "step"}, 1);
  const int64_t first = to_integer(call, *args[0], "start");
  const int64_t begin = args[1] ? first : 0;
  const int64_t end = integer_or(call, args[1], "stop", first);
  const int64_t step = integer_or(call, args[2], "step", 1);
  if (step == 0) call.wrong("with step 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (items.size() == kMaxRange) call.wrong("of more than 100000 items");
    call.budget.pay_values(1, call.offset);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value(List{.items = std::move(items), .kind = List::Kind::range, .step = step});
}

// The pairs of a mapping, or of a list of pairs.
void put_all(const Call& call, const Value& source, Dict& dict) {
  if (const Dict* other = source.dict()) {
    other->note_whole();
    for (const auto& [key, value] : other->items) {
      call.evaluator.put(dict, key, value, call.offset);
    }
    return;
  }
  for (const Value& pair : call.evaluator.items(source, call.offset)) {
    std::vector<Value> parts = call.evaluator.items(pair, call.offset);
    if (parts.size() != 2) call.wrong("needs pairs");
    call.evaluator.put(dict, parts[0], parts[1], call.offset);
  }
}

Dict collect_dict(const Call& call) {
  if (call.args.plain.size() > 1) call.wrong("with more than one argument without a name");
  Dict dict;
  if (!call.args.plain.empty()) put_all(call, call.args.plain[0], dict);
  for (auto& [name, value] : call.args.named) {
    call.evaluator.put(dict, Value(Text(name, true)), value, call.offset);
  }
  return dict;
}

Value dict_function(const Call& call) { return Value(collect_dict(call)); }

Value namespace_function(const Call& call) {
  auto ns = std::make_shared<Namespace>();
  for (auto& [key, value] : collect_dict(call).items) {
    if (key.text() == nullptr) {
      refuse("a namespace with a name that is no string is not supported", call.offset);
    }
    ns->set(key.text()->bytes(), value);
  }
  return Value(std::move(ns));
}

Value cycler_function(const Call& call) {
  if (!call.args.named.empty()) call.wrong("takes no named arguments");
  if (call.args.plain.empty()) call.wrong("needs an argument");
  auto cycler = std::make_shared<Callable>();
  cycler->kind = Callable::Kind::cycler;
  for (Value& value : call.args.plain) {
    cycler->values.push_back(call.evaluator.stored(std::move(value), call.offset));
  }
  return Value(std::move(cycler));
}

Value joiner_function(const Call& call) {
  const auto args = call.bind({"sep"});
  auto joiner = std::make_shared<Callable>();
  joiner->kind = Callable::Kind::joiner;
  joiner->values.push_back(args[0] ? call.evaluator.stored(*args[0], call.offset)
                                   : Value(Text(", ", true)));
  return Value(std::move(joiner));
}

Value raise_exception(const Call& call) {
  const auto args = call.bind({"message"}, 1);
  const Text message = call.evaluator.text(*args[0], call.offset);
  throw TemplateError{StatusCode::invalid_argument,
                      "the template refuses these messages: " + message.bytes(), call.offset};
}

// As datetime.strftime of Python: the time has no zone.
std::string python_format(const std::string& format, int microseconds) {
  std::string result;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      result.push_back(format[i]);
      continue;
    }
    const char kind = format[++i];
    if (kind == 'f') {
      std::string digits = std::to_string(microseconds);
      result += std::string(6 - digits.size(), '0') + digits;
    } else if (kind != 'z' && kind != 'Z') {
      result.push_back('%');
      result.push_back(kind);
    }
  }
  return result;
}

Value strftime_now(const Call& call) {
  const auto args = call.bind({"format"}, 1);
  const Text& text = to_string_arg(call, *args[0], "format");
  const LocalTime& now = call.evaluator.now();
  const std::string format = python_format(text.bytes(), now.microseconds);
  if (format.empty()) return Value(Text());
  call.pay(text.size() * 64);
  // The names of days and months are English whatever the locale of the process.
  const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
  if (locale == nullptr) refuse("no memory for the locale of \"strftime_now\"", call.offset);
  // "%" widths such as %1000d can make the result longer than the format; strftime then gives 0.
  std::string result(format.size() * 64 + 256, '\0');
  const size_t size =
      strftime_l(result.data(), result.size(), (format + " ").c_str(), &now.calendar, locale);
  freelocale(locale);
  if (size == 0) refuse("this format of \"strftime_now\" is not supported", call.offset);
  result.resize(size - 1);
  return Value(Text(std::move(result), text.runs().empty() || text.runs()[0].trusted));
}

constexpr NamedBuiltin kFunctions[] = {
    {"cycler", cycler_function},
    {"dict", dict_function},
    {"joiner", joiner_function},
    {"namespace", namespace_function},
    {"raise_exception", raise_exception},
    {"range", range_function},
    {"strftime_now", strftime_now},
    {"lipsum",
     [](const Call& call) -> Value {
       refuse("the function \"lipsum\" is not supported", call.offset);
     }},
};

}  // namespace

Builtin find_function(std::string_view name) { return find_builtin(kFunctions, name); }

}  // namespace kvik::jinja
