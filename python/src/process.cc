#include "process.h"

#include <nanobind/nanobind.h>

#include <limits>
#include <utility>

#include "environment.h"
#include "errors.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/core/thread_team.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

Result<int> default_num_threads() {
  const Result<std::optional<int64_t>> number = number_of(variables::kNumThreads);
  if (!number.ok()) return number.status();
  if (!*number) return num_usable_processors();
  if (**number < 1 || **number > std::numeric_limits<int>::max()) {
    return invalid_argument("KVIK_NUM_THREADS is " + std::to_string(**number) +
                            "; it needs 1 or more");
  }
  return static_cast<int>(**number);
}

Result<std::shared_ptr<Backend>> make_backend(int num_threads) {
  CpuBackendOptions options;
  options.num_threads = num_threads;
  Result<std::unique_ptr<Backend>> backend = make_cpu_backend(options);
  if (!backend.ok()) return backend.status();
  return std::shared_ptr<Backend>(std::move(backend).value());
}

}  // namespace

struct SharedBackend::Threads {
  std::mutex mutex;
  std::optional<int> wanted;         // none: the default
  std::shared_ptr<Backend> single;   // without workers; for what computes nothing
  std::shared_ptr<Backend> backend;  // null until the first call

  Status start() {
    const std::lock_guard lock(mutex);
    if (backend) return {};
    const Result<int> count = wanted ? Result<int>(*wanted) : default_num_threads();
    if (!count.ok()) return count.status();
    Result<std::shared_ptr<Backend>> made = make_backend(*count);
    if (!made.ok()) return made.status();
    backend = std::move(made).value();
    return {};
  }

  // supports() has started the threads before any cache could compute. Only a child of a fork whose
  // system refuses threads computes on the one it has.
  std::shared_ptr<Backend> current() {
    const bool started = start().ok();
    const std::lock_guard lock(mutex);
    return started ? backend : single;
  }
};

SharedBackend::SharedBackend() : threads_(std::make_unique<Threads>()) {
  threads_->single = take(make_backend(1));
  name_ = threads_->single->name();
}

SharedBackend::~SharedBackend() = default;

Status SharedBackend::start() const { return threads_->start(); }

Status SharedBackend::set_num_threads(int num_threads) {
  Result<std::shared_ptr<Backend>> made = make_backend(num_threads);
  if (!made.ok()) return made.status();
  const std::lock_guard lock(threads_->mutex);
  threads_->wanted = num_threads;
  threads_->backend = std::move(made).value();
  return {};
}

int SharedBackend::num_threads() const {
  const std::lock_guard lock(threads_->mutex);
  return threads_->wanted ? *threads_->wanted : take(default_num_threads());
}

void SharedBackend::forget_threads() {
  // Left behind: its mutexes may be held by, and its destructor would wait for, threads that are
  // gone.
  Threads* const old = threads_.release();
  threads_ = std::make_unique<Threads>();
  threads_->wanted = old->wanted;
  threads_->single = take(make_backend(1));
}

Status SharedBackend::supports(const KvSpec& spec, const AttentionParams& params) const {
  if (Status status = start(); !status.ok()) return status;
  return threads_->single->supports(spec, params);
}

Result<Buffer> SharedBackend::reserve(int64_t bytes) { return threads_->single->reserve(bytes); }

std::optional<int64_t> SharedBackend::encode(const MutableKvView& view, const ConstTensorView& k,
                                             const ConstTensorView& v,
                                             std::span<const int64_t> slots,
                                             std::span<const int32_t> positions) {
  return threads_->current()->encode(view, k, v, slots, positions);
}

void SharedBackend::attend(const AttentionCall& call) { threads_->current()->attend(call); }

void Fallbacks::add(const std::string& text) {
  // The same thing with other numbers is no news.
  std::string kind;
  for (const char c : text) {
    if (c < '0' || c > '9') kind += c;
  }
  const std::lock_guard lock(mutex_);
  if (known_.insert(kind).second) pending_.push_back(text);
}

void Fallbacks::warn() {
  std::vector<std::string> texts;
  {
    const std::lock_guard lock(mutex_);
    texts.swap(pending_);
  }
  for (const std::string& text : texts) {
    const nb::object category = nb::module_::import_("kvik._warnings").attr("FallbackWarning");
    if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) < 0) throw nb::python_error();
  }
}

}  // namespace kvik::python
