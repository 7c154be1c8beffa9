// Appends to Kvik's pages and attention over them as nodes of MLX's graph.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core_functions.h"
#include "graph_nodes.h"
#include "mlx/backend/cpu/encoder.h"

namespace {

// A paged cache of kvik._core, and what its nodes share. Threads: any.
struct PagedCore {
  const KvikCoreFunctions* functions;
  std::shared_ptr<void> cache;

  std::mutex mutex;
  std::condition_variable idle;
  std::vector<mx::array> waiting;  // outputs of nodes that no evaluation has reached yet
  int64_t running = 0;             // nodes that a stream's thread has to run or runs
  int64_t generation = 0;          // nodes of an earlier one were dropped
  std::optional<std::string> error;

  void wait(const mx::array& output) {
    const std::lock_guard lock(mutex);
    waiting.push_back(output);
  }
  // An evaluation has reached the node.
  void start(const mx::array& output) {
    const std::lock_guard lock(mutex);
    ++running;
    const auto is_it = [&](const mx::array& array) { return array.id() == output.id(); };
    waiting.erase(std::remove_if(waiting.begin(), waiting.end(), is_it), waiting.end());
  }
  // Runs a node on a stream's thread. The first error goes to MLX, which raises it in the
  // evaluation, and is kept for the cache; those that follow from it are not told again.
  template <class Function>
  bool run(int64_t node_generation, Function&& f) {
    KvikMessage message{};
    bool ok = false, tell = false;
    {
      const std::lock_guard lock(mutex);
      ok = node_generation == generation && !error;
    }
    if (ok && f(&message) != 0) {
      ok = false;
      const std::lock_guard lock(mutex);
      tell = !error;
      if (tell) error = message.text;
    }
    {
      const std::lock_guard lock(mutex);
      --running;
    }
    idle.notify_all();
    if (tell) throw std::runtime_error(std::string("kvik: ") + message.text);
    return ok;
  }
};

KvikArray borrow(const mx::array& array, char* data) {
  KvikArray view{data, 0, {}, {}};
  view.dtype = array.dtype() == mx::float32   ? KVIK_F32
               : array.dtype() == mx::float16 ? KVIK_F16
                                              : KVIK_BF16;
  for (int d = 0; d < 4; ++d) {
    view.shape[d] = array.shape(d);
    view.strides[d] = array.strides()[static_cast<size_t>(d)];
  }
  return view;
}

// The address also of an input, which is only read.
KvikArray borrow(const mx::array& array) {
  return borrow(array, const_cast<char*>(array.data<char>()));
}

// Inputs: keys, values, then (unless it is the first) the output of the append before, for the
// order. Output: one byte of no meaning, for what must come later.
class PagedAppend : public mx::Primitive {
 public:
  PagedAppend(mx::Stream stream, std::shared_ptr<PagedCore> core, int64_t position,
              std::string phase, int64_t generation)
      : Primitive(stream),
        core_(std::move(core)),
        position_(position),
        phase_(std::move(phase)),
        generation_(generation) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
    *outputs[0].data<uint8_t>() = 0;
    core_->start(outputs[0]);
    mx::cpu::get_command_encoder(stream()).dispatch(
        [core = core_, keys = borrow(inputs[0]), values = borrow(inputs[1]), position = position_,
         phase = phase_, generation = generation_] {
          core->run(generation, [&](KvikMessage* message) {
            return core->functions->append(core->cache.get(), position, &keys, &values,
                                           phase.c_str(), message);
          });
        });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("kvik: pages are written on the CPU only");
  }
  const char* name() const override { return "KvikPagedAppend"; }

 private:
  std::shared_ptr<PagedCore> core_;
  int64_t position_;
  std::string phase_;
  int64_t generation_;
};

struct AttentionSettings {
  float scale;
  bool causal;
  int64_t sliding_window;
  int64_t kv_len;
  std::vector<float> sinks;
  std::string phase;
};

// Inputs: queries, then (where there is one) the output of the last append.
class PagedAttend : public mx::Primitive {
 public:
  PagedAttend(mx::Stream stream, std::shared_ptr<PagedCore> core,
              std::shared_ptr<const AttentionSettings> settings, int64_t generation)
      : Primitive(stream),
        core_(std::move(core)),
        settings_(std::move(settings)),
        generation_(generation) {}

  // The output lies as [B, q_len, H, D], so that a model can join its heads without a copy.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::array& out = outputs[0];
    const int64_t heads = out.shape(1), rows = out.shape(2), dim = out.shape(3);
    mx::array::Flags flags{};
    flags.contiguous = true;
    flags.row_contiguous = heads == 1 || rows == 1;
    flags.col_contiguous = out.size() <= 1;
    out.set_data(mx::allocator::malloc(out.nbytes()), out.size(),
                 {rows * heads * dim, dim, heads * dim, 1}, flags);
    core_->start(out);
    mx::cpu::get_command_encoder(stream()).dispatch(
        [core = core_, settings = settings_, queries = borrow(inputs[0]),
         to = borrow(out, out.data<char>()), bytes = out.nbytes(), generation = generation_] {
          // Bytes of ones are a NaN in each dtype: what an error leaves behind is no result.
          struct Poison {
            void* data;
            size_t bytes;
            bool done = false;
            ~Poison() {
              if (!done) std::memset(data, 0xff, bytes);
            }
          } poison{to.data, bytes};
          poison.done = core->run(generation, [&](KvikMessage* message) {
            const KvikAttention attention{
                settings->scale,          settings->causal,
                settings->sliding_window, settings->kv_len,
                settings->sinks.data(),   static_cast<int64_t>(settings->sinks.size()),
                settings->phase.c_str()};
            return core->functions->attend(core->cache.get(), &attention, &queries, &to, message);
          });
        });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("kvik: attention over pages runs on the CPU only");
  }
  const char* name() const override { return "KvikPagedAttend"; }

 private:
  std::shared_ptr<PagedCore> core_;
  std::shared_ptr<const AttentionSettings> settings_;
  int64_t generation_;
};

