// A model in several files: any parts give one file that can be used, or a reason. The input is the
// number of parts, then for each but the last its length in 2 bytes, then its bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvik/core/check.h"
#include "kvik/model/gguf.h"

namespace {

using Bytes = std::span<const std::byte>;

std::vector<Bytes> cut(Bytes input) {
  std::vector<Bytes> parts;
  if (input.empty()) return parts;
  const size_t num_parts = std::to_integer<size_t>(input[0]) % 5;
  input = input.subspan(1);
  while (parts.size() + 1 < num_parts && input.size() >= 2) {
    const size_t stated =
        std::to_integer<size_t>(input[0]) + 256 * std::to_integer<size_t>(input[1]);
    input = input.subspan(2);
    const size_t size = std::min(stated, input.size());
    parts.push_back(input.first(size));
    input = input.subspan(size);
  }
  parts.push_back(input);
  return parts;
}

void check_whole(const kvik::GgufFile& file, const std::vector<Bytes>& parts) {
  KVIK_CHECK(file.is_complete(), "parts that were joined are all of them");
  KVIK_CHECK(file.num_parts() == static_cast<int>(parts.size()), "no part is lost");
  int64_t bytes = 0;
  for (int i = 0; i < file.num_parts(); ++i) {
    KVIK_CHECK(file.part_bytes(i) == static_cast<int64_t>(parts[static_cast<size_t>(i)].size()),
               "a part has the bytes that were given");
    KVIK_CHECK(!file.part_name(i).empty(), "a part has a name");
    bytes += file.part_bytes(i);
  }
  KVIK_CHECK(file.file_bytes() == bytes, "the whole has the bytes of the parts");
  for (const kvik::GgufTensor& tensor : file.tensors()) {
    const kvik::GgufTensor* const found = file.find_tensor(tensor.name);
    KVIK_CHECK(found == &tensor, "a tensor is found where it is listed");
    const kvik::Result<Bytes> data = file.tensor_bytes(tensor);
    if (!data.ok() || data->empty()) continue;
    const Bytes part = parts[static_cast<size_t>(tensor.part)];
    KVIK_CHECK(data->data() >= part.data() && data->size() <= part.size() &&
                   data->data() - part.data() <= static_cast<ptrdiff_t>(part.size() - data->size()),
               "the bytes of a tensor lie in its part");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Each part in memory of its own, so that a sanitizer sees a read past its end.
  std::vector<std::vector<std::byte>> copies;
  for (const Bytes part : cut({reinterpret_cast<const std::byte*>(data), size})) {
    copies.emplace_back(part.begin(), part.end());
  }
  const std::vector<Bytes> parts(copies.begin(), copies.end());
  const kvik::Result<kvik::GgufFile> file = kvik::GgufFile::parse_parts(parts);
  if (!file.ok()) {
    KVIK_CHECK(!file.status().message().empty(), "a refusal gives its reason");
    return 0;
  }
  check_whole(*file, parts);
  return 0;
}
