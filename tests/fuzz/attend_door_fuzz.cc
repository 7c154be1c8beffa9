// Attention calls from arbitrary bytes: the checked door refuses and nothing is written, or the
// call runs inside the memory that it names, writes its outputs and nothing between them, gives the
// same bits with one thread and with three, and (where numbers are small) what the reference gives.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "fuzz/attend_call.h"
#include "fuzz/byte_reader.h"
#include "kvik/attention/reference.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/core/check.h"

namespace {

using kvik::AttentionCall;
using kvik::DType;
using kvik::TensorView;
using kvik::test::FuzzedCall;
using kvik::test::OwnedBytes;

constexpr double kMostWork = 1e6;
constexpr std::byte kUntouched{0xa5};

// Made once: a thread per input would cost more than the call.
kvik::Backend& backend_of(kvik::CpuIsa isa, int num_threads) {
  static std::map<std::pair<kvik::CpuIsa, int>, std::unique_ptr<kvik::Backend>> made;
  std::unique_ptr<kvik::Backend>& backend = made[{isa, num_threads}];
  if (backend == nullptr) {
    kvik::CpuBackendOptions options;
    options.isa = isa;
    options.num_threads = num_threads;
    backend = kvik::make_cpu_backend(options).value();
  }
  return *backend;
}

void clear(FuzzedCall& fuzzed) {
  for (OwnedBytes* memory : {&fuzzed.out(), &fuzzed.lse(), &fuzzed.lse_keys()}) {
    std::fill_n(memory->data(), memory->size(), kUntouched);
  }
}

std::vector<std::byte> bytes_of(FuzzedCall& fuzzed) {
  std::vector<std::byte> all;
  for (OwnedBytes* memory : {&fuzzed.out(), &fuzzed.lse(), &fuzzed.lse_keys()}) {
    all.insert(all.end(), memory->data(), memory->data() + memory->size());
  }
  return all;
}

double element(const TensorView& t, int64_t i, int64_t j, int64_t d) {
  const std::byte* p = t.at(i, j) + d * kvik::dtype_bytes(t.dtype);
  uint32_t bits = 0;
  std::memcpy(&bits, p, static_cast<size_t>(kvik::dtype_bytes(t.dtype)));
  const auto half = static_cast<uint16_t>(bits);
  switch (t.dtype) {
    case DType::f16:
      return kvik::f16_to_f32(half);
    case DType::bf16:
      return kvik::bf16_to_f32(half);
    default:
      float x;
      std::memcpy(&x, &bits, sizeof x);
      return x;
  }
}

// Bytes of `memory` outside the elements of `view` must be as clear() left them.
void check_gaps(const TensorView& view, const OwnedBytes& memory) {
  std::vector<bool> inside(static_cast<size_t>(memory.size()));
  const int64_t row = (view.rank == 3 ? view.dim(2) : 1) * kvik::dtype_bytes(view.dtype);
  for (int64_t i = 0; i < view.dim(0); ++i) {
    for (int64_t j = 0; row > 0 && j < view.dim(1); ++j) {
      const int64_t at = view.at(i, j) - memory.data();
      std::fill_n(inside.begin() + at, row, true);
    }
  }
  for (int64_t i = 0; i < memory.size(); ++i) {
    KVIK_CHECK(inside[static_cast<size_t>(i)] || memory.data()[i] == kUntouched,
               "a byte between the outputs was written");
  }
}

void check_close(double x, double expected, double tolerance) {
  if (x == expected) return;  // infinities
  KVIK_CHECK(std::fabs(x - expected) <= tolerance, "differs from the reference");
}

// Scores are at most 576 * 16 in magnitude here, typically far less; f32 keeps them to a few 1e-3,
// and outputs are averages of values below 4, rounded to 8 bits at worst.
void check_values(const AttentionCall& call) {
  const kvik::ReferenceResult reference = kvik::reference_attention(call).value();
  for (int64_t i = 0; i < call.q.dim(0); ++i) {
    for (int64_t h = 0; h < call.q.dim(1); ++h) {
      const auto row = static_cast<size_t>(i * call.q.dim(1) + h);
      const auto dims = static_cast<size_t>(call.out.dim(2));
      for (size_t d = 0; d < dims; ++d) {
        check_close(element(call.out, i, h, static_cast<int64_t>(d)), reference.out[row * dims + d],
                    0.05);
      }
      if (call.lse) check_close(element(*call.lse, i, h, 0), reference.lse[row], 0.02);
      if (call.lse_keys) {
        check_close(element(*call.lse_keys, i, h, 0), reference.lse_keys[row], 0.02);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvik::test::ByteReader bytes(data, size);
  const std::vector<kvik::CpuIsa> isas = kvik::available_cpu_isas(kvik::detect_cpu_features());
  const kvik::CpuIsa isa = isas[static_cast<size_t>(bytes.byte()) % isas.size()];
  const bool with_team = bytes.below(4) == 3;
  FuzzedCall fuzzed(bytes);
  const AttentionCall& call = fuzzed.call();

  clear(fuzzed);
  if (const kvik::Status status = check(call); !status.ok()) {
    const std::vector<std::byte> before = bytes_of(fuzzed);
    KVIK_CHECK(attend(backend_of(isa, 1), call).code() == status.code(), "the door must refuse");
    KVIK_CHECK(bytes_of(fuzzed) == before, "a refused call wrote");
    return 0;
  }
  if (!fuzzed.fits() || fuzzed.work() > kMostWork) return 0;
  KVIK_CHECK(attend(backend_of(isa, 1), call).ok(), "the door must let a checked call through");
  check_gaps(call.out, fuzzed.out());
  if (call.lse) check_gaps(*call.lse, fuzzed.lse());
  if (call.lse_keys) check_gaps(*call.lse_keys, fuzzed.lse_keys());
  if (fuzzed.is_tame()) check_values(call);
  if (with_team) {
    const std::vector<std::byte> alone = bytes_of(fuzzed);
    clear(fuzzed);
    KVIK_CHECK(attend(backend_of(isa, 3), call).ok(), "the door must let a checked call through");
    KVIK_CHECK(bytes_of(fuzzed) == alone, "the number of threads changed a result");
  }
  return 0;
}
