// Any bytes: the reader answers with a file or a reason, and what it accepts can be used.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvik/core/check.h"
#include "kvik/model/gguf.h"
#include "kvik/model/weights.h"

namespace {

// Every getter on every key: one of them fits, the others say why not.
void read_metadata(const kvik::GgufFile& file) {
  for (const kvik::GgufEntry& entry : file.metadata()) {
    KVIK_CHECK(file.find(entry.key) == &entry.value, "a key must be found where it is listed");
    const int fitting = file.integer(entry.key).ok() + file.real(entry.key).ok() +
                        file.boolean(entry.key).ok() + file.string(entry.key).ok() +
                        file.integers(entry.key).ok() + file.reals(entry.key).ok() +
                        file.booleans(entry.key).ok() + file.strings(entry.key).ok();
    KVIK_CHECK(fitting <= 1, "a value has one type");
  }
}

void read_tensors(const kvik::GgufFile& file) {
  for (const kvik::GgufTensor& tensor : file.tensors()) {
    const kvik::Result<kvik::Weight> weight = kvik::find_weight(file, tensor.name);
    if (!weight.ok()) continue;
    const kvik::Weight& w = weight.value();
    (void)kvik::check_finite(w, tensor.name).ok();
    std::vector<float> row(static_cast<size_t>(w.cols()));
    kvik::decode_row(w, 0, row.data());
    kvik::decode_row(w, w.rows() - 1, row.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const kvik::Result<kvik::GgufFile> file = kvik::GgufFile::parse(bytes);
  if (!file.ok()) {
    KVIK_CHECK(!file.status().message().empty(), "a refusal gives its reason");
    return 0;
  }
  read_metadata(file.value());
  read_tensors(file.value());
  return 0;
}
