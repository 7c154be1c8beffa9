// Packed tiles to f32 tiles, written once against `Vec` and the 16 x 32-bit integers `Ints` of the
// spine that includes it. format/packed_tile.h says where the bits lie; the values are those of
// decode_stored_row, bit for bit: every product below is one rounding of the same exact factors.
//
// A chunk is 16 elements of 16 lanes, so K and V are unpacked alike: element = dim and lane = token
// in K, element = token and lane = dim in V, and 16 elements give 16 lines of the f32 tile. Codes
// are handled four at a time as the bytes of a word: q[i], byte j = code of element
// element_of(i, j).

template <int kBits>
constexpr int element_of(int i, int j) {
  if (kBits == 8) return 4 * i + j;
  if (kBits >= 4) return i / 2 * 8 + 2 * j + i % 2;
  return 4 * j + i;
}

// Bits 4j .. 4j + 3 of 16 bits to byte j; bits 2j and 2j + 1 of 8 bits to byte j.
inline Ints spread_nibbles(Ints x) {
  x = iand(ior(x, shl<8>(x)), iset(0x00ff00ffu));
  return iand(ior(x, shl<4>(x)), iset(0x0f0f0f0fu));
}
inline Ints spread_pairs(Ints x) {
  x = iand(ior(x, shl<12>(x)), iset(0x000f000fu));
  return iand(ior(x, shl<6>(x)), iset(0x03030303u));
}

// The 16 bits of a chunk in a plane of 1 bit.
inline Ints load_bits(const std::byte* plane, int chunk) {
  const Ints line = iload(plane + chunk / 2 * kLineBytes);
  return chunk % 2 != 0 ? shr<16>(line) : iand(line, iset(0xffffu));
}

// ---- codes

template <int kHalf>
inline void low_nibbles(const std::byte* plane, int chunk, Ints* q) {
  const Ints x = iload(plane + (2 * chunk + kHalf) * kLineBytes);
  q[2 * kHalf] = iand(x, iset(0x0f0f0f0fu));
  q[2 * kHalf + 1] = iand(shr<4>(x), iset(0x0f0f0f0fu));
}
// Joins bits 4 and up, given as the bytes of spread words: even elements' above odd elements'.
template <int kHalf, int kMore>
inline void join_high(Ints spread, Ints* q) {
  constexpr uint32_t kMask = 0x01010101u * ((1u << kMore) - 1);
  q[2 * kHalf] = ior(q[2 * kHalf], shl<4>(iand(spread, iset(kMask))));
  q[2 * kHalf + 1] = ior(q[2 * kHalf + 1], shl<4 - kMore>(iand(spread, iset(kMask << kMore))));
}

template <int kBits>
inline void load_codes(const std::byte* const* planes, int chunk, Ints* q) {
  if constexpr (kBits == 8) {
    for (int w = 0; w < 4; ++w) q[w] = iload(planes[0] + (4 * chunk + w) * kLineBytes);
  } else if constexpr (kBits >= 4) {
    low_nibbles<0>(planes[0], chunk, q);
    low_nibbles<1>(planes[0], chunk, q);
    if constexpr (kBits == 6) {
      const Ints high = iload(planes[1] + chunk * kLineBytes);
      join_high<0, 2>(spread_nibbles(iand(high, iset(0xffffu))), q);
      join_high<1, 2>(spread_nibbles(shr<16>(high)), q);
    } else if constexpr (kBits == 5) {
      const Ints high = load_bits(planes[1], chunk);
      join_high<0, 1>(spread_pairs(iand(high, iset(0xffu))), q);
      join_high<1, 1>(spread_pairs(shr<8>(high)), q);
    }
  } else {
    const Ints x = iload(planes[0] + chunk * kLineBytes);
    const Ints two = iset(0x03030303u);
    q[0] = iand(x, two);
    q[1] = iand(shr<2>(x), two);
    q[2] = iand(shr<4>(x), two);
    q[3] = iand(shr<6>(x), two);
    if constexpr (kBits == 3) {
      const Ints high = spread_nibbles(load_bits(planes[1], chunk));
      const Ints one = iset(0x04040404u);
      q[0] = ior(q[0], iand(shl<2>(high), one));
      q[1] = ior(q[1], iand(shl<1>(high), one));
      q[2] = ior(q[2], iand(high, one));
      q[3] = ior(q[3], iand(shr<1>(high), one));
    }
  }
}

