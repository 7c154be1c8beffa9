// Nodes of MLX's lazy graph: appends to memory that MLX's arrays alias, appends to Kvik's pages and
// attention over them.
//
// Rows of one cache tensor, appended in place:
// A region reserves addresses for max_rows rows of every head, [B * H][max_rows][D]; memory backs
// them as they are populated or written. An array that append() or view() returns is a strided view
// of the first rows and registers their number until its last reference (the graph's and pending
// tasks' included) is gone. append() writes at a position only while every registered view ends at
// or below it, so written rows never change under a reader.
//
// Compiled by `python -m kvik.mlx.build` against the installed MLX; CPU back end, Linux.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core_functions.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "mlx/utils.h"
#include "mlx/version.h"

namespace nb = nanobind;
namespace mx = mlx::core;

namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kDataOffset = 64;  // the first row; MLX's byte count lies in the word before
// Heads start this much off a multiple of a page, so that equal rows of different heads do not
// fall into the same cache sets.
constexpr int64_t kStaggerBytes = 17 * 64;

constexpr const char* kNoTransform =
    "kvik: a cache cannot be updated or attended to inside mx.compile, mx.grad or mx.vmap";

void refuse_tracer(const mx::array& array) {
  if (array.is_tracer()) throw std::invalid_argument(kNoTransform);
}

// The memory and the register of visible rows. Threads: any.
class Region {
 public:
  Region(int64_t num_heads, int64_t head_bytes, int64_t max_rows, int64_t row_bytes)
      : num_heads_(num_heads), row_bytes_(row_bytes), max_rows_(max_rows), head_bytes_(head_bytes) {
    mapped_ = kDataOffset + num_heads * head_bytes;
    void* base = mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(base);
    // A huge page per head would be resident for the sake of a few rows.
    madvise(base_, static_cast<size_t>(mapped_), MADV_NOHUGEPAGE);
    const auto bytes = static_cast<size_t>(mapped_ - kDataOffset);
    std::memcpy(base_ + kDataOffset - sizeof bytes, &bytes, sizeof bytes);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { munmap(base_, static_cast<size_t>(mapped_)); }

  char* data() const { return base_ + kDataOffset; }
  mx::allocator::Buffer buffer() const {
    return mx::allocator::Buffer(base_ + kDataOffset - sizeof(size_t));
  }
  int64_t max_rows() const { return max_rows_; }
  int64_t head_bytes() const { return head_bytes_; }

  // Backs rows [begin, end) of every head with memory before they are written.
  void populate(int64_t begin, int64_t end) const {
#ifdef MADV_POPULATE_WRITE
    for (int64_t head = 0; head < num_heads_; ++head) {
      const int64_t from = kDataOffset + head * head_bytes_ + begin * row_bytes_;
      const int64_t to = kDataOffset + head * head_bytes_ + end * row_bytes_;
      const int64_t first = from / kPageBytes * kPageBytes;
      // Where the kernel cannot, the first write does it.
      madvise(base_ + first, static_cast<size_t>(to - first), MADV_POPULATE_WRITE);
    }
#endif
  }

  int64_t resident_bytes() const {
    const auto pages = static_cast<size_t>((mapped_ + kPageBytes - 1) / kPageBytes);
    std::vector<unsigned char> in_memory(pages);
    if (mincore(base_, static_cast<size_t>(mapped_), in_memory.data()) != 0) return 0;
    return kPageBytes * std::count_if(in_memory.begin(), in_memory.end(),
                                      [](unsigned char page) { return (page & 1) != 0; });
  }

  void show(int64_t rows) {
    const std::lock_guard lock(mutex_);
    ++visible_[rows];
  }
  // Whether no row from `position` on is visible; if so, `rows` rows are from now on.
  bool claim(int64_t position, int64_t rows) {
    const std::lock_guard lock(mutex_);
    if (!visible_.empty() && visible_.rbegin()->first > position) return false;
    ++visible_[rows];
    return true;
  }
  void hide(int64_t rows) {
    const std::lock_guard lock(mutex_);
    const auto found = visible_.find(rows);
    if (--found->second == 0) visible_.erase(found);
  }
  int64_t visible_rows() {
    const std::lock_guard lock(mutex_);
    return visible_.empty() ? 0 : visible_.rbegin()->first;
  }

 private:
  int64_t num_heads_, row_bytes_, max_rows_, head_bytes_;
  int64_t mapped_ = 0;
  char* base_ = nullptr;
  std::mutex mutex_;
  std::map<int64_t, int64_t> visible_;  // rows of a view -> number of such views
};

// Keeps a registered view and its region alive.
class Visible {
 public:
  // Takes over a registration that was made already.
  Visible(std::shared_ptr<Region> region, int64_t rows) : region_(std::move(region)), rows_(rows) {}
  Visible(const Visible&) = delete;
  Visible& operator=(const Visible&) = delete;
  ~Visible() { region_->hide(rows_); }
  const std::shared_ptr<Region>& region() const { return region_; }

