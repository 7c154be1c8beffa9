// Tokens that only a chat template may write, by their spelling and by what the template spells.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "model/vocabulary_check.h"

namespace kvik::internal {
namespace {

// Ends of turns, of answers and of texts.
constexpr std::array<std::string_view, 19> kTurnEnds = {"<|im_end|>",
                                                        "<|endoftext|>",
                                                        "<|eot_id|>",
                                                        "<|eom_id|>",
                                                        "<|end_of_text|>",
                                                        "<|end|>",
                                                        "<|eot|>",
                                                        "<|return|>",
                                                        "<|endofturn|>",
                                                        "<|end_of_turn|>",
                                                        "<|END_OF_TURN_TOKEN|>",
                                                        "<end_of_turn>",
                                                        "<end_of_utterance>",
                                                        "<turn|>",
                                                        "<EOT>",
                                                        "\xE2\x96\x81<EOT>",
                                                        "[EOT]",
                                                        "[EOS]",
                                                        "<\xEF\xBD\x9C"
                                                        "end\xE2\x96\x81of\xE2\x96\x81sentence"
                                                        "\xEF\xBD\x9C>"};

constexpr size_t kMostMarkerBytes = 64;

// "<s>", "[INST]" and the like: in brackets, without white space.
bool is_in_brackets(std::string_view piece) {
  if (piece.size() < 3 || piece.size() > kMostMarkerBytes) return false;
  const bool closed = (piece.front() == '<' && piece.back() == '>') ||
                      (piece.front() == '[' && piece.back() == ']');
  return closed && piece.find_first_of(" \t\r\n") == std::string_view::npos;
}

// "<|im_start|>" and the like, also with the bars of full width that some models have.
bool is_spelled_as_marker(std::string_view piece) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kEnds = {
      {{"<|", "|>"}, {"<\xEF\xBD\x9C", "\xEF\xBD\x9C>"}}};
  for (const auto& [begin, end] : kEnds) {
    if (piece.size() > begin.size() + end.size() && piece.size() <= kMostMarkerBytes &&
        piece.starts_with(begin) && piece.ends_with(end) &&
        piece.find_first_of(" \t\r\n") == std::string_view::npos) {
      return true;
    }
  }
  return piece == "<start_of_turn>" || ends_a_turn(piece);
}

// The texts that a template can write: what stands outside of its tags, and the strings in them.
// (Text of comments is left out.)
class TemplateTexts {
 public:
  explicit TemplateTexts(std::string_view source) : source_(source) {
    for (size_t pos = 0; pos < source_.size();) {
      const size_t tag = next_tag(pos);
      add(source_.substr(pos, tag - pos));
      if (tag == source_.size()) break;
      pos = source_[tag + 1] == '#' ? end_of_comment(tag) : read_tag(tag + 2);
    }
  }
  // All of them in brackets that are spelled within one text.
  const std::unordered_set<std::string_view>& in_brackets() const { return in_brackets_; }

 private:
  size_t next_tag(size_t pos) const {
    for (; pos + 1 < source_.size(); ++pos) {
      const char next = source_[pos + 1];
      if (source_[pos] == '{' && (next == '{' || next == '%' || next == '#')) return pos;
    }
    return source_.size();
  }
  size_t end_of_comment(size_t pos) const {
    const size_t end = source_.find("#}", pos);
    return end == std::string_view::npos ? source_.size() : end + 2;
  }
  // Adds the strings of a tag and gives its end.
  size_t read_tag(size_t pos) {
    while (pos < source_.size()) {
      const char c = source_[pos];
      if (c == '\'' || c == '"') {
        const size_t end = end_of_string(pos);
        add(source_.substr(pos + 1, end - pos - 1));
        pos = std::min(end + 1, source_.size());
      } else if ((c == '}' || c == '%') && pos + 1 < source_.size() && source_[pos + 1] == '}') {
        return pos + 2;
      } else {
        ++pos;
      }
    }
    return pos;
  }
  size_t end_of_string(size_t pos) const {
    const char quote = source_[pos];
    for (++pos; pos < source_.size() && source_[pos] != quote; ++pos) {
      if (source_[pos] == '\\') ++pos;
    }
    return std::min(pos, source_.size());
  }
  void add(std::string_view text) {
    for (size_t begin = 0; begin < text.size(); ++begin) {
      if (text[begin] != '<' && text[begin] != '[') continue;
      const size_t most = std::min(text.size(), begin + kMostMarkerBytes);
      for (size_t end = begin + 1; end < most; ++end) {
        const std::string_view part = text.substr(begin, end + 1 - begin);
        if (is_in_brackets(part)) in_brackets_.insert(part);
      }
    }
  }

  std::string_view source_;
  std::unordered_set<std::string_view> in_brackets_;
};

}  // namespace

bool ends_a_turn(std::string_view piece) {
  return std::find(kTurnEnds.begin(), kTurnEnds.end(), piece) != kTurnEnds.end();
}

void restrict_markers(Vocabulary& v) {
  v.token_types.resize(v.pieces.size(), static_cast<int32_t>(TokenType::normal));
  for (size_t i = 0; i < v.token_types.size(); ++i) {
    const auto type = static_cast<TokenType>(v.token_types[i]);
    if (type == TokenType::byte || type == TokenType::control) continue;
    const auto id = static_cast<TokenId>(i);
    const bool is_end = id == v.bos || id == v.eos;
    // A normal token may be BOS or EOS and a word of texts.
    const bool is_spelled = is_in_brackets(v.pieces[i]) || type == TokenType::user_defined;
    if ((is_end && is_spelled) ||
        (type != TokenType::unknown && is_spelled_as_marker(v.pieces[i]))) {
      v.token_types[i] = static_cast<int32_t>(TokenType::control);
    }
  }
}

std::vector<TokenId> find_template_markers(const Vocabulary& v, std::string_view chat_template) {
  const TemplateTexts texts(chat_template);
  std::unordered_set<std::string> merged;
  for (const std::string& merge : v.merges) {
    std::string result = merge;
    if (const size_t space = result.find(' '); space != std::string::npos) result.erase(space, 1);
    if (is_in_brackets(result)) merged.insert(std::move(result));
  }
  std::vector<TokenId> markers;
  for (size_t i = 0; i < v.pieces.size(); ++i) {
    const auto type =
        v.token_types.empty() ? TokenType::normal : static_cast<TokenType>(v.token_types[i]);
    if (type != TokenType::normal && type != TokenType::unused) continue;
    if (!texts.in_brackets().contains(v.pieces[i]) || merged.contains(v.pieces[i])) continue;
    markers.push_back(static_cast<TokenId>(i));
  }
  return markers;
}

}  // namespace kvik::internal
