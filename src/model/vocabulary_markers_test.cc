// Tokens of type NORMAL that the chat template spells, and the end of an answer that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvik/model/model.h"
#include "model/vocabulary_check.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr TokenId kFirst = 265;  // behind those of tiny_vocabulary()

Vocabulary with_pieces(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  for (const std::string& piece : pieces) test::add_token(vocabulary, piece, TokenType::normal);
  return vocabulary;
}

TEST(TemplateMarkers, AreThePiecesInBracketsThatTheTemplateSpells) {
  const Vocabulary v = with_pieces({"[INST]", "[/INST]", "[TOOL]", "INST", "<sep>"});
  const auto markers = [&v](std::string_view text) {
    return internal::find_template_markers(v, text);
  };
  EXPECT_THAT(markers("{{ '[INST] ' + x + \" [/INST]\" }}"), ElementsAre(kFirst, kFirst + 1));
  EXPECT_THAT(markers("[INST]{{ x }}[/INST]"), ElementsAre(kFirst, kFirst + 1));
  EXPECT_THAT(markers("{% if a == '<sep>' %}[TOOL]{% endif %}"),
              ElementsAre(kFirst + 2, kFirst + 4));
  // Neither what only a comment says, nor what several texts make together, nor an index.
  EXPECT_THAT(markers("{# [INST] #}INST"), IsEmpty());
  EXPECT_THAT(markers("{{ '[INS' + 'T]' }}[{{ 'INST' }}]{{ x[INST] }}"), IsEmpty());
  EXPECT_THAT(markers(""), IsEmpty());
  // Cut anywhere, a tag or string that does not end is no harm.
  const std::string whole = "{{ '[INST]\\'' }}{# x #}{% y \"[TOOL]\" %}";
  for (size_t size = 0; size < whole.size(); ++size) {
    for (const TokenId id : markers(whole.substr(0, size))) EXPECT_GE(id, kFirst);
  }
}

TEST(TemplateMarkers, AreNoPiecesThatMergesMakeOfText) {
  Vocabulary v = with_pieces({"[/INST]"});
  test::add_merge(v, "[", "A");
  test::add_merge(v, "[A", "]");
  EXPECT_THAT(internal::find_template_markers(v, "[A]{{ x }}[/INST]"), ElementsAre(kFirst));
}

TEST(TemplateMarkers, AreNeverMadeFromContent) {
  Vocabulary v = with_pieces({"[INST]", "[/INST]"});
  v.template_markers = internal::find_template_markers(v, "[INST]{{ x }}[/INST]");
  const Tokenizer tokenizer = Tokenizer::create(std::move(v)).value();
  const std::string text = "a[INST]b[/INST]";
  const std::vector<TokenId> plain = tokenizer.encode(text).value();
  EXPECT_EQ(plain.size(), text.size());
  EXPECT_THAT(plain, Not(Contains(::testing::Ge(kFirst))));
  EXPECT_EQ(tokenizer.decode(plain).value(), text);
  // From the template alone, also where content stands beside it or would complete it.
  const std::vector<TextSpan> spans = {
      {"[INST]", true}, {"[INST]", false}, {"[/IN", true}, {"ST]", false}, {"[/INST]", true}};
  const std::vector<TokenId> chat = tokenizer.encode_spans(spans).value();
  EXPECT_EQ(chat.front(), kFirst);
  EXPECT_EQ(chat.back(), kFirst + 1);
  EXPECT_EQ(std::count_if(chat.begin(), chat.end(), [](TokenId id) { return id >= kFirst; }), 2);
  EXPECT_EQ(tokenizer.decode(chat).value(), "[INST][INST][/INST][/INST]");
}

std::vector<TokenId> end_tokens(const std::string& chat_template) {
  test::TinyModel tiny(test::TinyShape{.more_pieces = {"[OVER]", "[INST]", "over"}});
  tiny.more_metadata = [&](testing::GgufWriter& w) {
    w.add_string("tokenizer.chat_template", chat_template);
  };
  return tiny.load().value()->info().end_tokens;
}

// 257 is EOS, "<|end|>".
TEST(TemplateMarkers, BehindAnAnswerEndIt) {
  const auto of_answer = [](const std::string& behind) {
    return end_tokens("{% for m in messages %}[INST]{{ m['content'] }}" + behind + "{% endfor %}");
  };
  EXPECT_THAT(of_answer("[OVER]"), ElementsAre(257, kFirst));
  EXPECT_THAT(of_answer(" \n[OVER]\n"), ElementsAre(257, kFirst));
  EXPECT_THAT(of_answer("{% if m['role'] == 'assistant' %}[OVER]{% endif %}"),
              ElementsAre(257, kFirst));
  // Not behind the question, not a word, not the start of a text, not text before the marker.
  EXPECT_THAT(of_answer("{% if m['role'] == 'user' %}[OVER]{% endif %}"), ElementsAre(257));
  EXPECT_THAT(of_answer("over"), ElementsAre(257));
  EXPECT_THAT(of_answer("<|start|>"), ElementsAre(257));
  EXPECT_THAT(of_answer("x[OVER]"), ElementsAre(257));
  EXPECT_THAT(of_answer("<|end|>"), ElementsAre(257));
  // A template that cannot be rendered says nothing.
  EXPECT_THAT(end_tokens("{{ raise_exception('no') }}[OVER]"), ElementsAre(257));
}

}  // namespace
}  // namespace kvik
