#include "kvik/backend/cpu_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>

#include "backend/cpu/attend_plan.h"
#include "backend/cpu/cpu_backend_kernels.h"
#include "kvik/core/checked_math.h"
#include "kvik/core/thread_team.h"

namespace kvik {
namespace {

constexpr int kMaxThreads = 1024;
// Fewer elements than this are encoded by the calling thread: waking the team costs more.
constexpr int64_t kParallelEncodeElements = int64_t{1} << 16;

// A 64-byte aligned array that only grows; its content does not survive growing.
class AlignedArray {
 public:
  AlignedArray() = default;
  AlignedArray(const AlignedArray&) = delete;
  AlignedArray& operator=(const AlignedArray&) = delete;
  ~AlignedArray() { std::free(data_); }

  std::byte* at_least(int64_t bytes) {
    if (bytes > bytes_) {
      std::free(data_);
      bytes_ = round_up(bytes, kLineBytes);
      data_ = static_cast<std::byte*>(
          std::aligned_alloc(static_cast<size_t>(kLineBytes), static_cast<size_t>(bytes_)));
      KVIK_CHECK(data_ != nullptr, "no memory for attention scratch");
      // Rows that no query sees are never used, but a defined value keeps tools quiet.
      std::fill_n(data_, bytes_, std::byte{0});
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Carves the scratch of one thread out of one array.
cpu::AttendScratch carve(AlignedArray& memory, const AttentionCall& call) {
  using cpu::kMaxTaskRows;
  int64_t step_k = 0;
  int64_t step_v = 0;
  for (const Segment& segment : call.segments) {
    const KvView& view = segment.view;
    const bool is_rows = view.layout == KvLayout::rows;
    if (is_packed(view.format.k)) {
      step_k = std::max(step_k, cpu::step_bytes(view.head_dim_k));
    } else if (is_rows) {
      step_k = std::max(step_k, cpu::kTilesPerStep * tile_bytes_k(view.format.k, view.head_dim_k));
    }
    if (is_packed(view.format.v)) {
      step_v = std::max(step_v, cpu::step_bytes(view.head_dim_v));
    } else if (is_rows) {
      step_v = std::max(step_v, cpu::kTilesPerStep * tile_bytes_v(view.format.v, view.head_dim_v));
    }
  }
  cpu::AttendScratch s;
  s.scale = scale_of(call.params, call.q.dim(2));
  s.query_stride = round_up(std::max<int64_t>(call.q.shape[2], 1), kTileLanes);
  s.value_stride = padded_dim_v(call.segments[0].view.head_dim_v);
  const int64_t query_floats = kMaxTaskRows * s.query_stride;
  const int64_t value_floats = kMaxTaskRows * s.value_stride;
  const std::array<std::pair<float**, int64_t>, 10> arrays = {{
      {&s.query, query_floats},
      {&s.prepared, query_floats},
      {&s.integers, query_floats + kMaxTaskRows * kTileLanes},
      {&s.added, kMaxTaskRows},
      {&s.scores, 4 * cpu::kStep},
      {&s.max, kMaxTaskRows},
      {&s.sums, kMaxTaskRows * kTileLanes},
      {&s.acc, value_floats},
      {&s.total_acc, value_floats},
      {&s.total_max, 2 * kMaxTaskRows},
  }};
  int64_t bytes = step_k + step_v;
  for (const auto& [pointer, floats] : arrays) bytes += floats * int64_t{sizeof(float)};
  std::byte* next = memory.at_least(bytes);
  for (const auto& [pointer, floats] : arrays) {
    *pointer = reinterpret_cast<float*>(next);
    next += floats * int64_t{sizeof(float)};
  }
  s.total_sum = s.total_max + kMaxTaskRows;
  s.step_k = next;
  s.step_v = next + step_k;
  return s;
}

const cpu::AttendKernels* kernels_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::scalar:
      return &cpu::kScalarKernels;
    case CpuIsa::avx2:
#ifdef KVIK_HAVE_SPINE_AVX2
      return &cpu::kAvx2Kernels;
#else
      return nullptr;
#endif
    case CpuIsa::avx512:
#ifdef KVIK_HAVE_SPINE_AVX512
      return &cpu::kAvx512Kernels;
#else
      return nullptr;
#endif
  }
  return nullptr;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const cpu::AttendKernels& kernels, std::string name, KernelSet kernel_set,
             std::shared_ptr<ThreadTeam> team)
      : name_(std::move(name)),
        kernels_(&kernels),
        kernel_set_(kernel_set),
        team_(std::move(team)),
        memory_(static_cast<size_t>(team_->size())),
        scratch_(static_cast<size_t>(team_->size())) {}

