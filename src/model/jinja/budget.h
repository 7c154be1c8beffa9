// What one rendering may still cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "model/jinja/error.h"
#include "model/jinja/value.h"

namespace kvik::jinja {

// Bounds time and memory together: every node that is evaluated, every byte that is copied and
// every value that is made is paid for, and nothing is given back.
class Budget {
 public:
  explicit Budget(int64_t work) : work_(work) {}

  void pay(size_t work, size_t offset) {
    const auto cost = static_cast<int64_t>(work);
    if (cost > work_) refuse("rendering takes more work than the limit allows", offset);
    work_ -= cost;
  }
  void pay_step(size_t offset) { pay(kStep, offset); }
  void pay_text(const Text& text, size_t offset) { pay(text.cost() + kStep, offset); }
  void pay_values(size_t count, size_t offset) { pay(count * sizeof(Value), offset); }

 private:
  static constexpr size_t kStep = 32;
  int64_t work_;
};

}  // namespace kvik::jinja