// The low two bits of a trellis index, 2 * (u[i] xor u[i - 2]) + u[i - 1], as nibbles' bits: the
// codes before a chunk's first lie in the chunk before it, in K in the same lane, in V in the lanes
// before.
template <bool kIsKey>
inline void load_subsets(const std::byte* plane, int chunk, Ints& before, Ints& high, Ints& low) {
  const Ints u = load_bits(plane, chunk);
  Ints one_back, two_back;
  if constexpr (kIsKey) {
    one_back = iand(ior(shl<1>(u), shr<15>(before)), iset(0xffffu));
    two_back = iand(ior(shl<2>(u), shr<14>(before)), iset(0xffffu));
  } else {
    one_back = lanes_up<1>(u, before);
    two_back = lanes_up<2>(u, before);
  }
  before = u;
  high = spread_nibbles(ixor(u, two_back));
  low = spread_nibbles(one_back);
}

// The index's bits 0 and 1 of elements 4j + kPart.
template <int kPart>
inline Ints subset_of(Ints high, Ints low) {
  const Ints one = iset(0x01010101u);
  return ior(shl<1>(iand(shr<kPart>(high), one)), iand(shr<kPart>(low), one));
}

// Elements 4j + kPart: the index's bits 2 and 3 (`up`, from bit 0 of each byte up), and level.
template <int kBits, int kPart>
inline Ints trellis_levels_of(Ints up, Ints top, Ints high, Ints low, Ints table) {
  const Ints n = ior(shl<2>(up), subset_of<kPart>(high, low));
  if constexpr (kBits < 4) return byte_lookup(n, table);
  // 32 levels: the lower half is the complement of the upper, read backwards. 0xff where the top
  // bit is 0.
  const Ints bit = iand(shr<kPart>(top), iset(0x01010101u));
  const Ints flip = ixor(isub(shl<8>(bit), bit), iset(0xffffffffu));
  return ixor(byte_lookup(iand(ixor(n, flip), iset(0x0f0f0f0fu)), table), flip);
}

template <int kBits, bool kIsKey>
inline void load_trellis(const std::byte* const* planes, int chunk, Ints table, Ints& before,
                         Ints* q) {
  Ints high, low;
  Ints top = iset(0);
  Ints up0, up1, up2, up3;
  if constexpr (kBits == 2) {
    const Ints up = spread_nibbles(load_bits(planes[0], chunk));
    const Ints one = iset(0x01010101u);
    up0 = iand(up, one);
    up1 = iand(shr<1>(up), one);
    up2 = iand(shr<2>(up), one);
    up3 = iand(shr<3>(up), one);
  } else {
    const Ints up = iload(planes[0] + chunk * kLineBytes);
    const Ints two = iset(0x03030303u);
    up0 = iand(up, two);
    up1 = iand(shr<2>(up), two);
    up2 = iand(shr<4>(up), two);
    up3 = iand(shr<6>(up), two);
  }
  if constexpr (kBits == 4) top = spread_nibbles(load_bits(planes[1], chunk));
  load_subsets<kIsKey>(planes[kBits == 4 ? 2 : 1], chunk, before, high, low);
  q[0] = trellis_levels_of<kBits, 0>(up0, top, high, low, table);
  q[1] = trellis_levels_of<kBits, 1>(up1, top, high, low, table);
  q[2] = trellis_levels_of<kBits, 2>(up2, top, high, low, table);
  q[3] = trellis_levels_of<kBits, 3>(up3, top, high, low, table);
}

