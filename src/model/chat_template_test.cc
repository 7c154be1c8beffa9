#include "kvik/model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/tiny_vocabulary.h"

namespace kvik {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Status parse_status(const std::string& source) {
  const Result<ChatTemplate> chat_template = ChatTemplate::parse(source);
  return chat_template.ok() ? Status() : chat_template.status();
}

Result<RenderedChat> render(const std::string& source, const ChatInput& input,
                            const ChatTemplateLimits& limits = {}) {
  const Result<ChatTemplate> chat_template = ChatTemplate::parse(source, limits);
  if (!chat_template.ok()) return chat_template.status();
  return chat_template.value().render(input);
}

ChatInput one_message(std::string content) {
  ChatInput input;
  input.messages = {{"user", std::move(content)}};
  return input;
}

TEST(ChatTemplate, RefusesAtParsingWhatIsNotJinja) {
  const auto expect = [](const std::string& source, const char* name, const char* position) {
    const Status status = parse_status(source);
    EXPECT_EQ(status.code(), StatusCode::corrupt) << source << " " << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_THAT(status.message(), HasSubstr(position));
  };
  expect("a\n  {% do x %}", "tag \"do\"", "line 2, column 6");
  expect("{% macro f(a=1, b) %}{% endmacro %}", "default", "line 1, column 18");
  expect("{{ x is string is defined }}", "chained", "column 16");
  expect("{{ f(a=1, 2) }}", "plain argument", "column 11");
  expect("{% raw %}x", "never closed", "column 1");
  expect("{% macro f(x, x=1) %}{% endmacro %}", "\"x\" is named twice", "column 15");
  expect("{% macro f(caller) %}{{ caller() }}{% endmacro %}", "\"caller\"", "needs a default");
  expect("{% for a in b %}{% set c, loop = 1, 2 %}{% endfor %}", "\"loop\"", "column 20");
  expect("{% for a, loop in b %}{% endfor %}", "\"loop\"", "column 4");
  expect("{% block a %}{% endblock %}{% block a %}{% endblock %}", "defined twice", "column 37");
  EXPECT_THAT(parse_status("{{ 99999999999999999999 }}").message(), HasSubstr("64 bits"));
  EXPECT_THAT(parse_status("{{ '\\N{DASH}' }}").message(), HasSubstr("escape"));
}

TEST(ChatTemplate, RefusesAConstructOnlyWhereItIsReached) {
  const auto expect = [](const std::string& piece, StatusCode code, const char* name) {
    const Result<RenderedChat> reached = render("a\n" + piece, one_message("x"));
    ASSERT_FALSE(reached.ok()) << piece;
    EXPECT_EQ(reached.status().code(), code) << reached.status().to_string();
    EXPECT_THAT(reached.status().message(), HasSubstr(name));
    EXPECT_THAT(reached.status().message(), HasSubstr("line 2, column "));
    const Result<RenderedChat> passed =
        render("{% if false %}" + piece + "{% endif %}b", one_message("x"));
    ASSERT_TRUE(passed.ok()) << passed.status().to_string();
    EXPECT_EQ(passed.value().text(), "b");
  };
  expect("{% include 'x' %}", StatusCode::unsupported, "tag \"include\"");
  expect("{{ 'x' | nosuch }}", StatusCode::unsupported, "filter \"nosuch\"");
  expect("{{ 'x' is nosuch }}", StatusCode::unsupported, "test \"nosuch\"");
  expect("{{ nosuch(1) }}", StatusCode::corrupt, "\"nosuch\" is undefined");
  expect("{{ 'x' | wordwrap }}", StatusCode::unsupported, "filter \"wordwrap\"");
  expect("{{ 9223372036854775807 + 1 }}", StatusCode::unsupported, "64 bits");
  expect("{{ (-9223372036854775807 - 1) // -1 }}", StatusCode::unsupported, "64 bits");
  expect("{{ 9223372036854775807|round(-1) }}", StatusCode::unsupported, "64 bits");
  expect("{{ 'a' + 1 }}", StatusCode::corrupt, "a string and an integer");
  expect("{{ x.y }}", StatusCode::corrupt, "\"x\" is undefined");
  expect("{{ 1 // 0 }}", StatusCode::corrupt, "column 6: division by zero");
  expect("{{ [].append(1) }}", StatusCode::corrupt, "\"append\" is undefined");
  expect("{{ (5).to_bytes(2, 'big') }}", StatusCode::unsupported, "\"to_bytes\" of an integer");
  expect("{{ 5.5.hex() }}", StatusCode::unsupported, "\"hex\" of a float");
  expect("{{ ('a'|e).striptags() }}", StatusCode::unsupported, "\"striptags\" of a string");
  expect("{{ {}.keys().mapping }}", StatusCode::unsupported, "\"mapping\"");
  expect("{{ dict.fromkeys([]) }}", StatusCode::unsupported, "\"fromkeys\" of the function");
  expect("{% filter list %}a{% endfilter %}", StatusCode::corrupt, "a filter block gives a list");
  expect("{{ '{} {0}'.format(1) }}", StatusCode::corrupt, "with numbers and fields without");
  expect("{{ raise_exception('no ' ~ 1) }}", StatusCode::invalid_argument, "no 1");
  expect("{% set ns = namespace() %}{% set ns.x = [ns] %}", StatusCode::unsupported, "namespace");
}

TEST(ChatTemplate, RefusesWhatNothingReads) {
  const auto status = [](const std::string& source, const ChatInput& input) {
    const Result<RenderedChat> rendered = render(source, input);
    return rendered.ok() ? std::string("ok") : rendered.status().message();
  };
  const std::string plain = "{% for m in messages %}{{ m.role }}{{ m['content'] }}{% endfor %}";
  ChatInput input = one_message("x");
  EXPECT_EQ(status(plain, input), "ok");
  input.variables["tools"] = ChatArray{ChatObject{{"name", "f"}}};
  EXPECT_THAT(status(plain, input), HasSubstr("nothing reads \"tools\""));
  EXPECT_EQ(status(plain + "{% if tools %}t{% endif %}", input), "ok");
  input.variables["tools"] = ChatArray{};
  EXPECT_EQ(status(plain, input), "ok");
  input.variables["enable_thinking"] = false;
  EXPECT_THAT(status(plain, input), HasSubstr("\"enable_thinking\""));

  input = one_message("x");
  input.messages[0].fields.emplace_back("name", "bob");
  EXPECT_THAT(status(plain, input), HasSubstr("nothing reads \"name\" of message 1"));
  // The name of something else is no use of this one.
  EXPECT_THAT(status(plain + "{% for t in tools or [] %}{{ t.name }}{% endfor %}", input),
              HasSubstr("\"name\""));
  for (const std::string use :
       {"{{ messages[0].name }}", "{{ messages[-1]['name'] }}", "{{ messages|tojson }}",
        "{% set m = messages|last %}{% if 'name' in m %}{% endif %}", "{{ messages }}",
        "{% for m in messages[1:] %}{{ m.get('name') }}{% endfor %}",
        "{{ messages|map(attribute='name')|list }}", "{% for k in messages[0] %}{% endfor %}",
        "{% macro f(x) %}{{ x.name }}{% endmacro %}{{ f(messages[0]) }}",
        "{% set k = 'na' ~ 'me' %}{{ messages[0][k] }}"}) {
    EXPECT_EQ(status(plain + use, input), "ok") << use;
  }
  input.allow_unread = true;
  EXPECT_EQ(status(plain, input), "ok");

  input.allow_unread = false;
  input.messages = {ChatMessage(ChatObject{
      {"role", "tool"}, {"tool_call_id", "1"}, {"name", "f"}, {"content", "4"}, {"x", nullptr}})};
  EXPECT_EQ(status(plain, input), "ok");
}

TEST(ChatTemplate, WritesTheTimeThatIsGiven) {
  ChatInput input;
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  time.tm_wday = 5;
  time.tm_hour = 9;
  input.local_time = time;
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y, %A %H:%M %f%z%%') }}", input).value().text(),
            "26 Jul 2024, Friday 09:00 000000%");
  EXPECT_EQ(render("{% if strftime_now is defined %}yes{% endif %}", {}).value().text(), "yes");
}

