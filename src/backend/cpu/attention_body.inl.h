// The attention kernel, written once against the 16-lane vector type `Vec` and the line loaders
// `LineF32`, `LineF16`, `LineBf16` of the spine that includes it inside its own namespace.
//
// Order of arithmetic, the same for every spine, thread count, batch and chunking:
//   score of a key     one fma chain over each 64 dims, ascending, their sums added in order; then
//                      + added, * scale, softcap
//   inside a step      64 tokens by position: maximum, then exp, then lane sums by tile
//   value of a dim     one fma chain over the tokens of a partition, ascending
//   partition          512 tokens by position: lanes added by one tree
//   row                partitions merged from the lowest position up
//   packed codes       unpacked to f32, then as above, or in integers (integer_body.inl.h), which
//                      are exact sums over a tile's dims and over a step's tokens
//   rotated values     the output is rotated back
//                      after the division; where other segments hold plain values, a row's sum is
//                      rotated back before and rotated after each of those segments in a partition
// A row's arithmetic depends on its own visible keys alone, so its neighbours in a task do not
// matter.

#include "backend/cpu/unpack_body.inl.h"

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// ---- exp and tanh
// ---------------------------------------------------------------------------------

// e^x for x <= 88, relative error below 2e-7; 0 below -87.3 (where e^x leaves the normal range),
// NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 7
// (remainder 6e-9).
inline Vec vexp(Vec x) {
  const Vec shift = vset(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec biased = vfma(x, vset(1.44269504f), shift);
  const Vec n = vsub(biased, shift);
  Vec r = vfma(n, vset(-0.693359375f), x);  // ln 2 in two parts; n times the first is exact
  r = vfma(n, vset(2.12194440e-4f), r);
  Vec p = vset(1.0f / 5040.0f);
  p = vfma(p, r, vset(1.0f / 720.0f));
  p = vfma(p, r, vset(1.0f / 120.0f));
  p = vfma(p, r, vset(1.0f / 24.0f));
  p = vfma(p, r, vset(1.0f / 6.0f));
  p = vfma(p, r, vset(0.5f));
  p = vfma(p, r, vset(1.0f));
  p = vfma(p, r, vset(1.0f));
  p = select_less(x, vset(-87.3f), vset(0.0f), scale_by_power(p, biased));
  return select_nan(x, x, p);
}

inline float exp_of(float x) {
  float lanes[16];
  vstore(lanes, vexp(vset(x)));
  return lanes[0];
}

// Lambert's continued fraction to the seventh power for |x| < 1 (error below 1e-9), else
// 1 - 2 / (e^2|x| + 1).
inline Vec vtanh(Vec x) {
  const Vec size = vabs(x);
  const Vec square = vmul(x, x);
  Vec top = vadd(square, vset(378.0f));
  top = vfma(top, square, vset(17325.0f));
  top = vfma(top, square, vset(135135.0f));
  Vec bottom = vfma(square, vset(28.0f), vset(3150.0f));
  bottom = vfma(bottom, square, vset(62370.0f));
  bottom = vfma(bottom, square, vset(135135.0f));
  const Vec small = vmul(size, vdiv(top, bottom));
  const Vec capped = vmin(vset(20.0f), size);  // keeps NaN
  const Vec e = vexp(vadd(capped, capped));
  const Vec large = vsub(vset(1.0f), vdiv(vset(2.0f), vadd(e, vset(1.0f))));
  return vcopysign(select_less(size, vset(1.0f), small, large), x);
}

// ---- dots: scores of R rows against the tiles of a step
// ---------------------------------------------

// body(0), ..., body(N - 1) as N copies: an array that only constants index stays in registers.
template <int... kIndex, class Body>
inline __attribute__((always_inline)) void unrolled(std::integer_sequence<int, kIndex...>,
                                                    Body body) {
  (body(std::integral_constant<int, kIndex>()), ...);
}
template <int N, class Body>
inline __attribute__((always_inline)) void unrolled(Body body) {
  unrolled(std::make_integer_sequence<int, N>(), body);
}

// Dims of one fma chain: shorter chains lose less.
constexpr int kDotBlock = 64;

// tiles[i], i in [0, T): K tiles. ahead[i]: the tile to fetch meanwhile, or null in all of them.
template <class Line, int R, int T, bool kAhead>
inline void dot_tiles(const float* query, int64_t query_stride, const std::byte* const* tiles,
                      const std::byte* const* ahead, int num_words, float* scores) {
  constexpr int kElements = Line::kElements;
  constexpr int64_t kBlockWords = kDotBlock / kElements;
  int64_t begin = 0;
  do {  // also for rows of no dims, whose scores are 0
    const int64_t end = begin + kBlockWords < num_words ? begin + kBlockWords : num_words;
    Vec sum[R * T];
    unrolled<R * T>([&](auto i) { sum[i] = vset(0.0f); });
    for (int64_t w = begin; w < end; ++w) {
      Vec part[T][kElements];
      unrolled<T>([&](auto t) {
        Line::load(tiles[t] + w * kLineBytes, part[t]);
        if (kAhead) prefetch(ahead[t] + w * kLineBytes);
      });
      unrolled<kElements>([&](auto e) {
        unrolled<R>([&](auto r) {
          const Vec q = vset(query[r * query_stride + w * kElements + e]);
          unrolled<T>([&](auto t) { sum[r * T + t] = vfma(part[t][e], q, sum[r * T + t]); });
        });
      });
    }
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < T; ++t) {
        float* const to = scores + r * kStep + t * kTileTokens;
        vstore(to, begin == 0 ? sum[r * T + t] : vadd(vload(to), sum[r * T + t]));
      }
    }
    begin += kBlockWords;
  } while (begin < num_words);
}