// ---- values

constexpr bool has_levels(internal::PackedTraits traits) {
  return traits.family == internal::PackedFamily::trellis ||
         (traits.family == internal::PackedFamily::scalar && traits.bits < 8);
}
// Codes that are, or are looked up as, signed bytes.
constexpr bool has_signed_bytes(internal::PackedTraits traits) {
  if (has_levels(traits)) return true;
  if (traits.bits == 8) return traits.is_signed;
  return traits.family == internal::PackedFamily::kv_quant && traits.bits == 4;
}

// Signed bytes by code: levels (of the trellis with 32, the upper half), or code - 8.
template <KvCode kCode>
inline Ints byte_table() {
  constexpr internal::PackedTraits kTraits = internal::traits_of(kCode);
  int8_t bytes[16] = {};
  if constexpr (has_levels(kTraits)) {
    const internal::LevelTable table = kTraits.family == internal::PackedFamily::trellis
                                           ? internal::trellis_levels(kTraits.bits)
                                           : internal::scalar_levels(kTraits.bits);
    const size_t count = table.levels.size() < 16 ? table.levels.size() : 16;
    const size_t from = table.levels.size() - count;
    for (size_t i = 0; i < count; ++i) bytes[i] = table.levels[from + i];
  } else {
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(i - 8);
  }
  return load_table(bytes);
}

// What codes are multiplied with: a lane's own numbers in K, one number for each element in V.
template <bool kIsKey>
struct Scales {
  Vec lanes;
  float elements[16];

  void set(Vec x) {
    lanes = x;
    if constexpr (!kIsKey) vstore(elements, x);
  }
  Vec of(int element) const { return kIsKey ? lanes : vset(elements[element]); }
};

// The values of byte j of four-code words, before the scale. Levels count in 1 / 64: 2 v + 1.
template <KvCode kCode, int j>
inline Vec value_of(Ints q) {
  constexpr internal::PackedTraits kTraits = internal::traits_of(kCode);
  if constexpr (has_levels(kTraits)) {
    return to_float(ior(sar<23>(shl<24 - 8 * j>(q)), iset(1)));
  } else if constexpr (has_signed_bytes(kTraits)) {
    return to_float(sar<24>(shl<24 - 8 * j>(q)));
  } else {
    return to_float(iand(shr<8 * j>(q), iset(0xffu)));
  }
}
template <KvCode kCode, int j>
inline Vec centroid_of(Ints q, const float* centroids) {
  uint32_t codes[16];
  float values[16];
  istore(codes, iand(shr<8 * j>(q), iset(0xffu)));
  for (int i = 0; i < 16; ++i) values[i] = centroids[codes[i]];
  return vload(values);
}

template <KvCode kCode, bool kIsKey, int i, int j>
inline void store_value(Ints q, const Scales<kIsKey>& scales, const Scales<kIsKey>& zeros,
                        const float* centroids, float* out) {
  constexpr internal::PackedTraits kTraits = internal::traits_of(kCode);
  constexpr int kElement =
      element_of < kTraits.family == internal::PackedFamily::trellis ? 2 : kTraits.bits > (i, j);
  Vec x;
  if constexpr (kTraits.family == internal::PackedFamily::turboquant_value) {
    x = centroid_of<kCode, j>(q, centroids);
  } else {
    x = value_of<kCode, j>(q);
  }
  if constexpr (kCode == KvCode::q6) x = vsub(x, vset(32.0f));
  if constexpr (kTraits.family == internal::PackedFamily::turboquant_key) {
    x = vadd(x, zeros.of(kElement));
  }
  vstore(out + kElement * kTileLanes, vmul(x, scales.of(kElement)));
}

