// Options of the paged one-layer cache, and its rules for numbers of blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/core/dtype.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/format/packed_code.h"

namespace kvik {

// What a request is doing; counters are kept by phase.
enum class PagedPhase : uint8_t { prefill, decode_verify, ar_decode, postcommit, unknown };

// "prefill", "decode_verify", "ar_decode", "postcommit", "unknown".
KVIK_API std::string_view paged_phase_name(PagedPhase phase);
// Any other text is unknown.
KVIK_API PagedPhase parse_paged_phase(std::string_view name);

// How attention reads the rows.
//   paged   the kernel reads the pages
//   gather  the rows are first copied into contiguous arrays
// Where rows are stored as they came, both give the same bits. In a low-bit cache they are called
// packed and mirror and round differently: packed reads the codes where they lie; mirror reads a
// decoded copy that the cache keeps beside them, to which a call adds the rows that are new.
enum class PagedRoute : uint8_t { paged, gather, packed = paged, mirror = gather };

// "paged", "gather"; of a low-bit cache "packed", "mirror".
KVIK_API std::string_view paged_route_name(PagedRoute route, bool low_bit = false);
// Reads the names of attention implementations: mirror, dequant, gather, fast_sdpa_gather,
// sdpa_gather and exact_gather are gather; "", auto, vllm_metal, paged, packed, kernel,
// sdpa_2pass_paged, mlx_vector_paged, fp32_paged and paged_fp32 are paged, which serves every
// format, length, mask and window and so is the automatic choice. Errors: invalid_argument that
// lists the names.
KVIK_API Result<PagedRoute> parse_paged_route(std::string_view name);

// Low-bit storage (the parsers of names are parse_kv_quant_mode and its sisters in
// format/packed_code.h).
struct KvQuantConfig {
  std::optional<KvCode> mode = KvCode::q8;           // q8, q6 or q4, of K and V; none: off
  std::optional<DType> mirror_dtype = std::nullopt;  // none: that of the rows
};

struct TurboQuantConfig {
  KvCode k_quant = KvCode::tqk_q8_0;                 // one of tqk_*
  KvCode v_quant = KvCode::tqv_q3_0;                 // one of tqv_*
  std::optional<DType> mirror_dtype = std::nullopt;  // none: that of the rows
};

struct PagedKVCacheOptions {
  int64_t block_size = 16;    // tokens, at least 1; see PagedKVCache on sizes that are odd
  int64_t num_blocks = 1024;  // blocks of each batch row
  // Whether num_blocks may grow, by grow_num_blocks, up to the window or to max_tokens.
  bool dynamic = false;
  std::optional<int64_t> context_window = std::nullopt;  // tokens; no more are ever taken
  int64_t max_tokens = int64_t{1} << 20;  // of a batch row; the limit of growth without a window
  std::optional<TurboQuantConfig> turboquant = std::nullopt;  // wins if both are set
  std::optional<KvQuantConfig> kv_quant = std::nullopt;
  // Any two codes, K and V apart, where neither of the above is set; none of all: rows are stored
  // as they come.
  std::optional<KvFormat> format = std::nullopt;

  PagedRoute route = PagedRoute::paged;
  std::optional<int64_t> sliding_window = std::nullopt;  // overrides that of every call
  // Queries of one call beyond which paged attention declines ("q_len_gt_max"), unless
  // `partitioned` and at least partition_threshold tokens are cached. None: no limit, for the
  // kernel has none.
  std::optional<int64_t> max_q_len = std::nullopt;
  bool partitioned = false;
  int64_t partition_threshold = 2048;
  // Makes attend() an error where paged attention declines.
  bool forbid_dense_fallback = false;
  // Makes state() an error from partition_threshold tokens on ("materialize active K/V arrays").
  bool forbid_active_arrays = false;
  // Called when a call is first served in another way than asked for, once per cache and reason;
  // the text says why. On the thread of the call; must not use the cache.
  std::function<void(const std::string&)> on_fallback = nullptr;
};

// Blocks after growth from `num_blocks` for `num_tokens` tokens: max(needed, floor((3 * num_blocks
// + 1) / 2), num_blocks + 1), where a context window allows no more than max(its blocks,
// num_blocks); num_blocks itself if that is enough. Errors: out_of_pages, naming need and limit,
// for more tokens than the window; invalid_argument for numbers out of range.
KVIK_API Result<int64_t> grow_num_blocks(int64_t num_blocks, int64_t block_size, int64_t num_tokens,
                                         std::optional<int64_t> context_window);

// What is known of the sizes to come when a dynamic cache is made.
struct InitialBlocksOptions {
  int64_t num_blocks = 1024;  // as configured
  int64_t block_size = 16;
  bool dynamic = false;
  int64_t min_blocks = 0;
  int64_t tokens = 0;               // expected
  int64_t previous_high_water = 0;  // tokens of the longest request before
  int64_t margin = 128;             // tokens
};

// num_blocks unless dynamic; else the larger of max(num_blocks, min_blocks) and the blocks of
// max(tokens, floor((3 * previous_high_water + 1) / 2)) + margin tokens (of those only where the
// maximum is above zero). Errors: invalid_argument for numbers out of range.
KVIK_API Result<int64_t> initial_num_blocks(const InitialBlocksOptions& options);

// Slots of `num_rows` rows from position `first_pos` on: block_table[pos / block_size] * block_size
// + pos % block_size. Errors: invalid_argument for a position beyond the table, a negative id or
// number.
KVIK_API Result<std::vector<int64_t>> page_slots(int64_t block_size,
                                                 std::span<const int32_t> block_table,
                                                 int64_t first_pos, int64_t num_rows);

// A block table for kernels of other programs, which take blocks of 32, 16 or 8 tokens only (Kvik's
// take any): the largest of these sizes that divides the block size, and the table in which each
// page is the row of its parts, page * parts to page * parts + parts - 1. Pages [num_pages,
// block_size, ...] are then read as [num_pages * parts, size, ...] where they lie. Errors:
// invalid_argument for a block size that 8 does not divide, and for ids that are negative or whose
// parts exceed 2^31 - 1.
struct SplitBlockTable {
  int64_t block_size = 0;
  std::vector<int32_t> block_table;
};
KVIK_API Result<SplitBlockTable> split_block_table(int64_t block_size,
                                                   std::span<const int32_t> block_table);

}  // namespace kvik
