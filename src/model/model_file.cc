#include "model/model_file.h"

#include <cmath>
#include <utility>

#include "model/gguf_parser.h"
#include "model/setting_rules.h"

namespace kvik::internal {
namespace {

Status corrupt(std::string message) { return {StatusCode::corrupt, std::move(message)}; }

std::string shape_text(const GgufTensor& tensor) {
  std::string text = "[";
  for (int d = 0; d < tensor.rank; ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(tensor.shape[static_cast<size_t>(d)]);
  }
  return text + "]";
}

}  // namespace

std::string ModelFileReader::name_to_read(std::string_view suffix) {
  return *read_keys_.insert(prefix_ + std::string(suffix)).first;
}

int ModelFileReader::integer(std::string_view suffix, int64_t least, int64_t most) {
  const std::string key = name_to_read(suffix);
  if (file_.find(key) == nullptr) {
    fail(corrupt("the model file has no " + quoted(key)));
    return 0;
  }
  const Result<int64_t> value = file_.integer(key);
  if (!value.ok()) {
    fail(value.status());
    return 0;
  }
  if (*value < least || *value > most) {
    fail(corrupt(quoted(key) + " is " + std::to_string(*value) + "; it must lie in " +
                 std::to_string(least) + " to " + std::to_string(most)));
    return 0;
  }
  return static_cast<int>(*value);
}

int ModelFileReader::integer_or(std::string_view suffix, int64_t least, int64_t most,
                                int64_t fallback) {
  return has_key(suffix) ? integer(suffix, least, most) : static_cast<int>(fallback);
}

int ModelFileReader::integer_of_layers(std::string_view suffix, int64_t least, int64_t most,
                                       int num_layers) {
  const GgufValue* value = find_key(suffix);
  if (value == nullptr || !value->is_array) return integer(suffix, least, most);
  const std::string key = name_to_read(suffix);
  const Result<std::vector<int64_t>> numbers = file_.integers(key);
  if (!numbers.ok()) {
    fail(numbers.status());
    return 0;
  }
  if (static_cast<int64_t>(numbers->size()) != num_layers) {
    fail(corrupt(quoted(key) + " has " + std::to_string(numbers->size()) + " values for " +
                 std::to_string(num_layers) + " layers"));
    return 0;
  }
  for (const int64_t number : *numbers) {
    if (number < least || number > most) {
      fail(corrupt(quoted(key) + " holds " + std::to_string(number) + "; it must lie in " +
                   std::to_string(least) + " to " + std::to_string(most)));
      return 0;
    }
    if (number == numbers->front()) continue;
    fail(unsupported(quoted(key) + " holds " + std::to_string(numbers->front()) + " and " +
                     std::to_string(number) +
                     "; kvik computes models in which it is the same for all layers"));
    return 0;
  }
  return static_cast<int>(numbers->front());
}

std::optional<std::vector<bool>> ModelFileReader::flags_of_layers(std::string_view suffix,
                                                                  int num_layers) {
  const GgufValue* value = find_key(suffix);
  if (value == nullptr || !value->is_array) return std::nullopt;
  const std::string key = name_to_read(suffix);
  std::vector<bool> flags;
  if (value->type == GgufType::boolean) {
    flags = file_.booleans(key).value();
  } else {
    const Result<std::vector<int64_t>> numbers = file_.integers(key);
    if (!numbers.ok()) {
      fail(numbers.status());
      return flags;
    }
    for (const int64_t number : *numbers) flags.push_back(number != 0);
  }
  if (static_cast<int64_t>(flags.size()) != num_layers) {
    fail(corrupt(quoted(key) + " has " + std::to_string(flags.size()) + " values for " +
                 std::to_string(num_layers) + " layers"));
    flags.assign(static_cast<size_t>(num_layers), false);
  }
  return flags;
}

double ModelFileReader::positive(std::string_view suffix) {
  const std::string key = name_to_read(suffix);
  if (file_.find(key) == nullptr) {
    fail(corrupt("the model file has no " + quoted(key)));
    return 1;
  }
  const Result<double> value = file_.real(key);
  if (!value.ok()) {
    fail(value.status());
    return 1;
  }
  if (!std::isfinite(*value) || *value <= 0) {
    fail(corrupt(quoted(key) + " is " + std::to_string(*value) +
                 "; it must be finite and above zero"));
    return 1;
  }
  return *value;
}

double ModelFileReader::positive_or(std::string_view suffix, double fallback) {
  return has_key(suffix) ? positive(suffix) : fallback;
}

double ModelFileReader::number_or(std::string_view suffix, double fallback) {
  const Result<double> value = file_.real_or(name_to_read(suffix), fallback);
  if (value.ok()) return *value;
  fail(value.status());
  return fallback;
}

double ModelFileReader::positive_or_none(std::string_view suffix) {
  return number_or(suffix, 0) == 0 ? 0 : positive(suffix);
}

std::string_view ModelFileReader::string_or(std::string_view suffix, std::string_view fallback) {
  const Result<std::string_view> value = file_.string_or(name_to_read(suffix), fallback);
  if (value.ok()) return *value;
  fail(value.status());
  return fallback;
}

Weight ModelFileReader::read(const std::string& name, int64_t rows, int64_t cols, bool is_vector) {
  if (!status_.ok()) return {};
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) {
    fail(corrupt("the model file has no tensor " + quoted(name)));
    return {};
  }
  const bool fits = tensor->shape[0] == cols && tensor->shape[1] == rows && tensor->shape[2] == 1 &&
                    tensor->shape[3] == 1;
  if (!fits) {
    const std::string wanted =
        "[" + std::to_string(cols) + (is_vector ? "" : ", " + std::to_string(rows)) + "]";
    fail(corrupt("tensor " + quoted(name) + " has shape " + shape_text(*tensor) +
                 "; the model's hyperparameters ask for " + wanted));
    return {};
  }
  Result<Weight> weight = find_weight(file_, name);
  if (!weight.ok()) {
    fail(weight.status());
    return {};
  }
  read_names_.insert(tensor->name);
  weights_.push_back({name, *weight});
  return *weight;
}

Weight ModelFileReader::matrix(const std::string& name, int64_t rows, int64_t cols) {
  return read(name, rows, cols, false);
}

std::vector<float> ModelFileReader::vector(const std::string& name, int64_t size) {
  const Weight weight = read(name, 1, size, true);
  if (weight.rows() == 0) return {};
  std::vector<float> values(static_cast<size_t>(size));
  decode_row(weight, 0, values.data());
  return values;
}

Status ModelFileReader::check_all_read() const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (read_names_.contains(tensor.name)) continue;
    return unsupported("tensor " + quoted(tensor.name) +
                       " is none that this architecture's code computes with; the results would "
                       "be wrong without it");
  }
  return {};
}

Status ModelFileReader::check_all_keys_read(const ModelInfo& info) const {
  for (const GgufEntry& entry : file_.metadata()) {
    if (!entry.key.starts_with(prefix_) || read_keys_.contains(std::string(entry.key))) continue;
    if (Status status = check_unread_setting(file_, entry, prefix_, info); !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace kvik::internal