// Tiles [begin, end) of a step.
template <class Line, int R, bool kAhead>
inline void dot_step(const float* query, int64_t query_stride, const std::byte* const* tiles,
                     const std::byte* const* ahead, int begin, int end, int num_words,
                     float* scores) {
  constexpr int kFit = kAccumulators / R > 0 ? kAccumulators / R : 1;
  constexpr int kAtOnce = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  int t = begin;
  for (; t + kAtOnce <= end; t += kAtOnce) {
    dot_tiles<Line, R, kAtOnce, kAhead>(query, query_stride, tiles + t, ahead + t, num_words,
                                        scores + t * kTileTokens);
  }
  for (; t < end; ++t) {
    dot_tiles<Line, R, 1, kAhead>(query, query_stride, tiles + t, ahead + t, num_words,
                                  scores + t * kTileTokens);
  }
}

// ---- values: R rows' weights times the V rows of a step
// ---------------------------------------------

// Word w of G dim groups; elements [begin, end) of it.
template <class Line, int R, int G, bool kAhead>
inline void add_word(const std::byte* line, int64_t group_bytes, const std::byte* ahead,
                     const float* weights, int begin, int end, Vec (&sum)[R][G]) {
  constexpr int kElements = Line::kElements;
  Vec part[G][kElements];
  for (int g = 0; g < G; ++g) {
    Line::load(line + g * group_bytes, part[g]);
    if (kAhead) prefetch(ahead + g * group_bytes);
  }
  for (int e = begin; e < end; ++e) {
    for (int r = 0; r < R; ++r) {
      const Vec p = vset(weights[r * kStep + e]);
      for (int g = 0; g < G; ++g) sum[r][g] = vfma(part[g][e], p, sum[r][g]);
    }
  }
}

// Tokens [lo, hi) of the step, dim groups [group, group + G). A token outside is not multiplied at
// all: zero times a stale infinity would be NaN.
template <class Line, int R, int G, bool kAhead>
inline void add_groups(const float* weights, const std::byte* const* tiles,
                       const std::byte* const* ahead, int lo, int hi, int64_t group, float* acc,
                       int64_t acc_stride) {
  constexpr int kElements = Line::kElements;
  constexpr int64_t kGroupBytes = kTileTokens / kElements * kLineBytes;
  Vec sum[R][G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) sum[r][g] = vload(acc + r * acc_stride + g * kTileLanes);
  }
  for (int t = lo / kTileTokens; t * kTileTokens < hi; ++t) {
    const int first = t * kTileTokens;
    const int begin = lo > first ? lo - first : 0;
    const int end = hi - first < kTileTokens ? hi - first : kTileTokens;
    const std::byte* const lines = tiles[t] + group * kGroupBytes;
    const std::byte* const next = kAhead ? ahead[t] + group * kGroupBytes : nullptr;
    const float* const p = weights + first;
    int token = begin;
    if (token % kElements != 0) {
      const int word = token / kElements;
      const int stop = (word + 1) * kElements < end ? kElements : end - word * kElements;
      add_word<Line, R, G, false>(lines + word * kLineBytes, kGroupBytes, nullptr,
                                  p + word * kElements, token % kElements, stop, sum);
      token = (word + 1) * kElements;
    }
    for (; token + kElements <= end; token += kElements) {
      const int64_t at = token / kElements * kLineBytes;
      add_word<Line, R, G, kAhead>(lines + at, kGroupBytes, kAhead ? next + at : nullptr, p + token,
                                   0, kElements, sum);
    }
    if (token < end) {
      add_word<Line, R, G, false>(lines + token / kElements * kLineBytes, kGroupBytes, nullptr,
                                  p + token, 0, end - token, sum);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) vstore(acc + r * acc_stride + g * kTileLanes, sum[r][g]);
  }
}

