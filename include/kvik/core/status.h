// Errors that a correct caller can meet. No exception leaves the library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kvik/core/check.h"
#include "kvik/core/export.h"

namespace kvik {

enum class StatusCode : uint8_t {
  ok,
  invalid_argument,  // the call itself is wrong; nothing changed
  out_of_pages,      // the page pool has reached its limit; nothing changed
  out_of_memory,     // the system refused memory; nothing changed
  unsupported,       // a valid wish that this build, format or state cannot serve
  corrupt,           // data from outside breaks its own format
  io_error,          // the system refused to read or write
  cancelled,         // the caller asked to stop
};

// "ok", "invalid_argument", ... ; never null.
KVIK_API std::string_view status_code_name(StatusCode code);

// A code and, unless ok, a sentence that names the thing and the remedy.
// Value type; an ok status allocates nothing.
class [[nodiscard]] KVIK_API Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "invalid_argument: ..." for logs and test output.
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

inline Status invalid_argument(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}
inline Status unsupported(std::string message) {
  return {StatusCode::unsupported, std::move(message)};
}

// Either a T or a Status that is not ok.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: converts on return
  Result(Status status) : status_(std::move(status)) {  // NOLINT: converts on return
    KVIK_CHECK(!status_.ok(), "a Result without a value needs a status that is not ok");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Requires: ok().
  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }
  T& operator*() { return checked(); }
  const T& operator*() const { return value(); }

 private:
  T& checked() {
    KVIK_CHECK(value_.has_value(), status_.message().c_str());
    return *value_;
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace kvik
