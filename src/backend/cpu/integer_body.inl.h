// Dots and sums in integers, for codes that are small integers times one scale of the row. Written
// once against `Vec` and `Ints` of the spine that includes it.
//
// A code stands for scale * unit * (integer + offset). The query becomes integers of 15 bits with
// one scale, and so do, step by step, the weights times the scales of their values; products of
// pairs are summed in 32 bits, exactly. What is rounded is one element of the query, or one weight,
// to 1 / 16383 of the largest of its row: 6e-5 of it at most, far below the error of any code.
// Pairs are those of even_bytes and odd_bytes, in the order in which codes are unpacked; the other
// side is brought into the same order.

// 512 dims * 16383 * 128 stay below 2^31.
constexpr float kMostInteger = 16383.0f;

constexpr bool has_integers(KvCode code) {
  if (!is_packed(code)) return false;
  const internal::PackedFamily family = internal::traits_of(code).family;
  return family == internal::PackedFamily::kv_quant || family == internal::PackedFamily::scalar ||
         family == internal::PackedFamily::trellis;
}
// Requires, here and below: has_integers(code).
constexpr float integer_offset(KvCode code) {
  return has_levels(internal::traits_of(code)) ? 0.5f : code == KvCode::q6 ? -32.0f : 0.0f;
}
constexpr float integer_unit(KvCode code) {
  return has_levels(internal::traits_of(code)) ? 1.0f / 32.0f : 1.0f;
}
constexpr int integer_order(KvCode code) {
  const internal::PackedTraits traits = internal::traits_of(code);
  return traits.family == internal::PackedFamily::trellis ? 2 : traits.bits;
}

constexpr int kPairs = internal::kChunk / 2;  // words of a chunk and lane
// Element of half `half` of pair `w` of a chunk.
template <int kOrder>
constexpr int element_of_pair(int w, int half) {
  return element_of<kOrder>(w / 2, w % 2 + 2 * half);
}

// What brings `max` to kMostInteger; 0 where that is no finite number: for zeros, for denormals,
// whose products are what rounding leaves of nothing, and for infinity and NaN.
inline float integer_factor(float max) {
  const bool has_one = max > 1e-33f && max < std::numeric_limits<float>::infinity();
  return has_one ? kMostInteger / max : 0.0f;
}

// 16 integers to the 8 words of a chunk.
template <int kOrder>
inline void pair_up(const uint32_t* integers, uint32_t* words) {
  for (int w = 0; w < kPairs; ++w) {
    words[w] = (integers[element_of_pair<kOrder>(w, 0)] & 0xffffu) |
               (integers[element_of_pair<kOrder>(w, 1)] << 16);
  }
}

// ---- a tile as pairs of integers

// The 16 scales, unit included.
template <KvCode kCode>
inline Vec load_scales(const Planes& planes) {
  const Vec scales = internal::traits_of(kCode).family == internal::PackedFamily::kv_quant
                         ? load_floats(planes.scales)
                         : load_halves(planes.scales);
  return vmul(scales, vset(integer_unit(kCode)));
}

// Behind a tile's lines: 16 scales, unit included, then the offset.
inline const float* scales_behind(const std::byte* tile, int num_lines) {
  return reinterpret_cast<const float*>(tile + num_lines * kLineBytes);
}

// Writes num_chunks(head_dim) * 8 lines of pairs and what lies behind them at `out`. Fetches
// `ahead` meanwhile.
template <KvCode kCode, bool kIsKey>
void unpack_integers(const std::byte* tile, const std::byte* ahead, int head_dim, float* out) {
  const Planes planes = planes_at<kCode>(tile, head_dim);
  const Ints table = table_of<kCode>();
  const int chunks = internal::num_chunks(head_dim);
  const int64_t bytes = internal::tile_bytes(internal::traits_of(kCode), head_dim);
  int64_t fetched = 0;
  Ints before = iset(0);
  auto* const words = reinterpret_cast<uint32_t*>(out);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (; fetched * chunks < bytes * (chunk + 1); fetched += kLineBytes) prefetch(ahead + fetched);
    Ints q[4];
    load_bytes<kCode, kIsKey>(planes, chunk, table, before, q);
    uint32_t* const to = words + chunk * kPairs * kTileLanes;
    for (int i = 0; i < 4; ++i) {
      istore(to + 2 * i * kTileLanes, even_bytes(q[i]));
      istore(to + (2 * i + 1) * kTileLanes, odd_bytes(q[i]));
    }
  }
  float* const behind = out + chunks * kPairs * kTileLanes;
  vstore(behind, load_scales<kCode>(planes));
  behind[kTileLanes] = integer_offset(kCode);
}