template <class Line, int R, bool kAhead>
inline void add_step(const float* weights, const std::byte* const* tiles,
                     const std::byte* const* ahead, int lo, int hi, int num_groups, float* acc,
                     int64_t acc_stride) {
  constexpr int kFit = kAccumulators / R > 0 ? kAccumulators / R : 1;
  constexpr int kAtOnce = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  int g = 0;
  for (; g + kAtOnce <= num_groups; g += kAtOnce) {
    add_groups<Line, R, kAtOnce, kAhead>(weights, tiles, ahead, lo, hi, g, acc + g * kTileLanes,
                                         acc_stride);
  }
  for (; g < num_groups; ++g) {
    add_groups<Line, R, 1, kAhead>(weights, tiles, ahead, lo, hi, g, acc + g * kTileLanes,
                                   acc_stride);
  }
}

// ---- one function per format and side; the row count is chosen here
// -------------------------------------

// What a step hands to the passes. Token ranges count from the step's first position.
struct StepTiles {
  const std::byte* k[kTilesPerStep];
  const std::byte* v[kTilesPerStep];
  const std::byte* next_k[kTilesPerStep];  // fetched ahead; valid addresses of readable tiles
  const std::byte* next_v[kTilesPerStep];
};

template <class Line, bool kAhead>
inline void dot_rows(int num_rows, const float* query, int64_t stride, const StepTiles& s,
                     int begin, int end, int num_words, float* scores) {
  if constexpr (kRowsAtOnce == 1) {
    return dot_step<Line, 1, kAhead>(query, stride, s.k, s.next_k, begin, end, num_words, scores);
  } else {
    switch (num_rows) {
      case 1:
        return dot_step<Line, 1, kAhead>(query, stride, s.k, s.next_k, begin, end, num_words,
                                         scores);
      case 2:
        return dot_step<Line, 2, kAhead>(query, stride, s.k, s.next_k, begin, end, num_words,
                                         scores);
      case 3:
        return dot_step<Line, 3, kAhead>(query, stride, s.k, s.next_k, begin, end, num_words,
                                         scores);
      default:
        return dot_step<Line, 4, kAhead>(query, stride, s.k, s.next_k, begin, end, num_words,
                                         scores);
    }
  }
}

template <class Line, bool kAhead>
inline void add_rows(int num_rows, const float* weights, const StepTiles& s, int lo, int hi,
                     int num_groups, float* acc, int64_t stride) {
  if constexpr (kRowsAtOnce == 1) {
    return add_step<Line, 1, kAhead>(weights, s.v, s.next_v, lo, hi, num_groups, acc, stride);
  } else {
    switch (num_rows) {
      case 1:
        return add_step<Line, 1, kAhead>(weights, s.v, s.next_v, lo, hi, num_groups, acc, stride);
      case 2:
        return add_step<Line, 2, kAhead>(weights, s.v, s.next_v, lo, hi, num_groups, acc, stride);
      case 3:
        return add_step<Line, 3, kAhead>(weights, s.v, s.next_v, lo, hi, num_groups, acc, stride);
      default:
        return add_step<Line, 4, kAhead>(weights, s.v, s.next_v, lo, hi, num_groups, acc, stride);
    }
  }
}

using DotRows = void (*)(int, const float*, int64_t, const StepTiles&, int, int, int, float*);
using AddRows = void (*)(int, const float*, const StepTiles&, int, int, int, float*, int64_t);

template <bool kAhead>
inline DotRows dot_rows_of(KvCode code) {
  switch (code) {
    case KvCode::f32:
      return dot_rows<LineF32, kAhead>;
    case KvCode::f16:
      return dot_rows<LineF16, kAhead>;
    default:
      return dot_rows<LineBf16, kAhead>;
  }
}

template <bool kAhead>
inline AddRows add_rows_of(KvCode code) {
  switch (code) {
    case KvCode::f32:
      return add_rows<LineF32, kAhead>;
    case KvCode::f16:
      return add_rows<LineF16, kAhead>;
    default:
      return add_rows<LineBf16, kAhead>;
  }
}

#include "backend/cpu/integer_body.inl.h"

// ---- one row block of a step
// ------------------------------------------------------------------------

// The task with what is worked out once for it.
struct Context {
  const AttentionCall* call;
  const AttendTask* task;
  AttendScratch* scratch;
  int group;               // query heads per KV head
  int64_t first_position;  // of query 0 of the sequence
  int num_groups;          // of 16 value dims
  bool rotates_values;     // some are stored rotated: sums are kept so, and rotated back, once
};

// Keys that a row reads in a step, counted from the step's first position.
struct TokenRange {
  int lo, hi;
};

inline TokenRange clip(PositionRange range, int64_t step_begin) {
  const int64_t lo = range.begin > step_begin ? range.begin - step_begin : 0;
  const int64_t hi = range.end < step_begin + kStep ? range.end - step_begin : int64_t{kStep};
  if (lo >= hi) return {0, 0};
  return {static_cast<int>(lo), static_cast<int>(hi)};
}