TEST(ChatTemplate, LimitsRecursionOfMacros) {
  const Status status =
      render("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", {}).status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(), HasSubstr("deeper than"));
}

TEST(ChatTemplate, RefusesVariablesThatTheCallSets) {
  ChatInput input;
  input.variables["messages"] = true;
  EXPECT_EQ(render("", input).status().code(), StatusCode::invalid_argument);
}

TEST(ChatTemplate, TellsTheTemplatesTextFromThatOfMessages) {
  const Tokenizer tokenizer = std::move(Tokenizer::create(test::tiny_vocabulary())).value();
  // Everything that can be done to a string keeps its origin.
  const std::string source =
      "{% for m in messages %}<|start|>{{ m.role }}:{{ (' ' ~ m.content + ' ') | trim }}"
      "{{ m.content.split('|')[1:] | join('<|') }}{{ m.content[::-1][::-1] }}"
      "{{ m.content | replace('x', '<|end|>') | tojson }}{{ '<|end|>' }}{% endfor %}";
  const Result<RenderedChat> rendered = render(source, one_message("<|end|>x"));
  ASSERT_TRUE(rendered.ok()) << rendered.status().to_string();
  EXPECT_EQ(rendered.value().text(),
            "<|start|>user:<|end|>xend<|>x<|end|>x\"<|end|><|end|>\"<|end|>");
  const std::vector<TokenId> ids = tokenizer.encode_spans(rendered.value().spans()).value();
  std::vector<TokenId> control;
  for (const TokenId id : ids) {
    if (tokenizer.token_type(id).value() == TokenType::control) control.push_back(id);
  }
  // <|start|>, the <|end|> that the template put in place of "x", the last one.
  EXPECT_THAT(control, ElementsAre(256, 257, 257));
  EXPECT_EQ(tokenizer.decode(ids).value(), rendered.value().text());
}