// ---- queries

// A query as the dots below read it, in place of query_stride floats: its scale, the offset times
// the sum of its integers, then from float 16 on the words.
constexpr int kQueryHeader = 16;
using PackQuery = void (*)(const float* query, int num_chunks, float* row);

template <KvCode kCode>
void pack_query(const float* query, int num_chunks, float* row) {
  Vec top = vset(0.0f);
  Vec zeros = vset(0.0f);  // NaN in a lane that met infinity or NaN
  for (int c = 0; c < num_chunks; ++c) {
    const Vec x = vload(query + c * kTileLanes);
    top = vmax(vabs(x), top);
    zeros = vfma(x, vset(0.0f), zeros);
  }
  const float max = reduce_max(top);
  const float factor = integer_factor(max);
  uint32_t* const words = reinterpret_cast<uint32_t*>(row) + kQueryHeader;
  int64_t sum = 0;  // integers of NaN may be anything
  for (int c = 0; c < num_chunks; ++c) {
    uint32_t integers[kTileLanes];
    istore(integers, to_ints(vmul(vload(query + c * kTileLanes), vset(factor))));
    for (const uint32_t x : integers) sum += static_cast<int32_t>(x);
    pair_up<integer_order(kCode)>(integers, words + c * kPairs);
  }
  row[0] = max / kMostInteger + reduce_add(zeros);
  row[1] = integer_offset(kCode) * static_cast<float>(sum);
}

// ---- dots

template <int R, int T>
inline void dot_integer_tiles(const float* query, int64_t query_stride,
                              const std::byte* const* tiles, int num_words, float* scores) {
  Ints sum[R * T];
  unrolled<R * T>([&](auto i) { sum[i] = iset(0); });
  for (int w = 0; w < num_words; ++w) {
    Ints k[T];
    unrolled<T>([&](auto t) { k[t] = iload(tiles[t] + w * kLineBytes); });
    unrolled<R>([&](auto r) {
      const Ints q = ibroadcast(query + r * query_stride + kQueryHeader + w);
      unrolled<T>([&](auto t) { sum[r * T + t] = add_pairs(k[t], q, sum[r * T + t]); });
    });
  }
  for (int r = 0; r < R; ++r) {
    const Vec scale = vset(query[r * query_stride]);
    const Vec offset = vset(query[r * query_stride + 1]);
    for (int t = 0; t < T; ++t) {
      const Vec dots = vmul(vadd(to_float(sum[r * T + t]), offset), scale);
      vstore(scores + r * kStep + t * kTileTokens,
             vmul(dots, vload(scales_behind(tiles[t], num_words))));
    }
  }
}

// Tiles [begin, end) of a step.
template <int R>
inline void dot_integer_step(const float* query, int64_t query_stride,
                             const std::byte* const* tiles, int begin, int end, int num_words,
                             float* scores) {
  constexpr int kFit = kAccumulators / R > 0 ? kAccumulators / R : 1;
  constexpr int kAtOnce = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  int t = begin;
  for (; t + kAtOnce <= end; t += kAtOnce) {
    dot_integer_tiles<R, kAtOnce>(query, query_stride, tiles + t, num_words,
                                  scores + t * kTileTokens);
  }
  for (; t < end; ++t) {
    dot_integer_tiles<R, 1>(query, query_stride, tiles + t, num_words, scores + t * kTileTokens);
  }
}

inline void dot_integers(int num_rows, const float* query, int64_t stride, const StepTiles& s,
                         int begin, int end, int num_words, float* scores) {
  if constexpr (kRowsAtOnce == 1) {
    return dot_integer_step<1>(query, stride, s.k, begin, end, num_words, scores);
  } else {
    switch (num_rows) {
      case 1:
        return dot_integer_step<1>(query, stride, s.k, begin, end, num_words, scores);
      case 2:
        return dot_integer_step<2>(query, stride, s.k, begin, end, num_words, scores);
      case 3:
        return dot_integer_step<3>(query, stride, s.k, begin, end, num_words, scores);
      default:
        return dot_integer_step<4>(query, stride, s.k, begin, end, num_words, scores);
    }
  }
}