// Raw dots of one row -> weights exp(score - max), its lane sums and maximum kept up to date.
inline void softmax_row(const Context& c, int row, TokenRange range, float* scores) {
  AttendScratch& scratch = *c.scratch;
  const AttentionParams& params = c.call->params;
  const Vec added = vset(scratch.added[row]);
  const Vec scale = vset(scratch.scale);
  Vec s[kTilesPerStep];
  for (int t = 0; t < kTilesPerStep; ++t) {
    const int lo = range.lo - t * kTileTokens;
    const int hi = range.hi - t * kTileTokens;
    if (hi <= 0 || lo >= kTileTokens) {
      s[t] = vset(kMinusInfinity);
      continue;
    }
    s[t] = vmul(vadd(vload(scores + t * kTileTokens), added), scale);
    if (params.softcap > 0) {
      const Vec cap = vset(params.softcap);
      s[t] = vmul(cap, vtanh(vdiv(s[t], cap)));
    }
    if (lo > 0 || hi < kTileTokens) {
      s[t] = keep_lanes(s[t], lo > 0 ? lo : 0, hi < kTileTokens ? hi : kTileTokens, kMinusInfinity);
    }
  }
  const Vec top = vmax(vmax(s[0], s[1]), vmax(s[2], s[3]));
  float max = scratch.max[row];
  Vec sums = vload(scratch.sums + row * kTileLanes);
  if (any_greater(top, vset(max))) {
    const float new_max = reduce_max(vmax(top, vset(max)));
    const float factor = max == kMinusInfinity ? 0.0f : exp_of(max - new_max);
    max = new_max;
    scratch.max[row] = max;
    const Vec k = vset(factor);
    sums = vmul(sums, k);
    float* acc = scratch.acc + row * scratch.value_stride;
    for (int g = 0; g < c.num_groups; ++g) {
      vstore(acc + g * kTileLanes, vmul(vload(acc + g * kTileLanes), k));
    }
  }
  // All scores so far are -infinity: 0 as reference keeps the difference from being NaN.
  const Vec reference = vset(max == kMinusInfinity ? 0.0f : max);
  for (int t = 0; t < kTilesPerStep; ++t) {
    const Vec p = vexp(vsub(s[t], reference));
    sums = vadd(sums, p);
    vstore(scores + t * kTileTokens, p);
  }
  vstore(scratch.sums + row * kTileLanes, sums);
}

struct Passes {
  DotRows dot, dot_ahead;
  AddRows add, add_ahead;
};

// All rows of the task against one step of one segment; `visible` holds each row's keys.
inline void process_step(const Context& c, const Passes& passes, const StepTiles& tiles,
                         const float* query, int64_t query_stride, int num_words,
                         const PositionRange* visible, int64_t step_begin) {
  AttendScratch& scratch = *c.scratch;
  bool ahead = true;  // the first block of rows fetches for all
  for (int row = 0; row < c.task->num_rows;) {
    const TokenRange range = clip(visible[row], step_begin);
    if (range.lo == range.hi) {
      ++row;
      continue;
    }
    int n = 1;
    while (n < kRowsAtOnce && row + n < c.task->num_rows) {
      const TokenRange other = clip(visible[row + n], step_begin);
      if (other.lo != range.lo || other.hi != range.hi) break;
      ++n;
    }
    const int begin = range.lo / kTileTokens;
    const int end = (range.hi + kTileTokens - 1) / kTileTokens;
    (ahead ? passes.dot_ahead : passes.dot)(n, query + row * query_stride, query_stride, tiles,
                                            begin, end, num_words, scratch.scores);
    for (int r = 0; r < n; ++r) softmax_row(c, row + r, range, scratch.scores + r * kStep);
    (ahead ? passes.add_ahead : passes.add)(n, scratch.scores, tiles, range.lo, range.hi,
                                            c.num_groups, scratch.acc + row * scratch.value_stride,
                                            scratch.value_stride);
    ahead = false;
    row += n;
  }
}

// ---- where a step's tiles are
// -------------------------------------------------------------------------

// Addresses of the tiles that hold positions [range.begin, range.end) of the step; others stay as
// they are.
inline void find_tiles(const KvView& view, int seq, int head, PositionRange range,
                       int64_t step_begin, const std::byte** k, const std::byte** v) {
  const int64_t first = view.first_pos[static_cast<size_t>(seq)];
  const int64_t table = view.page_indptr[static_cast<size_t>(seq)];
  for (int t = 0; t < kTilesPerStep; ++t) {
    const int64_t begin = step_begin + t * kTileTokens;
    if (begin + kTileTokens <= range.begin || begin >= range.end) continue;
    const int64_t i = begin - first;
    const int64_t page = view.page_ids[static_cast<size_t>(table + i / view.block_size)];
    const int64_t tile = i % view.block_size / kTileTokens;
    k[t] = k_tile(view, page, tile, head);
    v[t] = v_tile(view, page, tile, head);
  }
}

