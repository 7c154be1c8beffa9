// Runs of tokens taken out of the middle of a sequence.
#include <numeric>
#include <string>

#include "cache/plan_state.h"
#include "kvik/cache/cache_set.h"

namespace kvik {
namespace {

std::string num(int64_t x) { return std::to_string(x); }

constexpr const char* kWhatWorks =
    "tq8, tq4, tq3, tq2, tcq4, tcq3 and tcq2 keys with a key calibration can be moved";

// Unless the keys of every layer lie in frames.
Status check_frames(const internal::CacheCore& core) {
  for (size_t layer = 0; layer < core.framed_keys.size(); ++layer) {
    if (core.framed_keys[layer] != nullptr) continue;
    const KvCode code = core.options.spec.layers[layer].k;
    return unsupported("layer " + num(static_cast<int64_t>(layer)) + " stores keys as " +
                       std::string(kv_code_name(code)) +
                       (is_rotated(code) ? " without a key calibration" : "") +
                       ", bound to their positions; " + kWhatWorks);
  }
  return {};
}

}  // namespace

Result<int64_t> PagedCache::drop_unit() const {
  const PagedCacheOptions& options = core_->options;
  if (options.contiguous) {
    return unsupported("a contiguous cache cannot take blocks out; make it paged");
  }
  if (Status status = check_frames(*core_); !status.ok()) return status;
  if (options.spec.key_calibration == nullptr) return int64_t{options.block_size};  // no layers
  return std::lcm(int64_t{options.spec.key_calibration->frame}, int64_t{options.block_size});
}

void PagedCache::apply_drop(Sequence& sequence, int begin, int count) {
  const PagedCacheOptions& options = core_->options;
  BlockTable& table = sequence.state_->tables[static_cast<size_t>(core_->table_idx)];
  if (options.first_tokens) return;  // all of them lie before `begin`
  const int block = begin / options.block_size;
  // Which rows before `begin` a window has given back so far depends on blocks and slack; that
  // later tokens see none of them does not.
  if (options.window && sequence.num_cached() + int64_t{1} > *options.window) {
    table.forget_before(block);
  }
  table.erase(block, count / options.block_size, options.block_size);
}

Result<int> CacheSet::drop_unit() const {
  int64_t unit = 1;
  for (size_t i = 0; i < exact_.size(); ++i) {
    const Result<int64_t> own = caches_[i].drop_unit();
    if (!own.ok()) {
      return Status(own.status().code(),
                    "cache " + num(static_cast<int64_t>(i)) + ": " + own.status().message());
    }
    if (exact_[i].recent) {
      return unsupported("cache " + num(static_cast<int64_t>(i)) +
                         ": exact recent rows are bound to their positions; set exact_recent to 0");
    }
    unit = std::lcm(unit, *own);
    if (unit > INT32_MAX) {
      return unsupported(
          "the frames and block sizes of the set have no common multiple below "
          "2^31; use block sizes that are powers of two");
    }
  }
  return static_cast<int>(unit);
}

Status CacheSet::drop_tokens(Sequence& sequence, int begin, int count) {
  if (Status status = caches_[0].check_owned(sequence); !status.ok()) return status;
  if (Status status = PagedCache::check_no_plan(*sequence.state_); !status.ok()) return status;
  const Result<int> unit = drop_unit();
  if (!unit.ok()) return unit.status();
  const std::string run = "dropping " + num(count) + " tokens from position " + num(begin);
  if (begin < 0 || count < 0 || begin % *unit != 0 || count % *unit != 0) {
    return invalid_argument(run + ": both must be multiples of " + num(*unit) +
                            ", the least that frames and blocks have in common");
  }
  for (const ExactRows& exact : exact_) {
    if (exact.first && begin < exact.num_first) {
      return invalid_argument(run + ": the first " + num(exact.num_first) +
                              " tokens are exact, bound to their positions; begin after them");
    }
  }
  if (int64_t{begin} + count > sequence.num_cached()) {
    return invalid_argument(run + ": the sequence holds " + num(sequence.num_cached()));
  }
  if (count == 0) return {};
  for (PagedCache& cache : caches_) cache.apply_drop(sequence, begin, count);
  sequence.state_->num_cached -= count;
  return {};
}

}  // namespace kvik