// Dots straight from a stored tile, for tasks of few rows: codes stay in registers. The same bits.
template <KvCode kCode, int R>
inline void dot_stored_tile(const float* query, int64_t query_stride, const std::byte* tile,
                            const std::byte* ahead, int num_words, float* scores) {
  const int head_dim = num_words * 2;
  const Planes planes = planes_at<kCode>(tile, head_dim);
  const Ints table = table_of<kCode>();
  const int chunks = num_words / kPairs;
  const int64_t bytes = internal::tile_bytes(internal::traits_of(kCode), head_dim);
  int64_t fetched = 0;
  Ints before = iset(0);
  Ints sum[R];
  unrolled<R>([&](auto r) { sum[r] = iset(0); });
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (; fetched * chunks < bytes * (chunk + 1); fetched += kLineBytes) prefetch(ahead + fetched);
    Ints q[4];
    load_bytes<kCode, true>(planes, chunk, table, before, q);
    const float* const words = query + kQueryHeader + chunk * kPairs;
    unrolled<4>([&](auto i) {
      const Ints even = even_bytes(q[i]);
      const Ints odd = odd_bytes(q[i]);
      unrolled<R>([&](auto r) {
        const float* const of_row = words + r * query_stride + 2 * i;
        sum[r] = add_pairs(even, ibroadcast(of_row), sum[r]);
        sum[r] = add_pairs(odd, ibroadcast(of_row + 1), sum[r]);
      });
    });
  }
  const Vec scales = load_scales<kCode>(planes);
  for (int r = 0; r < R; ++r) {
    const Vec scale = vset(query[r * query_stride]);
    const Vec offset = vset(query[r * query_stride + 1]);
    vstore(scores + r * kStep, vmul(vmul(vadd(to_float(sum[r]), offset), scale), scales));
  }
}

template <KvCode kCode>
void dot_stored(int num_rows, const float* query, int64_t stride, const StepTiles& s, int begin,
                int end, int num_words, float* scores) {
  for (int t = begin; t < end; ++t) {
    float* const to = scores + t * kTileTokens;
    if constexpr (kRowsAtOnce == 1) {
      dot_stored_tile<kCode, 1>(query, stride, s.k[t], s.next_k[t], num_words, to);
      continue;
    } else {
      switch (num_rows) {
        case 1:
          dot_stored_tile<kCode, 1>(query, stride, s.k[t], s.next_k[t], num_words, to);
          break;
        case 2:
          dot_stored_tile<kCode, 2>(query, stride, s.k[t], s.next_k[t], num_words, to);
          break;
        case 3:
          dot_stored_tile<kCode, 3>(query, stride, s.k[t], s.next_k[t], num_words, to);
          break;
        default:
          dot_stored_tile<kCode, 4>(query, stride, s.k[t], s.next_k[t], num_words, to);
          break;
      }
    }
  }
}

// ---- values

// One row's weights of a step times the scales of the values, as words of pairs.
struct IntegerWeights {
  uint32_t words[kTilesPerStep * kPairs];
  float scale;
  float offset;
};

// scales[t]: of the 16 values of tile t.
template <int kOrder>
inline void pack_weights(const float* weights, const Vec* scales, float offset, int lo, int hi,
                         IntegerWeights& out) {
  Vec p[kTilesPerStep];
  Vec top = vset(0.0f);
  const int first = lo / kTileTokens;
  const int last = (hi + kTileTokens - 1) / kTileTokens;
  for (int t = first; t < last; ++t) {
    p[t] = vmul(vload(weights + t * kTileTokens), scales[t]);
    const int begin = lo - t * kTileTokens;
    const int end = hi - t * kTileTokens;
    // The scale of a slot without a token may be anything.
    if (begin > 0 || end < kTileTokens) {
      p[t] = keep_lanes(p[t], begin > 0 ? begin : 0, end < kTileTokens ? end : kTileTokens, 0.0f);
    }
    top = vmax(vabs(p[t]), top);
  }
  const float max = reduce_max(top);
  const float factor = integer_factor(max);
  int64_t sum = 0;  // integers of NaN may be anything
  for (int t = first; t < last; ++t) {
    uint32_t integers[kTileLanes];
    istore(integers, to_ints(vmul(p[t], vset(factor))));
    for (const uint32_t x : integers) sum += static_cast<int32_t>(x);
    pair_up<kOrder>(integers, out.words + t * kPairs);
  }
  out.scale = max / kMostInteger;
  out.offset = offset * static_cast<float>(sum);
}

