// What the commands share: exit codes, messages, output, Ctrl-C.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvik/core/status.h"

namespace kvik::cli {

enum ExitCode : int { kFine = 0, kFailed = 1, kUsage = 2, kDoesNotFit = 3, kNotVerified = 4 };

// What the chosen command does after parsing; returns an exit code.
using Action = std::function<int()>;

// One line each on stderr, "kvik: ...", of one_line() text. The first three return the exit code
// that goes with them.
int fail(std::string_view message);
int fail(const Status& status);
int usage_error(std::string_view message);
// What the command line says wrong (invalid_argument) is a usage error, the rest a failure.
int fail_or_usage(const Status& status);
void warn(std::string_view message);
// Said once, however often it is called.
void note(std::string_view message);

// Whether standard output and standard error lead to the same place.
bool streams_are_one();
// Whether the stream is a terminal; colour also obeys NO_COLOR and TERM=dumb.
bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();
bool stderr_has_colour();

// Standard output, unbuffered towards the reader: each write is complete or fails. After the first
// failure nothing more is written.
class Output {
 public:
  // False once a write has failed.
  bool write(std::string_view text);
  // Pretty-printed for people to read, one object or array, and a newline.
  bool write_json(const nlohmann::ordered_json& value);
  // All on one line: for long lists of numbers.
  bool write_json_line(const nlohmann::ordered_json& value);
  // kFine, or kFailed with one line about the write that failed.
  int finish() const;

 private:
  int error_ = 0;  // errno of the first failure
};

// "text" that overwrites itself on stderr; nothing unless that is a terminal.
class Progress {
 public:
  ~Progress() { clear(); }
  void show(std::string_view text);
  void clear();

 private:
  bool shown_ = false;
};

// Ctrl-C sets a flag; a second one before clear() ends the program at once.
class Interrupt {
 public:
  static void install();
  static const std::atomic<bool>& flag();
  static void clear();
};

// Makes writing to a closed pipe an error instead of a signal, and keeps files from taking the
// place of closed standard streams.
void prepare_streams();

// 75 as "1:15", 3700 as "1:01:40".
std::string duration_text(double seconds);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);
// "1234567" as "1.18 MiB".
std::string bytes_text(int64_t bytes);

}  // namespace kvik::cli