  bool pin() { return team_->pin(); }

  std::string_view name() const override { return name_; }

  Status supports(const KvSpec& spec, const AttentionParams&) const override { return check(spec); }

  Result<Buffer> reserve(int64_t bytes) override { return Buffer::reserve(bytes); }

  std::optional<int64_t> encode(const MutableKvView& view, const ConstTensorView& k,
                                const ConstTensorView& v, std::span<const int64_t> slots,
                                std::span<const int32_t> positions) override;

  void attend(const AttentionCall& call) override;

 private:
  std::string name_;
  const cpu::AttendKernels* kernels_;
  KernelSet kernel_set_;
  std::mutex mutex_;  // guards all below: one computation at a time
  std::shared_ptr<ThreadTeam> team_;
  cpu::AttendPlan plan_;
  AlignedArray partials_;
  std::vector<AlignedArray> memory_;
  std::vector<cpu::AttendScratch> scratch_;
};

alignas(float) constexpr std::byte kZeroRow[kMaxHeadDim * sizeof(float)] = {};

// What a view stores of a key: its own elements, or what its transform makes of them.
class StoredKey {
 public:
  explicit StoredKey(const MutableKvView& view) : view_(view) {}

  bool encode(std::byte* tile, int slot, const std::byte* key, DType dtype, int head,
              int64_t position) {
    const KeyTransform* const transform = view_.key_transform;
    if (transform == nullptr || transform->store == nullptr) {
      return encode_k_row(view_.format.k, tile, slot, key, dtype, view_.head_dim_k);
    }
    for (int d = 0; d < view_.head_dim_k; ++d)
      row_[d] = load_float(dtype, key + d * dtype_bytes(dtype));
    transform->store(transform->state, head, position, row_, row_);
    return encode_k_row(view_.format.k, tile, slot, reinterpret_cast<const std::byte*>(row_),
                        DType::f32, view_.head_dim_k);
  }

  void encode_zeros(std::byte* tile, int slot) const {
    encode_k_row(view_.format.k, tile, slot, kZeroRow, DType::f32, view_.head_dim_k);
  }

