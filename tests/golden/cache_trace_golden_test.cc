// The recorded traces of stock caches, replayed on Kvik's caches.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kvik/backend/cpu_backend.h"
#include "kvik/layer_cache/block_owned_kv_cache.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "support/layer_rows.h"
#include "support/sha256.h"

namespace kvik::test {
namespace {

using nlohmann::json;

const json& traces() {
  static const json kTraces =
      json::parse(std::ifstream(KVIK_GOLDEN_DIR "/cache_contract/traces.json"));
  return kTraces["traces"];
}

DType dtype_of(const json& name) {
  return name == "f16" ? DType::f16 : name == "bf16" ? DType::bf16 : DType::f32;
}

void expect_array(const ConstTensorView& array, const json& want) {
  for (int d = 0; d < 4; ++d) EXPECT_EQ(array.dim(d), want["shape"][size_t(d)].get<int64_t>());
  const std::string dtype = array.dtype == DType::f32   ? "float32"
                            : array.dtype == DType::f16 ? "float16"
                                                        : "bfloat16";
  EXPECT_EQ(dtype, want["dtype"]);
  EXPECT_EQ(sha256_hex(bytes_of(array)), want["sha256"]);
}

void expect_mask(const CausalMask& mask, const json& want) {
  const std::string kind = mask.kind == MaskKind::none     ? "none"
                           : mask.kind == MaskKind::causal ? "causal"
                                                           : "array";
  ASSERT_EQ(kind, want["kind"]);
  if (mask.kind != MaskKind::array) return;
  EXPECT_EQ(mask.num_rows, want["shape"][0].get<int64_t>());
  EXPECT_EQ(mask.num_cols, want["shape"][1].get<int64_t>());
  EXPECT_EQ(sha256_hex(mask.data), want["sha256"]);
}

std::optional<int64_t> optional_number(const json& value) {
  if (value.is_null()) return std::nullopt;
  return value.get<int64_t>();
}

// Stock says after a trim to zero that it is not empty; so does the tail-owned cache. The others
// say empty, as MTPLX's do.
template <class Cache>
constexpr bool kEmptyAfterTrimToZero = !std::is_same_v<Cache, TailOwnedKVCache>;

// exact: the arrays are compared by their digests. shapes: they are low-bit in a format of ours, so
// that their shapes and all numbers are.
enum class Compare : uint8_t { exact, shapes };

template <class Cache>
class Replay {
 public:
  Replay(const json& trace, std::function<Cache()> make, Compare compare = Compare::exact)
      : trace_(trace), make_(std::move(make)), compare_(compare) {
    caches_.emplace("a", make_());
  }

  void run() {
    for (const json& op : trace_["ops"]) {
      SCOPED_TRACE(op["op"].get<std::string>() + " on " + op["on"].get<std::string>());
      step(op);
      const Cache& cache = caches_.at(op["on"]);
      const json& after = op["after"];
      EXPECT_EQ(cache.offset(), after["offset"]);
      // Of a quantized cache stock says 0 always.
      EXPECT_EQ(cache.size(), after[compare_ == Compare::exact ? "size" : "offset"]);
      EXPECT_EQ(cache.is_trimmable(), after["trimmable"]);
      if (!kEmptyAfterTrimToZero<Cache> || cache.offset() > 0) {
        EXPECT_EQ(cache.empty(), after["empty"]);
      }
      EXPECT_GE(cache.capacity(), cache.offset());
      if (::testing::Test::HasFailure()) return;
    }
  }