// Dim groups [group, group + G), tiles [first, last).
template <int R, int G>
inline void add_integer_groups(const IntegerWeights* weights, const std::byte* const* tiles,
                               int first, int last, int group, float* acc, int64_t acc_stride) {
  Ints sum[R * G];
  unrolled<R * G>([&](auto i) { sum[i] = iset(0); });
  for (int t = first; t < last; ++t) {
    const std::byte* const lines = tiles[t] + group * kPairs * kLineBytes;
    for (int w = 0; w < kPairs; ++w) {
      Ints v[G];
      unrolled<G>([&](auto g) { v[g] = iload(lines + (g * kPairs + w) * kLineBytes); });
      unrolled<R>([&](auto r) {
        const Ints p = iset(weights[r].words[t * kPairs + w]);
        unrolled<G>([&](auto g) { sum[r * G + g] = add_pairs(v[g], p, sum[r * G + g]); });
      });
    }
  }
  for (int r = 0; r < R; ++r) {
    const Vec scale = vset(weights[r].scale);
    const Vec offset = vset(weights[r].offset);
    for (int g = 0; g < G; ++g) {
      float* const to = acc + r * acc_stride + (group + g) * kTileLanes;
      vstore(to, vfma(vadd(to_float(sum[r * G + g]), offset), scale, vload(to)));
    }
  }
}

template <int kOrder, int R>
inline void add_integer_step(const float* weights, const StepTiles& s, int lo, int hi,
                             int num_groups, float* acc, int64_t stride) {
  constexpr int kFit = kAccumulators / R > 0 ? kAccumulators / R : 1;
  constexpr int kAtOnce = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  const int first = lo / kTileTokens;
  const int last = (hi + kTileTokens - 1) / kTileTokens;
  Vec scales[kTilesPerStep];
  for (int t = first; t < last; ++t) scales[t] = vload(scales_behind(s.v[t], num_groups * kPairs));
  const float offset = scales_behind(s.v[first], num_groups * kPairs)[kTileLanes];
  IntegerWeights packed[R];
  for (int r = 0; r < R; ++r) {
    pack_weights<kOrder>(weights + r * kStep, scales, offset, lo, hi, packed[r]);
  }
  int g = 0;
  for (; g + kAtOnce <= num_groups; g += kAtOnce) {
    add_integer_groups<R, kAtOnce>(packed, s.v, first, last, g, acc, stride);
  }
  for (; g < num_groups; ++g) {
    add_integer_groups<R, 1>(packed, s.v, first, last, g, acc, stride);
  }
}

template <int kOrder>
inline void add_integers(int num_rows, const float* weights, const StepTiles& s, int lo, int hi,
                         int num_groups, float* acc, int64_t stride) {
  if constexpr (kRowsAtOnce == 1) {
    return add_integer_step<kOrder, 1>(weights, s, lo, hi, num_groups, acc, stride);
  } else {
    switch (num_rows) {
      case 1:
        return add_integer_step<kOrder, 1>(weights, s, lo, hi, num_groups, acc, stride);
      case 2:
        return add_integer_step<kOrder, 2>(weights, s, lo, hi, num_groups, acc, stride);
      case 3:
        return add_integer_step<kOrder, 3>(weights, s, lo, hi, num_groups, acc, stride);
      default:
        return add_integer_step<kOrder, 4>(weights, s, lo, hi, num_groups, acc, stride);
    }
  }
}

