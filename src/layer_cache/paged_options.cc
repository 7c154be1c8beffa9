#include "kvik/layer_cache/paged_options.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kvik/core/checked_math.h"
#include "layer_cache/names.h"

namespace kvik {
namespace {

using internal::Named;

constexpr std::array kPhases = {
    Named<PagedPhase>{"prefill", PagedPhase::prefill},
    Named<PagedPhase>{"decode_verify", PagedPhase::decode_verify},
    Named<PagedPhase>{"ar_decode", PagedPhase::ar_decode},
    Named<PagedPhase>{"postcommit", PagedPhase::postcommit},
    Named<PagedPhase>{"unknown", PagedPhase::unknown},
};

constexpr std::array kRoutes = {
    Named<PagedRoute>{"paged", PagedRoute::paged},
    Named<PagedRoute>{"", PagedRoute::paged},
    Named<PagedRoute>{"auto", PagedRoute::paged},
    Named<PagedRoute>{"packed", PagedRoute::packed},
    Named<PagedRoute>{"kernel", PagedRoute::packed},
    Named<PagedRoute>{"vllm_metal", PagedRoute::paged},
    Named<PagedRoute>{"sdpa_2pass_paged", PagedRoute::paged},
    Named<PagedRoute>{"mlx_vector_paged", PagedRoute::paged},
    Named<PagedRoute>{"fp32_paged", PagedRoute::paged},
    Named<PagedRoute>{"paged_fp32", PagedRoute::paged},
    Named<PagedRoute>{"gather", PagedRoute::gather},
    Named<PagedRoute>{"mirror", PagedRoute::mirror},
    Named<PagedRoute>{"dequant", PagedRoute::mirror},
    Named<PagedRoute>{"fast_sdpa_gather", PagedRoute::gather},
    Named<PagedRoute>{"sdpa_gather", PagedRoute::gather},
    Named<PagedRoute>{"exact_gather", PagedRoute::gather},
};

// The first name of a value is the one that is written.
template <class T, size_t kCount>
std::string_view name_of(const std::array<Named<T>, kCount>& names, T value) {
  return std::find_if(names.begin(), names.end(),
                      [&](const Named<T>& entry) { return entry.value == value; })
      ->name;
}

std::string num(int64_t x) { return std::to_string(x); }

// Numbers of tokens and blocks stay far from where sums of a few of them overflow.
constexpr int64_t kMost = int64_t{1} << 48;
bool in_range(int64_t x, int64_t least) { return x >= least && x <= kMost; }

}  // namespace

std::string_view paged_phase_name(PagedPhase phase) { return name_of(kPhases, phase); }

PagedPhase parse_paged_phase(std::string_view name) {
  const Result<PagedPhase> phase = internal::parse_name<PagedPhase>("phase", name, '_', kPhases);
  return phase.ok() ? *phase : PagedPhase::unknown;
}

std::string_view paged_route_name(PagedRoute route, bool low_bit) {
  if (low_bit) return route == PagedRoute::packed ? "packed" : "mirror";
  return name_of(kRoutes, route);
}

Result<PagedRoute> parse_paged_route(std::string_view name) {
  return internal::parse_name<PagedRoute>("attention implementation", name, '_', kRoutes);
}

Result<int64_t> grow_num_blocks(int64_t num_blocks, int64_t block_size, int64_t num_tokens,
                                std::optional<int64_t> context_window) {
  if (!in_range(num_blocks, 0) || !in_range(block_size, 1) || !in_range(num_tokens, 0) ||
      (context_window && !in_range(*context_window, 1))) {
    return invalid_argument("numbers of blocks and tokens must be positive and below 2^48");
  }
  if (context_window && num_tokens > *context_window) {
    return Status(StatusCode::out_of_pages, num(num_tokens) +
                                                " tokens exceed the context window "
                                                "of " +
                                                num(*context_window));
  }
  const int64_t needed = ceil_div(num_tokens, block_size);
  if (needed <= num_blocks) return num_blocks;
  int64_t grown = std::max({needed, (3 * num_blocks + 1) / 2, num_blocks + 1});
  if (context_window) {
    grown = std::min(grown, std::max(ceil_div(*context_window, block_size), num_blocks));
  }
  return grown;
}

Result<int64_t> initial_num_blocks(const InitialBlocksOptions& options) {
  if (!in_range(options.num_blocks, 0) || !in_range(options.block_size, 1) ||
      !in_range(options.min_blocks, 0) || !in_range(options.tokens, 0) ||
      !in_range(options.previous_high_water, 0) || !in_range(options.margin, 0)) {
    return invalid_argument("numbers of blocks and tokens must not be negative, and below 2^48");
  }
  if (!options.dynamic) return options.num_blocks;
  const int64_t floor = std::max(options.num_blocks, options.min_blocks);
  const int64_t expected = std::max(options.tokens, (3 * options.previous_high_water + 1) / 2);
  if (expected == 0) return floor;
  return std::max(floor, ceil_div(expected + options.margin, options.block_size));
}

Result<std::vector<int64_t>> page_slots(int64_t block_size, std::span<const int32_t> block_table,
                                        int64_t first_pos, int64_t num_rows) {
  if (!in_range(block_size, 1) || !in_range(first_pos, 0) || !in_range(num_rows, 0)) {
    return invalid_argument("block size, position and row count must not be negative");
  }
  const auto num_blocks = static_cast<int64_t>(block_table.size());
  if (num_rows > 0 && (first_pos + num_rows - 1) / block_size >= num_blocks) {
    return invalid_argument("position " + num(first_pos + num_rows - 1) + " lies beyond the " +
                            num(num_blocks) + " blocks of " + num(block_size) +
                            " tokens in the table");
  }
  std::vector<int64_t> slots;
  slots.reserve(static_cast<size_t>(num_rows));
  for (int64_t position = first_pos; position < first_pos + num_rows; ++position) {
    const int64_t page = block_table[static_cast<size_t>(position / block_size)];
    if (page < 0) return invalid_argument("the block table holds the negative id " + num(page));
    slots.push_back(page * block_size + position % block_size);
  }
  return slots;
}

Result<SplitBlockTable> split_block_table(int64_t block_size,
                                          std::span<const int32_t> block_table) {
  SplitBlockTable split;
  for (const int64_t size : {32, 16, 8}) {
    if (split.block_size == 0 && in_range(block_size, 1) && block_size % size == 0) {
      split.block_size = size;
    }
  }
  if (split.block_size == 0) {
    return invalid_argument("blocks of " + num(block_size) +
                            " tokens cannot be split into blocks of 32, 16 or 8");
  }
  const int64_t parts = block_size / split.block_size;
  for (const int64_t page : block_table) {
    if (page < 0) return invalid_argument("the block table holds the negative id " + num(page));
    if (parts > INT32_MAX || page > (INT32_MAX - parts + 1) / parts) {
      return invalid_argument("page " + num(page) + " in " + num(parts) +
                              " parts has ids beyond 2^31 - 1");
    }
    for (int64_t part = 0; part < parts; ++part) {
      split.block_table.push_back(static_cast<int32_t>(page * parts + part));
    }
  }
  return split;
}

}  // namespace kvik