 private:
  std::shared_ptr<Region> region_;
  int64_t rows_;
};

// Points `out`, [B, H, rows, D], at the first rows of its region.
void alias(mx::array& out, const std::shared_ptr<Visible>& visible) {
  const Region& region = *visible->region();
  const auto head =
      static_cast<int64_t>(region.head_bytes() / static_cast<int64_t>(out.itemsize()));
  const int64_t heads = out.shape(1), rows = out.shape(2), dim = out.shape(3);
  const int64_t last_head = (static_cast<int64_t>(out.shape(0)) * heads - 1) * head;
  const bool one_head = last_head == 0;
  mx::array::Flags flags{};
  flags.contiguous = one_head;
  flags.row_contiguous = one_head;
  flags.col_contiguous = one_head && (rows == 1 || dim == 1);
  out.set_data(mx::allocator::Data(region.buffer(), [visible](mx::allocator::Buffer) {}),
               static_cast<size_t>(last_head + rows * dim), {heads * head, head, dim, 1}, flags);
}

// Rows as they lie in their source.
struct RowSource {
  const char* data;
  int64_t batch, heads, rows, dim, itemsize;
  mx::Strides strides;  // elements
};

void copy_row(const char* from, int64_t stride, int64_t dim, int64_t itemsize, char* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(dim * itemsize));
    return;
  }
  for (int64_t i = 0; i < dim; ++i) {
    std::memcpy(to + i * itemsize, from + i * stride * itemsize, static_cast<size_t>(itemsize));
  }
}

void write_rows(const RowSource& source, const Region& region, int64_t position) {
  const int64_t row_bytes = source.dim * source.itemsize;
  for (int64_t b = 0; b < source.batch; ++b) {
    for (int64_t h = 0; h < source.heads; ++h) {
      const char* from =
          source.data + (b * source.strides[0] + h * source.strides[1]) * source.itemsize;
      char* to =
          region.data() + (b * source.heads + h) * region.head_bytes() + position * row_bytes;
      if (source.strides[3] == 1 && source.strides[2] == source.dim) {
        std::memcpy(to, from, static_cast<size_t>(source.rows * row_bytes));
        continue;
      }
      for (int64_t row = 0; row < source.rows; ++row) {
        copy_row(from + row * source.strides[2] * source.itemsize, source.strides[3], source.dim,
                 source.itemsize, to + row * row_bytes);
      }
    }
  }
}

// Inputs: the new rows, then (unless the region was empty) the array of the rows before them, for
// the order alone. One output: MLX never frees the inputs of a primitive with several early enough.
class AppendRows : public mx::Primitive {
 public:
  AppendRows(mx::Stream stream, std::shared_ptr<Visible> visible, int64_t position)
      : Primitive(stream), visible_(std::move(visible)), position_(position) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    alias(outputs[0], visible_);
    const mx::array& rows = inputs[0];
    RowSource source{rows.data<char>(), rows.shape(0), rows.shape(1),
                     rows.shape(2),     rows.shape(3), static_cast<int64_t>(rows.itemsize()),
                     rows.strides()};
    mx::cpu::get_command_encoder(stream()).dispatch(
        [source = std::move(source), visible = visible_, position = position_] {
          write_rows(source, *visible->region(), position);
        });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("kvik: appending in place runs on the CPU only");
  }
  const char* name() const override { return "KvikAppendRows"; }

 private:
  std::shared_ptr<Visible> visible_;
  int64_t position_;
};