 private:
  const MutableKvView& view_;
  float row_[kMaxHeadDim];
};

// Encodes the rows whose tile is this share's; the index of the first token that is refused, or
// slots.size(). Shares are tiles, since two tokens of one may share a word. A refused row becomes
// zeros, so that its slot shows nobody what lay there before.
int64_t encode_share(const MutableKvView& view, const ConstTensorView& k, const ConstTensorView& v,
                     std::span<const int64_t> slots, std::span<const int32_t> positions, int share,
                     int num_shares) {
  StoredKey stored(view);
  auto refused = static_cast<int64_t>(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t page = slots[i] / view.block_size;
    const int64_t tile = slots[i] % view.block_size / kTileTokens;
    const int slot = static_cast<int>(slots[i] % kTileTokens);
    const auto token = static_cast<int64_t>(i);
    for (int head = 0; head < view.num_kv_heads; ++head) {
      if ((slots[i] / kTileTokens * view.num_kv_heads + head) % num_shares != share) continue;
      std::byte* const key = k_tile(view, page, tile, head);
      std::byte* const value = v_tile(view, page, tile, head);
      if (!stored.encode(key, slot, k.at(token, head), k.dtype, head, positions[i])) {
        stored.encode_zeros(key, slot);
        refused = std::min(refused, token);
      }
      if (!encode_v_row(view.format.v, value, slot, v.at(token, head), v.dtype, view.head_dim_v)) {
        encode_v_row(view.format.v, value, slot, kZeroRow, DType::f32, view.head_dim_v);
        refused = std::min(refused, token);
      }
    }
  }
  return refused;
}

std::optional<int64_t> CpuBackend::encode(const MutableKvView& view, const ConstTensorView& k,
                                          const ConstTensorView& v, std::span<const int64_t> slots,
                                          std::span<const int32_t> positions) {
  const auto count = static_cast<int64_t>(slots.size());
  const int64_t elements = count * view.num_kv_heads * (int64_t{view.head_dim_k} + view.head_dim_v);
  if (elements < kParallelEncodeElements) {
    const int64_t refused = encode_share(view, k, v, slots, positions, 0, 1);
    return refused < count ? std::optional(refused) : std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  std::atomic<int64_t> first_refused{count};
  team_->run([&](int thread) {
    const int64_t refused = encode_share(view, k, v, slots, positions, thread, team_->size());
    int64_t seen = first_refused.load();
    while (refused < seen && !first_refused.compare_exchange_weak(seen, refused)) {
    }
  });
  return first_refused < count ? std::optional(first_refused.load()) : std::nullopt;
}

void CpuBackend::attend(const AttentionCall& call) {
  const std::lock_guard lock(mutex_);
  plan_.build(call, team_->size());
  plan_.place_partials(
      reinterpret_cast<float*>(partials_.at_least(plan_.partial_count() * int64_t{sizeof(float)})));
  for (size_t i = 0; i < scratch_.size(); ++i) {
    scratch_[i] = carve(memory_[i], call);
    scratch_[i].uses_integers = kernel_set_ == KernelSet::fast;
  }
  const auto run_share = [&](int thread) {
    const auto t = static_cast<size_t>(thread);
    for (int i = plan_.thread_begin()[t]; i < plan_.thread_begin()[t + 1]; ++i) {
      kernels_->attend(call, plan_.tasks()[static_cast<size_t>(i)], scratch_[t]);
    }
  };
  team_->run(run_share);
  if (plan_.merges().empty()) return;
  team_->run([&](int thread) {
    const Range share =
        static_share(static_cast<int64_t>(plan_.merges().size()), thread, team_->size());
    for (int64_t i = share.begin; i < share.end; ++i) {
      kernels_->merge(call, plan_.merges()[static_cast<size_t>(i)],
                      scratch_[static_cast<size_t>(thread)]);
    }
  });
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options) {
  if (options.num_threads < 1 || options.num_threads > kMaxThreads) {
    return invalid_argument("num_threads is " + std::to_string(options.num_threads) +
                            "; it must lie in 1 to " + std::to_string(kMaxThreads));
  }
  const std::vector<CpuIsa> isas = available_cpu_isas(options.features);
  const CpuIsa isa = options.isa.value_or(isas.front());
  if (std::find(isas.begin(), isas.end(), isa) == isas.end()) {
    std::string names;
    for (const CpuIsa each : isas) names += " " + std::string(cpu_isa_name(each));
    return unsupported("this processor or build has no kernels for " +
                       std::string(cpu_isa_name(isa)) + "; available:" + names);
  }
  std::shared_ptr<ThreadTeam> team = options.team;
  if (team == nullptr) {
    Result<ThreadTeam> own = ThreadTeam::create(options.num_threads);
    if (!own.ok()) return own.status();
    team = std::make_shared<ThreadTeam>(std::move(own).value());
  }
  const char* const suffix = options.kernel_set == KernelSet::exact ? "-exact" : "";
  auto backend = std::make_unique<CpuBackend>(*kernels_of(isa),
                                              "cpu-" + std::string(cpu_isa_name(isa)) + suffix,
                                              options.kernel_set, std::move(team));
  if (options.pin_threads && !backend->pin()) {
    return unsupported("cannot pin " + std::to_string(options.num_threads) + " threads to " +
                       std::to_string(num_usable_processors()) + " usable processors");
  }
  return std::unique_ptr<Backend>(std::move(backend));
}

namespace cpu {

std::unique_ptr<Backend> make_backend_of_kernels(const AttendKernels& kernels, std::string name,
                                                 KernelSet kernel_set, int num_threads) {
  return std::make_unique<CpuBackend>(
      kernels, std::move(name), kernel_set,
      std::make_shared<ThreadTeam>(ThreadTeam::create(num_threads).value()));
}

}  // namespace cpu
}  // namespace kvik
