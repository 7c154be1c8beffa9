// The environment variables that the package reads, and nothing below it does. docs/python.md lists
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvik/core/status.h"

namespace kvik::python {

// A variable by the name that follows KVIK_, or where that is unset, by its old name. Empty texts
// count as unset. Read at each call.
struct Variable {
  const char* name;
  const char* old_name = nullptr;
};

std::optional<std::string> text_of(const Variable& variable);
// Errors: invalid_argument that names the variable, for a text that is neither yes (1, true, yes,
// on, enable, enabled) nor no (0, false, no, off, disable, disabled), in any letter case.
Result<std::optional<bool>> flag_of(const Variable& variable);
// Errors: invalid_argument that names the variable, for what is no whole number.
Result<std::optional<int64_t>> number_of(const Variable& variable);
// The same, where 0 and below mean unset.
Result<std::optional<int64_t>> positive_number_of(const Variable& variable);

namespace variables {
inline constexpr Variable kNumThreads{"KVIK_NUM_THREADS"};
inline constexpr Variable kPagedAttention{"KVIK_PAGED_ATTN", "MTPLX_VLLM_METAL_PAGED_ATTN"};
inline constexpr Variable kBlockSize{"KVIK_PAGED_BLOCK_SIZE", "MTPLX_VLLM_METAL_PAGED_BLOCK_SIZE"};
inline constexpr Variable kNumBlocks{"KVIK_PAGED_NUM_BLOCKS", "MTPLX_VLLM_METAL_PAGED_NUM_BLOCKS"};
inline constexpr Variable kAttentionImpl{"KVIK_PAGED_ATTN_IMPL",
                                         "MTPLX_VLLM_METAL_PAGED_ATTN_IMPL"};
inline constexpr Variable kMaxQLen{"KVIK_PAGED_ATTN_MAX_Q", "MTPLX_VLLM_METAL_PAGED_ATTN_MAX_Q"};
inline constexpr Variable kPartitioned{"KVIK_PAGED_PARTITIONED_ATTN",
                                       "MTPLX_VLLM_METAL_PAGED_PARTITIONED_ATTN"};
inline constexpr Variable kPartitionThreshold{"KVIK_PAGED_PARTITION_THRESHOLD",
                                              "MTPLX_VLLM_METAL_PAGED_PARTITION_THRESHOLD"};
inline constexpr Variable kSlidingWindow{"KVIK_PAGED_SLIDING_WINDOW",
                                         "MTPLX_VLLM_METAL_PAGED_SLIDING_WINDOW"};
inline constexpr Variable kKvQuant{"KVIK_PAGED_KV_QUANT", "MTPLX_VLLM_METAL_PAGED_KV_QUANT"};
inline constexpr Variable kKvQuantShort{"KVIK_PAGED_KV_QUANT", "MTPLX_PAGED_KV_QUANT"};
inline constexpr Variable kKvQuantKernel{"KVIK_KV_QUANT_KERNEL", "MTPLX_KV_QUANT_2PASS_KERNEL"};
inline constexpr Variable kTurboQuant{"KVIK_PAGED_TURBOQUANT", "MTPLX_VLLM_METAL_PAGED_TURBOQUANT"};
inline constexpr Variable kTurboQuantKey{"KVIK_PAGED_TURBOQUANT_K_QUANT",
                                         "MTPLX_VLLM_METAL_PAGED_TURBOQUANT_K_QUANT"};
inline constexpr Variable kTurboQuantValue{"KVIK_PAGED_TURBOQUANT_V_QUANT",
                                           "MTPLX_VLLM_METAL_PAGED_TURBOQUANT_V_QUANT"};
inline constexpr Variable kDynamic{"KVIK_DYNAMIC_PAGED_KV", "MTPLX_DYNAMIC_PAGED_KV"};
inline constexpr Variable kDynamicMinBlocks{"KVIK_DYNAMIC_PAGED_KV_MIN_BLOCKS",
                                            "MTPLX_DYNAMIC_PAGED_KV_MIN_BLOCKS"};
inline constexpr Variable kDynamicTokens{"KVIK_DYNAMIC_PAGED_KV_TOKENS",
                                         "MTPLX_DYNAMIC_PAGED_KV_TOKENS"};
inline constexpr Variable kDynamicHighWater{"KVIK_DYNAMIC_PAGED_KV_PREVIOUS_HIGH_WATER",
                                            "MTPLX_DYNAMIC_PAGED_KV_PREVIOUS_HIGH_WATER"};
inline constexpr Variable kDynamicMargin{"KVIK_DYNAMIC_PAGED_KV_MARGIN",
                                         "MTPLX_DYNAMIC_PAGED_KV_MARGIN"};
inline constexpr Variable kContextWindow{"KVIK_CONTEXT_WINDOW_TOKENS",
                                         "MTPLX_CONTEXT_WINDOW_TOKENS"};
inline constexpr Variable kForbidActiveArrays{"KVIK_ASSERT_NO_PAGED_ACTIVE_ARRAYS",
                                              "MTPLX_ASSERT_NO_PAGED_ACTIVE_ARRAYS"};
inline constexpr Variable kOwned{"KVIK_OWNED_ATTN_KV", "MTPLX_OWNED_ATTN_KV"};
inline constexpr Variable kOwnedMode{"KVIK_OWNED_ATTN_KV_MODE", "MTPLX_OWNED_ATTN_KV_MODE"};
inline constexpr Variable kOwnedStep{"KVIK_OWNED_ATTN_KV_STEP", "MTPLX_OWNED_ATTN_KV_STEP"};
inline constexpr Variable kOwnedBlockSize{"KVIK_OWNED_ATTN_KV_BLOCK_SIZE",
                                          "MTPLX_OWNED_ATTN_KV_BLOCK_SIZE"};
}  // namespace variables

}  // namespace kvik::python