// Row-major sources: copies the visible rows of the step into scratch tiles, slot = position
// mod 16.
inline void pack_tiles(const KvView& view, int seq, int head, PositionRange range,
                       int64_t step_begin, const AttendScratch& scratch, StepTiles& tiles) {
  const int64_t k_bytes = tile_bytes_k(view.format.k, view.head_dim_k);
  const int64_t v_bytes = tile_bytes_v(view.format.v, view.head_dim_v);
  for (int t = 0; t < kTilesPerStep; ++t) {
    tiles.k[t] = tiles.next_k[t] = scratch.step_k + t * k_bytes;
    tiles.v[t] = tiles.next_v[t] = scratch.step_v + t * v_bytes;
  }
  const int64_t begin = range.begin > step_begin ? range.begin : step_begin;
  const int64_t end = range.end < step_begin + kStep ? range.end : step_begin + kStep;
  const int64_t offset = view.page_indptr[static_cast<size_t>(seq)] -
                         int64_t{view.first_pos[static_cast<size_t>(seq)]};
  for (int64_t p = begin; p < end; ++p) {
    const int64_t t = (p - step_begin) / kTileTokens;
    const int slot = static_cast<int>(p % kTileTokens);
    encode_k_row(view.format.k, scratch.step_k + t * k_bytes, slot,
                 view.k + (offset + p) * view.k_stride[0] + head * view.k_stride[1],
                 dtype_of(view.format.k), view.head_dim_k);
    encode_v_row(view.format.v, scratch.step_v + t * v_bytes, slot,
                 view.v + (offset + p) * view.v_stride[0] + head * view.v_stride[1],
                 dtype_of(view.format.v), view.head_dim_v);
  }
}

// ---- packed formats
// ------------------------------------------------------------------------------------

// Unpacks the stored tiles that hold positions of `range` in this step, once for all rows of the
// task, and points the passes to them.
inline void unpack_side(UnpackTile unpack_one, const std::byte* const* stored,
                        const std::byte* const* next, int head_dim, PositionRange range,
                        int64_t step_begin, std::byte* to, const std::byte** tiles,
                        const std::byte** ahead) {
  const int64_t bytes = step_bytes(head_dim) / kTilesPerStep;
  for (int t = 0; t < kTilesPerStep; ++t) {
    const int64_t begin = step_begin + t * kTileTokens;
    std::byte* const out = to + t * bytes;
    if (begin + kTileTokens > range.begin && begin < range.end) {
      unpack_one(stored[t], next[t], head_dim, reinterpret_cast<float*>(out));
    }
    tiles[t] = ahead[t] = out;
  }
}

// How a segment's tiles are read: by loaders of plain codes, packed ones unpacked before, to f32 or
// to integers.
struct Reader {
  Passes passes;
  UnpackTile unpack_k, unpack_v;  // null where the passes read tiles as they are stored
  PackQuery pack_query;           // null where dots are of floats
  int num_words;                  // of K that a dot walks over
};

// Puts integer passes in the place of those over f32 tiles where a code has them.
inline void use_integers(const KvView& view, int num_rows, Reader& reader) {
  // Few rows read each tile once: nothing is gained by unpacking it to memory.
  const bool reads_stored = num_rows <= kRowsAtOnce;
  if (has_integers(view.format.k)) {
    const IntegerKeys keys =
        of_integer_code(view.format.k, []<KvCode kCode>() { return integer_keys<kCode>(); });
    reader.passes.dot = reads_stored ? keys.dot_stored : dot_integers;
    reader.passes.dot_ahead = reader.passes.dot;
    reader.unpack_k = reads_stored ? nullptr : keys.unpack;
    reader.pack_query = keys.pack;
    reader.num_words = internal::num_chunks(view.head_dim_k) * kPairs;
  }
  if (has_integers(view.format.v)) {
    const IntegerValues values =
        of_integer_code(view.format.v, []<KvCode kCode>() { return integer_values<kCode>(); });
    reader.passes.add = reads_stored ? values.add_stored : values.add;
    reader.passes.add_ahead = reader.passes.add;
    reader.unpack_v = reads_stored ? nullptr : values.unpack;
  }
}