// The same straight from stored tiles.
template <KvCode kCode, int R>
inline void add_stored_step(const float* weights, const StepTiles& s, int lo, int hi,
                            int num_groups, float* acc, int64_t stride) {
  const int head_dim = num_groups * internal::kChunk;
  const int first = lo / kTileTokens;
  const int last = (hi + kTileTokens - 1) / kTileTokens;
  const Ints table = table_of<kCode>();
  const int64_t bytes = internal::tile_bytes(internal::traits_of(kCode), head_dim);
  Planes planes[kTilesPerStep];
  Vec scales[kTilesPerStep];
  Ints before[kTilesPerStep];
  for (int t = first; t < last; ++t) {
    planes[t] = planes_at<kCode>(s.v[t], head_dim);
    scales[t] = load_scales<kCode>(planes[t]);
    before[t] = iset(0);
  }
  IntegerWeights packed[R];
  for (int r = 0; r < R; ++r) {
    pack_weights<integer_order(kCode)>(weights + r * kStep, scales, integer_offset(kCode), lo, hi,
                                       packed[r]);
  }
  int64_t fetched = 0;
  for (int g = 0; g < num_groups; ++g) {
    for (; fetched * num_groups < bytes * (g + 1); fetched += kLineBytes) {
      for (int t = first; t < last; ++t) prefetch(s.next_v[t] + fetched);
    }
    Ints sum[R];
    unrolled<R>([&](auto r) { sum[r] = iset(0); });
    for (int t = first; t < last; ++t) {
      Ints q[4];
      load_bytes<kCode, false>(planes[t], g, table, before[t], q);
      unrolled<4>([&](auto i) {
        const Ints even = even_bytes(q[i]);
        const Ints odd = odd_bytes(q[i]);
        unrolled<R>([&](auto r) {
          const uint32_t* const words = packed[r].words + t * kPairs + 2 * i;
          sum[r] = add_pairs(even, iset(words[0]), sum[r]);
          sum[r] = add_pairs(odd, iset(words[1]), sum[r]);
        });
      });
    }
    for (int r = 0; r < R; ++r) {
      float* const to = acc + r * stride + g * kTileLanes;
      const Vec sums = vadd(to_float(sum[r]), vset(packed[r].offset));
      vstore(to, vfma(sums, vset(packed[r].scale), vload(to)));
    }
  }
}

template <KvCode kCode>
void add_stored(int num_rows, const float* weights, const StepTiles& s, int lo, int hi,
                int num_groups, float* acc, int64_t stride) {
  if constexpr (kRowsAtOnce == 1) {
    return add_stored_step<kCode, 1>(weights, s, lo, hi, num_groups, acc, stride);
  } else {
    switch (num_rows) {
      case 1:
        return add_stored_step<kCode, 1>(weights, s, lo, hi, num_groups, acc, stride);
      case 2:
        return add_stored_step<kCode, 2>(weights, s, lo, hi, num_groups, acc, stride);
      case 3:
        return add_stored_step<kCode, 3>(weights, s, lo, hi, num_groups, acc, stride);
      default:
        return add_stored_step<kCode, 4>(weights, s, lo, hi, num_groups, acc, stride);
    }
  }
}

// ---- the functions of a code

struct IntegerKeys {
  UnpackTile unpack;
  PackQuery pack;
  DotRows dot_stored;  // in the place of unpack and dot_integers
};
template <KvCode kCode>
inline IntegerKeys integer_keys() {
  return {unpack_integers<kCode, true>, pack_query<kCode>, dot_stored<kCode>};
}
struct IntegerValues {
  UnpackTile unpack;
  AddRows add;
  AddRows add_stored;  // in the place of both
};
template <KvCode kCode>
inline IntegerValues integer_values() {
  return {unpack_integers<kCode, false>, add_integers<integer_order(kCode)>, add_stored<kCode>};
}

// make.operator()<code>() for a code that has_integers; {} for another.
template <class Make>
inline auto of_integer_code(KvCode code, Make make)
    -> decltype(make.template operator()<KvCode::q8>()) {
  switch (code) {
    case KvCode::q8:
      return make.template operator()<KvCode::q8>();
    case KvCode::q6:
      return make.template operator()<KvCode::q6>();
    case KvCode::q4:
      return make.template operator()<KvCode::q4>();
    case KvCode::tq8:
      return make.template operator()<KvCode::tq8>();
    case KvCode::tq4:
      return make.template operator()<KvCode::tq4>();
    case KvCode::tq3:
      return make.template operator()<KvCode::tq3>();
    case KvCode::tq2:
      return make.template operator()<KvCode::tq2>();
    case KvCode::tcq4:
      return make.template operator()<KvCode::tcq4>();
    case KvCode::tcq3:
      return make.template operator()<KvCode::tcq3>();
    case KvCode::tcq2:
      return make.template operator()<KvCode::tcq2>();
    default:
      return {};
  }
}