template <KvCode kCode, bool kIsKey, int i>
inline void store_word(Ints q, const Scales<kIsKey>& scales, const Scales<kIsKey>& zeros,
                       const float* centroids, float* out) {
  store_value<kCode, kIsKey, i, 0>(q, scales, zeros, centroids, out);
  store_value<kCode, kIsKey, i, 1>(q, scales, zeros, centroids, out);
  store_value<kCode, kIsKey, i, 2>(q, scales, zeros, centroids, out);
  store_value<kCode, kIsKey, i, 3>(q, scales, zeros, centroids, out);
}

// ---- codes of a tile

// Where the planes of a stored tile lie.
struct Planes {
  const std::byte* at[internal::kMaxPlanes];
  const std::byte* scales;
};

template <KvCode kCode>
inline Planes planes_at(const std::byte* tile, int head_dim) {
  constexpr internal::PlaneBits kPlanes = internal::planes_of(internal::traits_of(kCode));
  Planes planes;
  const std::byte* next = tile;
  for (int p = 0; p < internal::kMaxPlanes; ++p) {
    planes.at[p] = next;
    next += internal::plane_bytes(kPlanes.bits[p], head_dim);
  }
  planes.scales = next;
  return planes;
}

template <KvCode kCode>
inline Ints table_of() {
  if constexpr (has_levels(internal::traits_of(kCode)) || kCode == KvCode::q4) {
    return byte_table<kCode>();
  } else {
    return iset(0);
  }
}

// The codes of a chunk, or what they are looked up as, as bytes in the order of the planes.
// `before` as load_trellis wants it.
template <KvCode kCode, bool kIsKey>
inline void load_bytes(const Planes& planes, int chunk, Ints table, Ints& before, Ints* q) {
  constexpr internal::PackedTraits kTraits = internal::traits_of(kCode);
  if constexpr (kTraits.family == internal::PackedFamily::trellis) {
    load_trellis<kTraits.bits, kIsKey>(planes.at, chunk, table, before, q);
  } else {
    load_codes<kTraits.bits>(planes.at, chunk, q);
    if constexpr (has_levels(kTraits) || kCode == KvCode::q4) {
      for (int i = 0; i < 4; ++i) q[i] = byte_lookup(q[i], table);
    }
  }
}

// ---- one tile

// Writes ceil(head_dim / 16) * 16 lines at `out`: a K or V tile of f32. Fetches `ahead`, a tile of
// the same format, meanwhile.
template <KvCode kCode, bool kIsKey>
void unpack_tile(const std::byte* tile, const std::byte* ahead, int head_dim, float* out) {
  using internal::PackedFamily;
  constexpr internal::PackedTraits kTraits = internal::traits_of(kCode);
  constexpr bool kGrouped = kTraits.family == PackedFamily::turboquant_key ||
                            kTraits.family == PackedFamily::turboquant_value;
  const Planes planes = planes_at<kCode>(tile, head_dim);
  const std::byte* const scale_line = planes.scales;
  const std::byte* const zero_line = tile + internal::zeros_offset(kTraits, head_dim);
  const float* const centroids = kTraits.family == PackedFamily::turboquant_value
                                     ? internal::lloyd_max(kTraits.bits).centroids.data()
                                     : nullptr;
  const Ints table = table_of<kCode>();

  Scales<kIsKey> scales, zeros;
  if constexpr (kTraits.family == PackedFamily::kv_quant) {
    scales.set(load_floats(scale_line));
  } else if constexpr (has_levels(kTraits)) {
    scales.set(vmul(load_halves(scale_line), vset(1.0f / 64.0f)));
  } else {
    scales.set(load_halves(scale_line));
  }
  zeros.set(vset(0.0f));
  const int chunks = internal::num_chunks(head_dim);
  const int64_t bytes = internal::tile_bytes(kTraits, head_dim);
  int64_t fetched = 0;
  Ints before = iset(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (; fetched * chunks < bytes * (chunk + 1); fetched += kLineBytes) prefetch(ahead + fetched);
    if constexpr (kGrouped) {
      if (chunk % 2 == 0) {
        const int64_t at = chunk / 2 * int64_t{kTileTokens} * 2;
        scales.set(load_halves(scale_line + at));
        if (kTraits.family == PackedFamily::turboquant_key) {
          zeros.set(load_halves(zero_line + at));
        }
      }
    }
    Ints q[4];
    load_bytes<kCode, kIsKey>(planes, chunk, table, before, q);
    float* const to = out + chunk * internal::kChunk * kTileLanes;
    store_word<kCode, kIsKey, 0>(q[0], scales, zeros, centroids, to);
    store_word<kCode, kIsKey, 1>(q[1], scales, zeros, centroids, to);
    store_word<kCode, kIsKey, 2>(q[2], scales, zeros, centroids, to);
    store_word<kCode, kIsKey, 3>(q[3], scales, zeros, centroids, to);
  }
}