inline Reader reader_of(const KvView& view, bool uses_integers, int num_rows) {
  const bool packs_k = is_packed(view.format.k);
  const bool packs_v = is_packed(view.format.v);
  const KvCode k = packs_k ? KvCode::f32 : view.format.k;
  const KvCode v = packs_v ? KvCode::f32 : view.format.v;
  Reader reader;
  // Unpacking fetches ahead by itself.
  reader.passes = {dot_rows_of<false>(k), packs_k ? dot_rows_of<false>(k) : dot_rows_of<true>(k),
                   add_rows_of<false>(v), packs_v ? add_rows_of<false>(v) : add_rows_of<true>(v)};
  reader.unpack_k = packs_k ? unpack_keys_of(view.format.k) : nullptr;
  reader.unpack_v = packs_v ? unpack_values_of(view.format.v) : nullptr;
  reader.pack_query = nullptr;
  reader.num_words = padded_dim_k(k, view.head_dim_k) / elements_per_word(k);
  if (uses_integers) use_integers(view, num_rows, reader);
  return reader;
}

// ---- one partition, one task
// -----------------------------------------------------------------------

inline int64_t row_position(const Context& c, int row) {
  return c.first_position + (c.task->row_begin + row) / c.group;
}
inline int row_head(const Context& c, int row) {
  return c.task->kv_head * c.group + (c.task->row_begin + row) % c.group;
}

// The queries as this segment's keys want them at `position`.
inline const float* prepare_queries(const Context& c, const KeyTransform* transform,
                                    int64_t position) {
  AttendScratch& scratch = *c.scratch;
  if (transform == nullptr) return scratch.query;
  const int64_t frame = transform->frame > 0 ? position / transform->frame * transform->frame : 0;
  for (int row = 0; row < c.task->num_rows; ++row) {
    const int64_t at = row * scratch.query_stride;
    scratch.added[row] = transform->prepare(transform->state, c.task->kv_head, frame,
                                            scratch.query + at, scratch.prepared + at);
  }
  return scratch.prepared;
}

// The same in integers, if the reader wants them. Rows then lie kQueryHeader floats further apart.
inline const float* pack_queries(const Context& c, const Reader& reader, const float* query) {
  if (reader.pack_query == nullptr) return query;
  AttendScratch& scratch = *c.scratch;
  const int num_chunks = static_cast<int>(scratch.query_stride / internal::kChunk);
  for (int row = 0; row < c.task->num_rows; ++row) {
    reader.pack_query(query + row * scratch.query_stride, num_chunks,
                      scratch.integers + row * (scratch.query_stride + kQueryHeader));
  }
  return scratch.integers;
}

// `turn` on the value sums of the rows that see keys of the partition in this segment.
inline void turn_sums(const Context& c, const PositionRange* visible, int64_t partition_begin,
                      void (*turn)(float*, int) noexcept) {
  const int head_dim_v = c.call->segments[0].view.head_dim_v;
  for (int row = 0; row < c.task->num_rows; ++row) {
    const PositionRange range = visible[row];
    const bool sees =
        !range.empty() && range.begin < partition_begin + kPartition && range.end > partition_begin;
    if (sees) turn(c.scratch->acc + row * c.scratch->value_stride, head_dim_v);
  }
}

inline void process_segment(const Context& c, int segment_idx, int64_t partition_begin) {
  const KvView& view = c.call->segments[static_cast<size_t>(segment_idx)].view;
  const int seq = c.task->seq;
  const int head = c.task->kv_head;
  PositionRange visible[kMaxTaskRows];
  PositionRange all = {INT64_MAX, 0};
  for (int row = 0; row < c.task->num_rows; ++row) {
    PositionRange& range = visible[row];
    // Rows of one query see the same keys.
    if (row > 0 && row_position(c, row) == row_position(c, row - 1)) {
      range = visible[row - 1];
    } else {
      range = visible_range(*c.call, segment_idx, seq, row_position(c, row));
    }
    if (range.empty()) continue;
    all.begin = range.begin < all.begin ? range.begin : all.begin;
    all.end = range.end > all.end ? range.end : all.end;
  }
  const PositionRange reach = all;  // of the whole task: what may be fetched ahead
  all.begin = all.begin > partition_begin ? all.begin : partition_begin;
  all.end = all.end < partition_begin + kPartition ? all.end : partition_begin + kPartition;
  if (all.empty()) return;

  const Reader reader = reader_of(view, c.scratch->uses_integers, c.task->num_rows);
  const int64_t query_stride =
      c.scratch->query_stride + (reader.pack_query != nullptr ? kQueryHeader : 0);
  const KeyTransform* const transform = view.key_transform;
  const bool is_rows = view.layout == KvLayout::rows;
  for (int row = 0; row < c.task->num_rows; ++row) c.scratch->added[row] = 0.0f;

  // Sums of rotated and of plain values do not mix: a row's sum is turned to the basis of the
  // segment that adds to it, which for rows of no keys here would only cost bits.
  const bool turns_sums = c.rotates_values && !is_rotated(view.format.v);
  if (turns_sums) turn_sums(c, visible, partition_begin, internal::unrotate);

  StepTiles tiles{};
  const float* query = nullptr;
  for (int64_t step = all.begin / kStep * kStep; step < all.end; step += kStep) {
    const bool is_first = query == nullptr;
    const bool frame_begins =
        transform != nullptr && transform->frame > 0 && step % transform->frame == 0;
    if (is_first || frame_begins) {
      query = pack_queries(c, reader, prepare_queries(c, transform, step));
    }
    if (is_rows) {
      pack_tiles(view, seq, head, all, step, *c.scratch, tiles);
    } else {
      if (is_first) find_tiles(view, seq, head, all, step, tiles.k, tiles.v);
      for (int t = 0; t < kTilesPerStep; ++t) {
        tiles.next_k[t] = tiles.k[t];
        tiles.next_v[t] = tiles.v[t];
      }
      find_tiles(view, seq, head, reach, step + kStep, tiles.next_k, tiles.next_v);
    }
    StepTiles read = tiles;
    if (reader.unpack_k != nullptr) {
      unpack_side(reader.unpack_k, tiles.k, tiles.next_k, view.head_dim_k, all, step,
                  c.scratch->step_k, read.k, read.next_k);
    }
    if (reader.unpack_v != nullptr) {
      unpack_side(reader.unpack_v, tiles.v, tiles.next_v, view.head_dim_v, all, step,
                  c.scratch->step_v, read.v, read.next_v);
    }
    process_step(c, reader.passes, read, query, query_stride, reader.num_words, visible, step);
    for (int t = 0; t < kTilesPerStep; ++t) {
      tiles.k[t] = tiles.next_k[t];
      tiles.v[t] = tiles.next_v[t];
    }
  }
  if (turns_sums) turn_sums(c, visible, partition_begin, internal::rotate);
}