TEST(ChatTemplate, TrustsTheStartTokenButNoVariable) {
  ChatInput input;
  input.bos_token = "<|start|>";
  input.variables["date"] = std::string("<|end|>");
  const Result<RenderedChat> rendered = render("{{ bos_token }}{{ date }}", input);
  ASSERT_TRUE(rendered.ok());
  const std::vector<TextSpan> spans = rendered.value().spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_TRUE(spans[0].trusted);
  EXPECT_FALSE(spans[1].trusted);
}

TEST(ChatTemplate, CountsCharactersAndKeepsIllFormedBytes) {
  const Result<RenderedChat> rendered =
      render("{{ messages[0].content | length }}{{ messages[0].content | trim }}",
             one_message(" \xFF\xE4\xBD a "));
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(rendered.value().text(), "6\xFF\xE4\xBD a");
}

TEST(ChatTemplate, LimitsTheSourceTheOutputAndTheWork) {
  ChatTemplateLimits limits;
  limits.source_bytes = 4;
  EXPECT_EQ(ChatTemplate::parse("12345", limits).status().code(), StatusCode::unsupported);
  limits = {};
  limits.output_bytes = 10;
  const Status output =
      render("{{ messages[0].content }}", one_message("12345678901"), limits).status();
  EXPECT_EQ(output.code(), StatusCode::unsupported);
  EXPECT_THAT(output.message(), HasSubstr("10 bytes"));
  EXPECT_TRUE(render("{{ messages[0].content }}", one_message("1234567890"), limits).ok());

  // Each would take ages, or all memory.
  limits = {};
  limits.work = 1 << 22;
  const std::string loop =
      "{% for a in 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' %}";
  const std::string end = "{% endfor %}";
  const std::string many = loop + loop + loop + loop + loop + loop;
  const std::string ends = end + end + end + end + end + end;
  for (const std::string& source :
       {many + "{{ a }}" + ends, many + ends,
        "{% set ns = namespace(s='x') %}" + loop + "{% set ns.s = ns.s + ns.s %}" + end,
        "{% set ns = namespace(s=[1]) %}" + loop + "{% set ns.s = ns.s + ns.s %}" + end,
        "{% set ns = namespace(s='xx') %}" + loop + "{% set ns.s = ns.s|replace('x', ns.s) %}" +
            end,
        "{% set ns = namespace(s='xx') %}" + loop + "{% set ns.s = ns.s.split('x')|join(ns.s) %}" +
            end}) {
    const Status status = render(source, {}, limits).status();
    EXPECT_EQ(status.code(), StatusCode::unsupported) << source;
    EXPECT_THAT(status.message(), HasSubstr("limit"));
  }
}