using UnpackTile = void (*)(const std::byte*, const std::byte*, int, float*);

// The function for codes that hold both sides; null for a plain code.
template <bool kIsKey>
inline UnpackTile unpack_two_sided(KvCode code) {
  switch (code) {
    case KvCode::q8:
      return unpack_tile<KvCode::q8, kIsKey>;
    case KvCode::q6:
      return unpack_tile<KvCode::q6, kIsKey>;
    case KvCode::q4:
      return unpack_tile<KvCode::q4, kIsKey>;
    case KvCode::tq8:
      return unpack_tile<KvCode::tq8, kIsKey>;
    case KvCode::tq4:
      return unpack_tile<KvCode::tq4, kIsKey>;
    case KvCode::tq3:
      return unpack_tile<KvCode::tq3, kIsKey>;
    case KvCode::tq2:
      return unpack_tile<KvCode::tq2, kIsKey>;
    case KvCode::tcq4:
      return unpack_tile<KvCode::tcq4, kIsKey>;
    case KvCode::tcq3:
      return unpack_tile<KvCode::tcq3, kIsKey>;
    case KvCode::tcq2:
      return unpack_tile<KvCode::tcq2, kIsKey>;
    default:
      return nullptr;
  }
}

inline UnpackTile unpack_keys_of(KvCode code) {
  switch (code) {
    case KvCode::tqk_q8_0:
      return unpack_tile<KvCode::tqk_q8_0, true>;
    case KvCode::tqk_uint8:
      return unpack_tile<KvCode::tqk_uint8, true>;
    case KvCode::tqk_q5_0:
      return unpack_tile<KvCode::tqk_q5_0, true>;
    case KvCode::tqk_q4_0:
      return unpack_tile<KvCode::tqk_q4_0, true>;
    case KvCode::tqk_int2:
      return unpack_tile<KvCode::tqk_int2, true>;
    default:
      return unpack_two_sided<true>(code);
  }
}

inline UnpackTile unpack_values_of(KvCode code) {
  switch (code) {
    case KvCode::tqv_q2_0:
      return unpack_tile<KvCode::tqv_q2_0, false>;
    case KvCode::tqv_q3_0:
      return unpack_tile<KvCode::tqv_q3_0, false>;
    case KvCode::tqv_q4_0:
      return unpack_tile<KvCode::tqv_q4_0, false>;
    case KvCode::tqv_q5_0:
      return unpack_tile<KvCode::tqv_q5_0, false>;
    case KvCode::tqv_q8_0:
      return unpack_tile<KvCode::tqv_q8_0, false>;
    default:
      return unpack_two_sided<false>(code);
  }
}

// AttendKernels::unpack.
void unpack(KvCode code, bool is_key, const std::byte* tile, int head_dim, float* out) {
  (is_key ? unpack_keys_of : unpack_values_of)(code)(tile, tile, head_dim, out);
}