inline void process_partition(const Context& c, int64_t partition) {
  AttendScratch& scratch = *c.scratch;
  for (int row = 0; row < c.task->num_rows; ++row) {
    scratch.max[row] = kMinusInfinity;
    vstore(scratch.sums + row * kTileLanes, vset(0.0f));
    float* acc = scratch.acc + row * scratch.value_stride;
    for (int g = 0; g < c.num_groups; ++g) vstore(acc + g * kTileLanes, vset(0.0f));
  }
  for (int s = 0; s < static_cast<int>(c.call->segments.size()); ++s) {
    process_segment(c, s, partition * kPartition);
  }
}

// ---- merging and output
// -------------------------------------------------------------------------------

// total = total and part, the part being that of later keys.
inline void merge_part(const Context& c, int row, float max, float sum, const float* acc) {
  AttendScratch& scratch = *c.scratch;
  const float old_max = scratch.total_max[row];
  const float top = max > old_max ? max : old_max;
  const float keep = old_max == kMinusInfinity ? 0.0f : exp_of(old_max - top);
  const float take = max == kMinusInfinity ? 0.0f : exp_of(max - top);
  scratch.total_max[row] = top;
  // Sums of rows that saw only -infinity stay 0; NaN goes through.
  scratch.total_sum[row] = std::fma(sum, take, scratch.total_sum[row] * keep);
  float* total = scratch.total_acc + row * scratch.value_stride;
  for (int g = 0; g < c.num_groups; ++g) {
    const Vec before = vmul(vload(total + g * kTileLanes), vset(keep));
    vstore(total + g * kTileLanes, vfma(vload(acc + g * kTileLanes), vset(take), before));
  }
}

inline void clear_totals(const Context& c) {
  for (int row = 0; row < c.task->num_rows; ++row) {
    c.scratch->total_max[row] = kMinusInfinity;
    c.scratch->total_sum[row] = 0.0f;
    float* total = c.scratch->total_acc + row * c.scratch->value_stride;
    for (int g = 0; g < c.num_groups; ++g) vstore(total + g * kTileLanes, vset(0.0f));
  }
}

inline float log_sum(float max, float sum) {
  if (sum == 0.0f) return kMinusInfinity;
  return static_cast<float>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
}

