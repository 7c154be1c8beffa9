// The options of `kvik run`, for its two ways: one answer, or a conversation.
#pragma once

#include <string>
#include <vector>

#include "chat_request.h"
#include "options.h"
#include "prompt.h"

namespace kvik::cli {

struct RunOptions {
  EngineOptions engine;
  PromptOptions prompt;
  GenerateParams generate;
  int64_t seed = -1;  // -1: another one in each run
  int top_k = 40;     // 0: all
  int num_predict = -1;
  bool chat = false;
  bool perf = false;
  std::string system_prompt;
  ChatOptions chat_options;
  ChatSettings chat_settings;  // what chat_options say
  std::string output;
  const CLI::Option *output_option = nullptr, *system_option = nullptr, *stop_option = nullptr;
};

// Whether report_answer() will say anything.
bool says_more(const RunOptions& options, const Session& session, StopReason reason);

// Reads turns from standard input until it ends. Returns an exit code.
int converse(const RunOptions& options, Engine& engine);

// After an answer: says why it stopped, where that is not plain, and how fast it was.
void report_answer(const RunOptions& options, Session& session, StopReason reason);

}  // namespace kvik::cli
