// What the caches and functions of this process share: the back end, and the warnings given.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/backend/backend.h"

namespace kvik::python {

// A back end whose threads start with the first call and can be replaced while caches hold it:
// results do not depend on the number of threads. A child of os.fork() has none of its parent's
// threads and starts its own. Threads: any; calls wait for each other.
class SharedBackend final : public Backend {
 public:
  // The number of threads is KVIK_NUM_THREADS, else that of the processors this process may use.
  SharedBackend();
  ~SharedBackend() override;

  // Starts the threads if there are none; supports() does that too, so that a cache need not.
  // Errors: as make_cpu_backend; invalid_argument for a KVIK_NUM_THREADS that is no number of
  // threads.
  Status start() const;
  // From the next call on. Errors: invalid_argument for a count below 1 or above 1024.
  Status set_num_threads(int num_threads);
  int num_threads() const;
  // To be called in the child after os.fork().
  void forget_threads();

  std::string_view name() const override { return name_; }
  Status supports(const KvSpec& spec, const AttentionParams& params) const override;
  Result<Buffer> reserve(int64_t bytes) override;
  std::optional<int64_t> encode(const MutableKvView& view, const ConstTensorView& k,
                                const ConstTensorView& v, std::span<const int64_t> slots,
                                std::span<const int32_t> positions) override;
  void attend(const AttentionCall& call) override;

 private:
  struct Threads;
  std::unique_ptr<Threads> threads_;
  std::string name_;
};

// Texts of fallbacks, given to Python's warnings once each per process.
class Fallbacks {
 public:
  // Threads: any, without the GIL.
  void add(const std::string& text);
  // Gives what was added. Requires: the GIL. Throws if Python turns the warning into an error.
  void warn();

 private:
  std::mutex mutex_;
  std::set<std::string> known_;
  std::vector<std::string> pending_;
};

struct Process {
  std::shared_ptr<SharedBackend> backend = std::make_shared<SharedBackend>();
  std::shared_ptr<Fallbacks> fallbacks = std::make_shared<Fallbacks>();
};

}  // namespace kvik::python
