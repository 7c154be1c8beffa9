// Reads hyperparameters and tensors of one model file, with errors that name the key or tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/gguf.h"
#include "kvik/model/weights.h"

namespace kvik::internal {

// Bounds of what a file may claim; far above any model, far below what would overflow.
inline constexpr int64_t kMaxLayers = 10000;
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;
inline constexpr int64_t kMaxVocab = int64_t{1} << 26;
inline constexpr int64_t kMaxContext = int64_t{1} << 30;

// The first error sticks; later reads give zeros and empty weights. So a loader reads everything
// and asks once.
class ModelFileReader {
 public:
  // `architecture` is the prefix of the keys. The file must outlive the reader.
  ModelFileReader(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  const Status& status() const { return status_; }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  bool has_key(std::string_view suffix) const { return file_.find(prefix_ + std::string(suffix)); }
  bool has_tensor(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // Keys are named without the architecture's prefix. A value outside [least, most] is an error.
  int integer(std::string_view suffix, int64_t least, int64_t most);
  int integer_or(std::string_view suffix, int64_t least, int64_t most, int64_t fallback);
  // Finite and above zero.
  double positive(std::string_view suffix);
  double positive_or(std::string_view suffix, double fallback);
  std::string_view string_or(std::string_view suffix, std::string_view fallback);

  // A matrix of `rows` outputs and `cols` inputs, GGUF shape [cols, rows].
  Weight matrix(const std::string& name, int64_t rows, int64_t cols);
  // A short vector, decoded.
  std::vector<float> vector(const std::string& name, int64_t size);

  // Every tensor of the file must have been read: what the code would ignore changes the result.
  Status check_all_read() const;

  struct Named {
    std::string name;
    Weight weight;
  };
  // All that was read, in order.
  const std::vector<Named>& weights() const { return weights_; }

 private:
  Weight read(const std::string& name, int64_t rows, int64_t cols, bool is_vector);

  const GgufFile& file_;
  std::string prefix_;
  Status status_;
  std::vector<Named> weights_;
  std::unordered_set<std::string_view> read_names_;
};

}  // namespace kvik::internal