// The nodes of one cache, as Python sees them.
class PagedNodes {
 public:
  // functions: kvik._core._core_functions(); handle: the cache's _handle().
  PagedNodes(nb::capsule functions, nb::capsule handle) : core_(std::make_shared<PagedCore>()) {
    core_->functions =
        static_cast<const KvikCoreFunctions*>(functions.data(KVIK_CORE_FUNCTIONS_NAME));
    if (core_->functions->version != KVIK_CORE_FUNCTIONS_VERSION ||
        core_->functions->bytes != sizeof(KvikCoreFunctions)) {
      throw std::invalid_argument("kvik: kvik._core has other functions than this extension calls");
    }
    core_->cache = {core_->functions->share(handle.data(KVIK_PAGED_CACHE_NAME)),
                    core_->functions->release};
  }
  PagedNodes(const PagedNodes&) = delete;
  PagedNodes& operator=(const PagedNodes&) = delete;
  // Waiting outputs hold nodes, which hold the core.
  ~PagedNodes() { forget(); }

  // Raises for arrays that mx.compile, mx.grad or mx.vmap trace.
  static void refuse_tracers(const mx::array& one, const mx::array& other) {
    refuse_tracer(one);
    refuse_tracer(other);
  }

  // Requires: the core is prepared for the rows.
  void append(const mx::array& keys, const mx::array& values, int64_t position, std::string phase) {
    std::vector<mx::array> inputs{keys, values};
    if (last_) inputs.push_back(*last_);
    const mx::Stream stream = mx::to_stream(mx::StreamOrDevice{}, mx::Device::cpu);
    last_ = mx::array(
        {1}, mx::uint8,
        std::make_shared<PagedAppend>(stream, core_, position, std::move(phase), core_->generation),
        std::move(inputs));
    core_->wait(*last_);
  }

  // Requires: the core would serve the call.
  mx::array attend(const mx::array& queries, int head_dim_v, float scale, bool causal,
                   int64_t sliding_window, int64_t kv_len, std::vector<float> sinks,
                   std::string phase) {
    auto settings = std::make_shared<const AttentionSettings>(AttentionSettings{
        scale, causal, sliding_window, kv_len, std::move(sinks), std::move(phase)});
    std::vector<mx::array> inputs{queries};
    if (last_) inputs.push_back(*last_);
    const mx::Stream stream = mx::to_stream(mx::StreamOrDevice{}, mx::Device::cpu);
    mx::array out(
        {queries.shape(0), queries.shape(1), queries.shape(2), head_dim_v}, queries.dtype(),
        std::make_shared<PagedAttend>(stream, core_, std::move(settings), core_->generation),
        std::move(inputs));
    core_->wait(out);
    return out;
  }

  // What stands for all appends so far, or none before the first.
  std::optional<mx::array> last() const { return last_; }

  // Whether a node is still to run.
  bool busy() const {
    const std::lock_guard lock(core_->mutex);
    return core_->running > 0 || !core_->waiting.empty();
  }
  // Evaluates all nodes. Raises what the evaluation raises.
  void settle() {
    std::vector<mx::array> waiting;
    {
      const std::lock_guard lock(core_->mutex);
      waiting = core_->waiting;
    }
    if (!waiting.empty()) mx::eval(std::move(waiting));
    wait_for_running();
  }
  // Drops the nodes that no evaluation has reached; their rows are never written.
  void drop() {
    wait_for_running();
    forget();
    const std::lock_guard lock(core_->mutex);
    ++core_->generation;
  }
  // The error of a node since the last call.
  std::optional<std::string> take_error() {
    const std::lock_guard lock(core_->mutex);
    if (!core_->error) return std::nullopt;
    // Nodes built before it are of no use.
    ++core_->generation;
    return std::exchange(core_->error, std::nullopt);
  }

 private:
  void wait_for_running() {
    std::unique_lock lock(core_->mutex);
    core_->idle.wait(lock, [&] { return core_->running == 0; });
  }
  // Arrays are dropped outside the lock: what they hold may come back to it.
  void forget() {
    std::vector<mx::array> waiting;
    {
      const std::lock_guard lock(core_->mutex);
      waiting.swap(core_->waiting);
    }
    last_.reset();
  }

  std::shared_ptr<PagedCore> core_;
  std::optional<mx::array> last_;
};

}  // namespace
