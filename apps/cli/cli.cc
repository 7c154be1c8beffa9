#include "cli.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "terminal_text.h"

namespace kvik::cli {
namespace {

std::atomic<bool> interrupted{false};

// Complete, or an errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

void message(std::string_view colour, std::string_view kind, std::string_view text) {
  std::string line = "kvik: ";
  if (stderr_has_colour()) line = std::string(colour) + line + "\x1b[0m";
  // Messages quote names and text of files.
  line += std::string(kind) + one_line(text) + "\n";
  (void)write_all(STDERR_FILENO, line);
}

void on_interrupt(int) {
  if (interrupted.exchange(true)) _exit(128 + SIGINT);
}

}  // namespace

int fail(std::string_view text) {
  message("\x1b[31m", "", text);
  return kFailed;
}
int fail(const Status& status) {
  return fail(status.code() == StatusCode::cancelled ? "stopped by Ctrl-C" : status.message());
}
int usage_error(std::string_view text) {
  message("\x1b[31m", "", text);
  return kUsage;
}
int fail_or_usage(const Status& status) {
  return status.code() == StatusCode::invalid_argument ? usage_error(status.message())
                                                       : fail(status);
}
void warn(std::string_view text) { message("\x1b[33m", "warning: ", text); }
void note(std::string_view text) {
  static std::set<std::string, std::less<>> said;
  if (said.emplace(text).second) message("", "", text);
}

bool streams_are_one() {
  struct stat out = {}, err = {};
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
         out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

bool stdin_is_terminal() { return isatty(STDIN_FILENO) == 1; }
bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }
bool stderr_has_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  const char* const term = std::getenv("TERM");
  return stderr_is_terminal() && (no_colour == nullptr || *no_colour == '\0') &&
         (term == nullptr || std::strcmp(term, "dumb") != 0);
}

bool Output::write(std::string_view text) {
  if (error_ == 0) error_ = write_all(STDOUT_FILENO, text);
  return error_ == 0;
}

namespace {
constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
}  // namespace

bool Output::write_json(const nlohmann::ordered_json& value) {
  return write(escaped_json(value.dump(1, ' ', false, kReplace)) + "\n");
}

int Output::finish() const {
  if (error_ == 0) return kFine;
  if (error_ == EPIPE) return fail("standard output was closed before everything was written");
  return fail(std::string("cannot write to standard output (") + std::strerror(error_) + ")");
}

bool Output::write_json_line(const nlohmann::ordered_json& value) {
  return write(escaped_json(value.dump(-1, ' ', false, kReplace)) + "\n");
}

void Progress::show(std::string_view text) {
  if (!stderr_is_terminal()) return;
  shown_ = true;
  (void)write_all(STDERR_FILENO, "\r\x1b[K" + std::string(text));
}

void Progress::clear() {
  if (shown_) (void)write_all(STDERR_FILENO, "\r\x1b[K");
  shown_ = false;
}

void Interrupt::install() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a read of the terminal returns
  sigaction(SIGINT, &action, nullptr);
}
const std::atomic<bool>& Interrupt::flag() { return interrupted; }
void Interrupt::clear() { interrupted = false; }

void prepare_streams() {
  signal(SIGPIPE, SIG_IGN);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // Opened for reading, so that writing to a closed standard output still fails.
    const int opened = open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    if (opened != -1 && opened != fd) close(opened);
  }
}

std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(seconds));
  const long long hours = whole / 3600;
  const long long minutes = whole / 60 % 60;
  return hours > 0 ? format("%lld:%02lld:%02lld", hours, minutes, whole % 60)
                   : format("%lld:%02lld", minutes, whole % 60);
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? format("%lld B", static_cast<long long>(bytes))
                   : format("%.2f %s", value, kUnits[unit]);
}

}  // namespace kvik::cli