 private:
  void step(const json& op) {
    Cache& cache = caches_.at(op["on"]);
    const std::string kind = op["op"];
    if (kind == "update") {
      const auto& s = trace_["shape"];
      const DType dtype = dtype_of(trace_["dtype"]);
      const LayerRows rows({s[0], s[1], s[2], s[3], dtype, dtype}, op["S"], op["k_seed"],
                           op["v_seed"]);
      Result<KvArrays> all = cache.update_and_fetch(rows.keys(), rows.values());
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      if (compare_ == Compare::shapes) {
        EXPECT_EQ(all->keys.shape, (std::array<int64_t, 4>{s[0], s[1], cache.offset(), s[2]}));
        EXPECT_EQ(all->values.shape, (std::array<int64_t, 4>{s[0], s[1], cache.offset(), s[3]}));
        return;
      }
      expect_array(all->keys, op["keys"]);
      expect_array(all->values, op["values"]);
    } else if (kind == "trim") {
      EXPECT_EQ(cache.trim(op["n"].get<int64_t>()), op["returned"].get<int64_t>());
    } else if (kind == "mask") {
      Result<CausalMask> mask = cache.make_mask(
          op["N"].get<int64_t>(), op["return_array"].get<bool>(), optional_number(op["window"]));
      ASSERT_TRUE(mask.ok());
      expect_mask(*mask, op["mask"]);
    } else if (kind == "fork") {
      caches_.emplace(op["to"].get<std::string>(), cache.fork());
    } else if (kind == "reload") {
      Cache fresh = make_();
      ASSERT_TRUE(fresh.set_state(rows_of_state(cache.state())).ok());
      ASSERT_TRUE(fresh.set_meta_state(cache.meta_state()).ok());
      cache = std::move(fresh);
      const std::optional<KvArrays> live = rows_of_state(cache.state());
      ASSERT_TRUE(live.has_value());
      if (compare_ == Compare::shapes) return;
      expect_array(live->keys, op["live_keys"]);
      expect_array(live->values, op["live_values"]);
    } else {
      FAIL() << "unknown operation " << kind;
    }
  }

  const json& trace_;
  std::function<Cache()> make_;
  Compare compare_;
  std::map<std::string, Cache> caches_;
};

template <class Cache>
void replay_all(const char* name, Cache (*make)()) {
  int run = 0;
  int operations = 0;
  std::string left_out;
  for (const json& trace : traces()) {
    const std::string id = trace["id"];
    if (trace["class"] != "KVCache") {
      left_out += " " + id;
      continue;
    }
    SCOPED_TRACE(id);
    Replay<Cache>(trace, make).run();
    ++run;
    operations += static_cast<int>(trace["ops"].size());
  }
  std::printf("%s: %d traces of %zu ran, %d operations; left out:%s (other kinds of cache)\n", name,
              run, traces().size(), operations, left_out.c_str());
  EXPECT_EQ(run, 10);
}

TEST(CacheTraces, TailOwnedAnswersAsTheStockCache) {
  replay_all<TailOwnedKVCache>("tail-owned", [] { return TailOwnedKVCache::create().value(); });
}

TEST(CacheTraces, BlockOwnedAnswersAsTheStockCache) {
  replay_all<BlockOwnedKVCache>("block-owned",
                                [] { return BlockOwnedKVCache::create({48}).value(); });
}

TEST(CacheTraces, PagedAnswersAsTheStockCache) {
  replay_all<PagedKVCache>("paged", [] {
    PagedKVCacheOptions options;
    options.block_size = 12;
    options.num_blocks = 1;
    options.dynamic = true;
    return PagedKVCache::create(options, make_cpu_backend({}).value()).value();
  });
}

TEST(CacheTraces, LowBitCachesAnswerAsTheStockQuantizedCache) {
  int run = 0;
  for (const json& trace : traces()) {
    if (trace["class"] != "QuantizedKVCache") continue;
    SCOPED_TRACE(trace["id"].get<std::string>());
    const int bits = trace["ctor"]["bits"];
    PagedKVCacheOptions options;
    options.block_size = 12;
    options.num_blocks = 1;
    options.dynamic = true;
    if (bits == 2) {
      options.turboquant = TurboQuantConfig{KvCode::tqk_int2, KvCode::tqv_q2_0};
    } else {
      options.kv_quant = KvQuantConfig{bits == 8 ? KvCode::q8 : KvCode::q4};
    }
    const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
    const auto make = [&] { return PagedKVCache::create(options, backend).value(); };
    Replay<PagedKVCache>(trace, make, Compare::shapes).run();
    ++run;
  }
  EXPECT_EQ(run, 3);
}

TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string abc = "abc";
  EXPECT_EQ(sha256_hex(std::as_bytes(std::span(abc))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace kvik::test