// The rows of one tensor, as Python sees them.
class TailRegion {
 public:
  // Rows [batch, heads, T, dim] of the dtype of `like`. Reserves at least min_rows rows and, where
  // the system has that many addresses, max_rows.
  TailRegion(const mx::array& like, int64_t min_rows, int64_t max_rows)
      : batch_(like.shape(0)), heads_(like.shape(1)), dim_(like.shape(3)), dtype_(like.dtype()) {
    const int64_t row_bytes = dim_ * static_cast<int64_t>(like.itemsize());
    if (row_bytes == 0 || batch_ * heads_ == 0) {
      throw std::invalid_argument("kvik: a region needs rows of at least one byte");
    }
    for (int64_t rows = std::max(min_rows, max_rows);; rows = std::max(min_rows, rows / 2)) {
      try {
        const int64_t head_bytes =
            (rows * row_bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kStaggerBytes;
        region_ = std::make_shared<Region>(batch_ * heads_, head_bytes, rows, row_bytes);
        return;
      } catch (const std::bad_alloc&) {
        if (rows == min_rows) throw;
      }
    }
  }

  int64_t max_rows() const { return region_->max_rows(); }
  void populate(int64_t begin, int64_t end) const { region_->populate(begin, end); }
  int64_t resident_bytes() const { return region_->resident_bytes(); }
  int64_t visible_rows() const { return region_->visible_rows(); }

  // Appends at `position`; none where a row from there on is visible elsewhere, or no room is left.
  std::optional<mx::array> append(const mx::array& rows, const std::optional<mx::array>& before,
                                  int64_t position) const {
    refuse_tracer(rows);
    if (rows.ndim() != 4 || rows.shape(0) != batch_ || rows.shape(1) != heads_ ||
        rows.shape(3) != dim_ || rows.dtype() != dtype_) {
      throw std::invalid_argument("kvik: rows of another shape or dtype than the region's");
    }
    const int64_t end = position + rows.shape(2);
    if (end > region_->max_rows() || !region_->claim(position, end)) return std::nullopt;
    std::vector<mx::array> inputs{rows};
    if (before) inputs.push_back(*before);
    const mx::Stream stream = mx::to_stream(mx::StreamOrDevice{}, mx::Device::cpu);
    return mx::array(
        shape(end), dtype_,
        std::make_shared<AppendRows>(stream, std::make_shared<Visible>(region_, end), position),
        std::move(inputs));
  }

  // The first rows. Requires: they are written (evaluate the array of the last append before).
  mx::array view(int64_t rows) const {
    region_->show(rows);
    mx::array out(shape(rows), dtype_, nullptr, {});
    alias(out, std::make_shared<Visible>(region_, rows));
    out.set_status(mx::array::Status::available);
    return out;
  }

 private:
  mx::Shape shape(int64_t rows) const {
    return {static_cast<int>(batch_), static_cast<int>(heads_), static_cast<int>(rows),
            static_cast<int>(dim_)};
  }

  int64_t batch_, heads_, dim_;
  mx::Dtype dtype_;
  std::shared_ptr<Region> region_;
};

// An array whose content a Python function gives when, and only if, it is evaluated.
class Deferred : public mx::Primitive {
 public:
  Deferred(mx::Stream stream, nb::callable make)
      : Primitive(stream),
        make_(new nb::callable(std::move(make)), [](nb::callable* held) { release(held); }) {}

  // The function runs here, on the thread that evaluates, and not on the stream's. The inputs are
  // the rows that must have been written before.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    if (!inputs.empty()) mx::synchronize(stream());
    const nb::gil_scoped_acquire gil;
    const auto made = nb::cast<mx::array>((*make_)());
    if (made.shape() != outputs[0].shape() || made.dtype() != outputs[0].dtype() ||
        !made.is_available()) {
      throw std::runtime_error("kvik: rows that were to be read later are no longer there");
    }
    outputs[0].copy_shared_buffer(made);
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("kvik: rows are read on the CPU only");
  }
  const char* name() const override { return "KvikDeferred"; }

 private:
  // Graphs are dropped on any thread, while the interpreter ends, and after it ended.
  static void release(nb::callable* held) {
    if (Py_IsInitialized() != 0) {
      const nb::gil_scoped_acquire gil;
      delete held;
    } else if (current_thread_state() != nullptr) {
      delete held;  // ending, on its own thread
    }
  }
  static PyThreadState* current_thread_state() {
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked();
#else
    return _PyThreadState_UncheckedGet();
#endif
  }