// Joins the sink, divides, and writes out, lse and lse_keys of all rows of the task.
inline void write_rows(const Context& c) {
  const AttentionCall& call = *c.call;
  AttendScratch& scratch = *c.scratch;
  const int head_dim_v = call.segments[0].view.head_dim_v;
  for (int row = 0; row < c.task->num_rows; ++row) {
    const int64_t query =
        call.query_indptr[static_cast<size_t>(c.task->seq)] + (c.task->row_begin + row) / c.group;
    const int head = row_head(c, row);
    float max = scratch.total_max[row];
    float sum = scratch.total_sum[row];
    if (call.lse_keys) {
      store_float(call.lse_keys->dtype, call.lse_keys->at(query, head), log_sum(max, sum));
    }
    float factor = 1.0f;
    const float sink =
        call.params.sinks.empty() ? kMinusInfinity : call.params.sinks[static_cast<size_t>(head)];
    if (sink != kMinusInfinity) {
      const float top = sink > max ? sink : max;
      factor = max == kMinusInfinity ? 0.0f : exp_of(max - top);
      sum = std::fma(sum, factor, exp_of(sink - top));
      max = top;
    }
    if (call.lse) store_float(call.lse->dtype, call.lse->at(query, head), log_sum(max, sum));
    // Nothing visible: zeros, by a divisor that is not zero.
    const Vec divisor = vset(sum == 0.0f ? 1.0f : sum);
    float* acc = scratch.total_acc + row * scratch.value_stride;
    for (int g = 0; g < c.num_groups; ++g) {
      // + 0 turns -0 into 0: its sign would depend on how many invisible keys were passed over.
      const Vec x = vdiv(vmul(vload(acc + g * kTileLanes), vset(factor)), divisor);
      vstore(acc + g * kTileLanes, vadd(x, vset(0.0f)));
    }
    if (c.rotates_values) {
      internal::unrotate(acc, head_dim_v);
      for (int g = 0; g < c.num_groups; ++g) {
        vstore(acc + g * kTileLanes, vadd(vload(acc + g * kTileLanes), vset(0.0f)));
      }
    }
    std::byte* const to = call.out.at(query, head);
    if (call.out.dtype == DType::f32) {
      std::memcpy(to, acc, sizeof(float) * static_cast<size_t>(head_dim_v));
      continue;
    }
    for (int d = 0; d < head_dim_v; ++d) {
      store_float(call.out.dtype, to + d * dtype_bytes(call.out.dtype), acc[d]);
    }
  }
}

// ---- entrances
// -------------------------------------------------------------------------------------------

inline bool any_rotated_values(const AttentionCall& call) {
  for (const Segment& segment : call.segments) {
    if (is_rotated(segment.view.format.v)) return true;
  }
  return false;
}

inline Context make_context(const AttentionCall& call, const AttendTask& task,
                            AttendScratch& scratch) {
  const KvView& view = call.segments[0].view;
  return {&call,
          &task,
          &scratch,
          call.num_heads() / view.num_kv_heads,
          sequence_end(call, task.seq) - call.q_len(task.seq),
          padded_dim_v(view.head_dim_v) / kTileLanes,
          any_rotated_values(call)};
}

// The task's queries as floats, padded with zeros to query_stride.
inline void load_queries(const Context& c) {
  const ConstTensorView& q = c.call->q;
  const int64_t head_dim = q.shape[2];
  for (int row = 0; row < c.task->num_rows; ++row) {
    const int64_t query = c.call->query_indptr[static_cast<size_t>(c.task->seq)] +
                          (c.task->row_begin + row) / c.group;
    const std::byte* from = q.at(query, row_head(c, row));
    float* to = c.scratch->query + row * c.scratch->query_stride;
    float* prepared = c.scratch->prepared + row * c.scratch->query_stride;
    for (int64_t d = 0; d < c.scratch->query_stride; ++d) {
      prepared[d] = 0.0f;
      to[d] = d < head_dim ? load_float(q.dtype, from + d * dtype_bytes(q.dtype)) : 0.0f;
    }
  }
}

void attend(const AttentionCall& call, const AttendTask& task, AttendScratch& scratch) {
  const Context c = make_context(call, task, scratch);
  const int64_t record = kPartialHeader + scratch.value_stride;
  load_queries(c);
  if (task.partials == nullptr) clear_totals(c);
  for (int64_t p = task.partition_begin; p < task.partition_end; ++p) {
    process_partition(c, p);
    for (int row = 0; row < task.num_rows; ++row) {
      const float sum = reduce_add(vload(scratch.sums + row * kTileLanes));
      const float* acc = scratch.acc + row * scratch.value_stride;
      if (task.partials == nullptr) {
        merge_part(c, row, scratch.max[row], sum, acc);
        continue;
      }
      float* to = task.partials + ((p - task.partition_begin) * task.num_rows + row) * record;
      to[0] = scratch.max[row];
      to[1] = sum;
      std::memcpy(to + kPartialHeader, acc,
                  sizeof(float) * static_cast<size_t>(scratch.value_stride));
    }
  }
  if (task.partials == nullptr) write_rows(c);
}

void merge(const AttentionCall& call, const MergeTask& task, AttendScratch& scratch) {
  AttendTask rows;
  rows.seq = task.seq;
  rows.kv_head = task.kv_head;
  rows.row_begin = task.row_begin;
  rows.num_rows = task.num_rows;
  const Context c = make_context(call, rows, scratch);
  const int64_t record = kPartialHeader + scratch.value_stride;
  clear_totals(c);
  for (int64_t p = 0; p < task.num_partitions; ++p) {
    for (int row = 0; row < task.num_rows; ++row) {
      const float* part = task.partials + (p * task.num_rows + row) * record;
      merge_part(c, row, part[0], part[1], part + kPartialHeader);
    }
  }
  write_rows(c);
}
