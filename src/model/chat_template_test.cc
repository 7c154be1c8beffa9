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

TEST(ChatTemplate, RefusesUnknownConstructsByNameAndPosition) {
  const auto expect = [](const std::string& source, const char* name, const char* position) {
    const Status status = parse_status(source);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << source << " " << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_THAT(status.message(), HasSubstr(position));
  };
  expect("a\n  {% macro f() %}{% endmacro %}", "tag \"macro\"", "line 2, column 6");
  expect("{% include 'x' %}", "tag \"include\"", "line 1, column 4");
  expect("{% for x in y %}{% break %}{% endfor %}", "tag \"break\"", "line 1, column 20");
  expect("{% raw %}{% endraw %}", "tag \"raw\"", "line 1");
  expect("{% generation %}", "tag \"generation\"", "line 1");
  expect("{{ x | groupby('a') }}", "filter \"groupby\"", "column 8");
  expect("{{ x is divisibleby 3 }}", "test \"divisibleby\"", "column 9");
  expect("{{ x is string 'a' }}", "\"string\" with an argument", "column 16");
  expect("{{ x.title() }}", "method \"title\"", "column 6");
  expect("{{ range(3) }}", "function \"range\"", "column 4");
  expect("{{ x()() }}", "call", "column 7");
  expect("{{ 1.5 }}", "integer", "column 4");
  expect("{{ 0x1F }}", "integer", "column 4");
  expect("{{ 99999999999999999999 }}", "64 bits", "column 4");
  expect("{{ 2 ** 3 }}", "\"**\"", "column 6");
  expect("{{ 1 / 2 }}", "\"/\"", "column 6");
  expect("{{ (1, 2) }}", "tuple", "column 6");
  expect("{% set a, b = x %}", "tuple", "column 9");
  expect("{% for a in b recursive %}{% endfor %}", "recursive", "column 15");
  expect("{{ '\\N{DASH}' }}", "escape", "column 5");
  expect("{{ self.x }}", "\"self\"", "column 4");
  expect("{{ x | tojson(sort_keys=true) }}", "\"sort_keys\"", "column 8");
  expect("{{ x.split() }}", "\"split\" with 0 arguments", "column 6");
  expect("{{ x | select('odd') | list }}", "\"select\"", "column 8");
  expect("{% if x | reject('equalto', 1) %}{% endif %}", "\"reject\"", "column 11");
}

TEST(ChatTemplate, RefusesAtRenderingWhatOnlyThenShows) {
  const auto expect = [](const std::string& source, StatusCode code, const char* text) {
    const Result<RenderedChat> result = render(source, one_message("\xC3\xA9"));
    ASSERT_FALSE(result.ok()) << source;
    EXPECT_EQ(result.status().code(), code) << result.status().to_string();
    EXPECT_THAT(result.status().message(), HasSubstr(text));
  };
  expect("{{ strftime_now('%d') }}", StatusCode::unsupported, "\"strftime_now\"");
  expect("{{ messages }}", StatusCode::unsupported, "printing a list");
  expect("{{ messages[0].content | upper }}", StatusCode::unsupported, "not ASCII");
  expect("{{ messages[0].items }}", StatusCode::unsupported, "\"items\"");
  expect("{{ 'a' * 3 }}", StatusCode::unsupported, "\"*\"");
  expect("{{ 'a' + 1 }}", StatusCode::corrupt, "a string and an integer");
  expect("{{ x.y }}", StatusCode::corrupt, "\"x\" is undefined");
  expect("\n{{ 1 // 0 }}", StatusCode::corrupt, "line 2, column 6: division by zero");
  expect("{{ 9223372036854775807 + 1 }}", StatusCode::unsupported, "64 bits");
  expect("{{ (-9223372036854775807 - 1) // -1 }}", StatusCode::unsupported, "64 bits");
  expect("{{ raise_exception('no ' ~ 1) }}", StatusCode::invalid_argument, "no 1");
  expect("{% set ns = namespace() %}{% set ns.x = [ns] %}", StatusCode::unsupported, "namespace");
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