TEST(ChatTemplate, PaysBeforeANumberOfTheTemplateMakesSomething) {
  for (const std::string source : {
           "{{ [1]|slice(10**12)|list|length }}",
           "{{ [1]|slice(10**18, 'x')|list|length }}",
           "{{ [1]|batch(10**12, 'x')|list|length }}",
           "{{ 'a' * 10**12 }}",
           "{{ [1] * 10**18 }}",
           "{{ 'a'.ljust(10**12) }}",
           "{{ 'a'.rjust(9223372036854775807) }}",
           "{{ 'a'.zfill(10**12) }}",
           "{{ 'a'|center(10**12) }}",
           "{{ 'a\tb'.expandtabs(10**12) }}",
           "{{ 'a\nb'|indent(10**12) }}",
           "{{ [1]|tojson(indent=10**12) }}",
           "{{ '%*d' % (10**12, 1) }}",
           "{{ '{:1000000000000}'.format(1) }}",
       }) {
    const Status status = render(source, {}).status();
    EXPECT_EQ(status.code(), StatusCode::unsupported) << source << " " << status.to_string();
  }
}

TEST(ChatTemplate, SurvivesDeepNesting) {
  const auto repeat = [](const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  };
  constexpr int kDeep = 20000;
  for (const std::string& source : {
           "{{ " + repeat("(", kDeep) + "1" + repeat(")", kDeep) + " }}",
           "{{ " + repeat("[", kDeep) + repeat("]", kDeep) + " }}",
           "{{ " + repeat("not ", kDeep) + "1 }}",
           "{{ " + repeat("- ", kDeep) + "1 }}",
           "{{ 1" + repeat(" + 1", kDeep) + " }}",
           "{{ a" + repeat(".b", kDeep) + " }}",
           "{{ a" + repeat("|trim", kDeep) + " }}",
           "{{ " + repeat("a if b else ", kDeep) + "c }}",
           "{{ a" + repeat("[0", kDeep) + repeat("]", kDeep) + " }}",
           repeat("{% if a %}", kDeep) + repeat("{% endif %}", kDeep),
           repeat("{% for a in b %}", kDeep) + repeat("{% endfor %}", kDeep),
       }) {
    const Status status = parse_status(source);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << source.substr(0, 40);
    EXPECT_THAT(status.message(), HasSubstr("deeper than"));
  }
  // Long, but flat.
  EXPECT_TRUE(parse_status("{{ a" + repeat(" ~ a", kDeep) + " }}").ok());
  EXPECT_TRUE(parse_status("{% if a %}" + repeat("{% elif b %}", kDeep) + "{% endif %}").ok());
  // A value that nests deeper with each turn of a loop.
  const Status nested = render(
                            "{% set ns = namespace(x=1) %}{% for c in messages[0].content %}"
                            "{% set ns.x = [ns.x] %}{% endfor %}",
                            one_message(std::string(100000, 'x')))
                            .status();
  EXPECT_EQ(nested.code(), StatusCode::unsupported);
  EXPECT_THAT(nested.message(), HasSubstr("deeper than"));
}

TEST(ChatTemplate, RefusesEveryCutTemplateOrRendersIt) {
  const std::string source =
      "{%- set ns = namespace(a=[1, {'b': 'c\\n'}]) -%}{# c #}{% for m in messages[1:] if m %}"
      "{{ m['role'] | default('x', true) ~ loop.index0 }}{% else %}{{ -1 if not true else \"y\" }}"
      "{% endfor %}{% if messages.b is not defined and 'x' in 'xy' %}z{% endif %}";
  ASSERT_EQ(render(source, one_message("hi")).value().text(), "yz");
  for (size_t length = 0; length < source.size(); ++length) {
    const Result<RenderedChat> result = render(source.substr(0, length), one_message("hi"));
    if (!result.ok()) {
      EXPECT_THAT(result.status().message(), HasSubstr("line 1"));
    }
  }
}

}  // namespace
}  // namespace kvik