  std::shared_ptr<nb::callable> make_;
};

// `make` takes nothing and returns an evaluated array of this shape and dtype; it is called after
// `after` has been evaluated.
mx::array deferred(const std::vector<int>& shape, mx::Dtype dtype, nb::callable make,
                   const std::optional<mx::array>& after) {
  const mx::Stream stream = mx::to_stream(mx::StreamOrDevice{}, mx::Device::cpu);
  std::vector<mx::array> inputs;
  if (after) inputs.push_back(*after);
  return mx::array(mx::Shape(shape.begin(), shape.end()), dtype,
                   std::make_shared<Deferred>(stream, std::move(make)), std::move(inputs));
}

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

// Whether `array` is `of`, perhaps behind mx.depends: the same rows in the same memory.
bool is_same_rows(const mx::array& array, const mx::array& of) {
  const mx::array* at = &array;
  while (at->id() != of.id()) {
    if (!at->has_primitive() || std::strcmp(at->primitive().name(), "Depends") != 0) return false;
    at = &at->inputs()[static_cast<size_t>(at->sibling_position())];
  }
  return true;
}

// Whether this MLX keeps CPU buffers as this file assumes: a byte count (at least what was asked
// for: buffers are used again), then the data.
bool has_expected_buffers() {
  constexpr size_t kBytes = 4096;
  mx::allocator::Data data = mx::allocator::malloc(kBytes);
  mx::allocator::Buffer buffer = data.buffer();
  size_t bytes = 0;
  std::memcpy(&bytes, buffer.ptr(), sizeof bytes);
  return static_cast<char*>(buffer.raw_ptr()) ==
             static_cast<char*>(buffer.ptr()) + sizeof(size_t) &&
         bytes >= kBytes && mx::allocator::allocator().size(buffer) == bytes;
}

}  // namespace

NB_MODULE(KVIK_MODULE, m) {
  m.attr("built_for") = nb::make_tuple(MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH);
  m.attr("running_with") = mx::version();
  m.def("has_expected_buffers", &has_expected_buffers);
  m.def("is_same_rows", &is_same_rows, nb::arg("array"), nb::arg("of"));
  m.def("deferred", &deferred, nb::arg("shape"), nb::arg("dtype"), nb::arg("make"),
        nb::arg("after").none() = nb::none());
  nb::class_<TailRegion>(m, "TailRegion")
      .def(nb::init<const mx::array&, int64_t, int64_t>(), nb::arg("like"), nb::arg("min_rows"),
           nb::arg("max_rows"))
      .def_prop_ro("max_rows", &TailRegion::max_rows)
      .def_prop_ro("visible_rows", &TailRegion::visible_rows)
      .def_prop_ro("resident_bytes", &TailRegion::resident_bytes)
      .def("populate", &TailRegion::populate, nb::arg("begin"), nb::arg("end"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("append", &TailRegion::append, nb::arg("rows"), nb::arg("before").none(),
           nb::arg("position"))
      .def("view", &TailRegion::view, nb::arg("rows"));
  nb::class_<PagedNodes>(m, "PagedNodes")
      .def(nb::init<nb::capsule, nb::capsule>(), nb::arg("functions"), nb::arg("handle"))
      .def_static("refuse_tracers", &PagedNodes::refuse_tracers, nb::arg("one"), nb::arg("other"))
      .def("append", &PagedNodes::append, nb::arg("keys"), nb::arg("values"), nb::arg("position"),
           nb::arg("phase"))
      .def("attend", &PagedNodes::attend, nb::arg("queries"), nb::arg("head_dim_v"),
           nb::arg("scale"), nb::arg("causal"), nb::arg("sliding_window"), nb::arg("kv_len"),
           nb::arg("sinks"), nb::arg("phase"))
      .def_prop_ro("last", &PagedNodes::last)
      .def_prop_ro("busy", &PagedNodes::busy)
      .def("settle", &PagedNodes::settle, nb::call_guard<nb::gil_scoped_release>())
      .def("drop", &PagedNodes::drop, nb::call_guard<nb::gil_scoped_release>())
      .def("take_error", &PagedNodes::take_error);
}
