// Reads hyperparameters and tensors of one model file, with errors that name the key or tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/gguf.h"
#include "kvik/model/model.h"
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

  bool has_key(std::string_view suffix) const { return find_key(suffix) != nullptr; }
  bool has_tensor(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // Keys are named without the architecture's prefix. A value outside [least, most] is an error.
  int integer(std::string_view suffix, int64_t least, int64_t most);
  int integer_or(std::string_view suffix, int64_t least, int64_t most, int64_t fallback);
  // Finite and above zero.
  double positive(std::string_view suffix);
  double positive_or(std::string_view suffix, double fallback);
  double number_or(std::string_view suffix, double fallback);
  // Finite; zero, which stands for "none", where the key is missing.
  double positive_or_none(std::string_view suffix);
  std::string_view string_or(std::string_view suffix, std::string_view fallback);
  // One number, or an array of as many equal ones as there are layers.
  int integer_of_layers(std::string_view suffix, int64_t least, int64_t most, int num_layers);
  // An array of one flag or integer (zero or not) per layer; unset for a key that is no array.
  std::optional<std::vector<bool>> flags_of_layers(std::string_view suffix, int num_layers);
  // The key counts as read: another one makes it meaningless.
  void mark_read(std::string_view suffix) { read_keys_.insert(prefix_ + std::string(suffix)); }

  // A matrix of `rows` outputs and `cols` inputs, GGUF shape [cols, rows].
  Weight matrix(const std::string& name, int64_t rows, int64_t cols);
  // A short vector, decoded.
  std::vector<float> vector(const std::string& name, int64_t size);

  // Every tensor of the file must have been read: what the code would ignore changes the result.
  Status check_all_read() const;
  // So must every key of the architecture, but for those that say nothing about the results
  // (setting_rules.h). Requires: hyperparameters were read.
  Status check_all_keys_read(const ModelInfo& info) const;

  struct Named {
    std::string name;
    Weight weight;
  };
  // All that was read, in order.
  const std::vector<Named>& weights() const { return weights_; }

 private:
  const GgufValue* find_key(std::string_view suffix) const {
    return file_.find(prefix_ + std::string(suffix));
  }
  // The full name of a key that is about to be read.
  std::string name_to_read(std::string_view suffix);
  Weight read(const std::string& name, int64_t rows, int64_t cols, bool is_vector);

  const GgufFile& file_;
  std::string prefix_;
  Status status_;
  std::vector<Named> weights_;
  std::unordered_set<std::string_view> read_names_;
  std::unordered_set<std::string> read_keys_;
};

}  // namespace kvik::internal
