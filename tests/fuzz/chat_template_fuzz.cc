// Any bytes as a chat template: refused, or rendered within the limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvik/core/check.h"
#include "kvik/model/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvik;
  ChatTemplateLimits limits;
  limits.output_bytes = 1 << 16;
  limits.work = 1 << 20;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const Result<ChatTemplate> chat_template = ChatTemplate::parse(source, limits);
  if (!chat_template.ok()) {
    KVIK_CHECK(!chat_template.status().message().empty(), "a refusal says why");
    return 0;
  }
  ChatInput input;
  const ChatObject function{{"name", "f"}, {"arguments", ChatObject{{"x", 1.5}, {"y", nullptr}}}};
  input.messages = {
      {"system", " a\n"},
      {"user", "\xC3\xA9<|x|>\xFF"},
      {"assistant", "</think>b"},
      ChatMessage(ChatObject{{"role", "assistant"},
                             {"content", nullptr},
                             {"tool_calls", ChatArray{ChatObject{{"function", function}}}}})};
  input.variables["tools"] = ChatArray{ChatObject{{"function", function}, {"n", int64_t{-7}}}};
  input.local_time = std::tm{};
  input.allow_unread = size % 2 == 0;
  input.add_generation_prompt = true;
  input.bos_token = "<s>";
  input.variables["flag"] = true;
  input.variables["count"] = int64_t{3};
  const Result<RenderedChat> rendered = chat_template.value().render(input);
  if (!rendered.ok()) return 0;
  KVIK_CHECK(rendered.value().text().size() <= limits.output_bytes, "the output obeys its limit");
  size_t covered = 0;
  for (const TextSpan& span : rendered.value().spans()) covered += span.text.size();
  KVIK_CHECK(covered == rendered.value().text().size(), "the spans cover the text");
  return 0;
}
