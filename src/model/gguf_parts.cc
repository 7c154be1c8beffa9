// Models in several files: which parts belong together, and one list of tensors of all of them.
#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <utility>

#include "model/gguf_parser.h"

namespace kvik {
namespace {

Status corrupt(std::string message) { return {StatusCode::corrupt, std::move(message)}; }

// "-00001-of-00003.gguf", parts counted from 0.
std::string name_end(int part, int num_parts) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "-%05d-of-%05d.gguf", part + 1, num_parts);
  return text.data();
}

std::string part_text(int part, int num_parts) {
  return "part " + std::to_string(part + 1) + " of " + std::to_string(num_parts);
}

bool is_of_split(std::string_view key) {
  return key.starts_with("split.") || key == "general.alignment";
}

bool equal(const GgufValue& a, const GgufValue& b) {
  return a.type == b.type && a.is_array == b.is_array && a.count == b.count &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

}  // namespace

Result<std::string> GgufPartJoiner::path_of(const std::string& first, int part, int num_parts) {
  const std::string end = name_end(0, num_parts);
  if (!first.ends_with(end)) {
    return invalid_argument(first + ": says that it is " + part_text(0, num_parts) +
                            " of a model; the other parts are found by name, so its own must end "
                            "in " +
                            end);
  }
  return first.substr(0, first.size() - end.size()) + name_end(part, num_parts);
}

Status GgufPartJoiner::check_first(const GgufFile& file, const std::string& path) {
  const GgufFile::Split split = split_of(file);
  if (split.part == 0) return {};
  const std::string end = name_end(split.part, split.num_parts);
  const bool named = path.ends_with(end);
  const std::string first =
      named ? path.substr(0, path.size() - end.size()) + name_end(0, split.num_parts)
            : "the file whose name ends in " + name_end(0, split.num_parts);
  return invalid_argument(path + ": is " + part_text(split.part, split.num_parts) +
                          " of a model; give the first part, " + first);
}

Status GgufPartJoiner::check_split(const GgufPart& first, const GgufPart& part, int idx) {
  const GgufFile::Split wanted = split_of(first.file);
  const GgufFile::Split found = split_of(part.file);
  if (found.num_parts != wanted.num_parts) {
    return corrupt(part.name + ": " +
                   (found.num_parts == 1
                        ? "is no part of a model in several files"
                        : "says that the model has " + std::to_string(found.num_parts) + " parts") +
                   "; " + first.name + " says " + std::to_string(wanted.num_parts) + " parts");
  }
  if (found.part != idx) {
    return corrupt(part.name + ": says that it is " + part_text(found.part, found.num_parts) +
                   ", but stands in the place of " + part_text(idx, wanted.num_parts) +
                   "; the files were renamed or given in another order");
  }
  if (found.num_tensors != wanted.num_tensors) {
    return corrupt(part.name + ": states another number of tensors than " + first.name +
                   " (split.tensors.count); it is a part of another model");
  }
  return {};
}

Status GgufPartJoiner::check_metadata(const GgufPart& first, const GgufPart& part) {
  for (const GgufEntry& entry : part.file.metadata()) {
    if (is_of_split(entry.key)) continue;
    const GgufValue* value = first.file.find(entry.key);
    if (value != nullptr && equal(*value, entry.value)) continue;
    return corrupt(part.name + ": has the metadata key " + quoted(entry.key) +
                   (value == nullptr ? ", which " + first.name + " has not"
                                     : " with another value than " + first.name) +
                   "; it is a part of another model");
  }
  return {};
}

Status GgufPartJoiner::index_tensors(GgufFile& file) {
  std::vector<uint32_t>& order = file.tensors_by_name_;
  const std::vector<GgufTensor>& tensors = file.tensors_;
  order.resize(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& a = tensors[order[i - 1]];
    const GgufTensor& b = tensors[order[i]];
    if (a.name != b.name) continue;
    const auto [low, high] = std::minmax(a.part, b.part);
    return corrupt("the tensor " + quoted(a.name) + " occurs twice, in " + file.part_name(low) +
                   " and in " + file.part_name(high));
  }
  return {};
}

Result<GgufFile> GgufPartJoiner::join(std::vector<GgufPart> parts) {
  const int num_parts = split_of(parts.front().file).num_parts;
  if (static_cast<int>(parts.size()) != num_parts) {
    return corrupt(parts.front().name + ": the model has " + std::to_string(num_parts) +
                   " parts; " + std::to_string(parts.size()) + " are here");
  }
  const GgufPart& first = parts.front();
  std::vector<std::string> names;
  int64_t num_tensors = 0;
  for (int i = 0; i < num_parts; ++i) {
    const GgufPart& part = parts[static_cast<size_t>(i)];
    if (Status s = check_split(first, part, i); !s.ok()) return s;
    if (i > 0) {
      if (Status s = check_metadata(first, part); !s.ok()) return s;
    }
    names.push_back(part.name);
    num_tensors += static_cast<int64_t>(part.file.tensors_.size());
  }
  const std::optional<int64_t> stated = split_of(first.file).num_tensors;
  if (stated && *stated != num_tensors) {
    return corrupt(first.name + ": the model has " + std::to_string(*stated) +
                   " tensors by split.tensors.count; its parts have " +
                   std::to_string(num_tensors));
  }
  GgufFile whole = std::move(parts.front().file);
  whole.part_names_ = std::move(names);
  if (num_parts == 1) return whole;
  for (int i = 1; i < num_parts; ++i) {
    GgufFile& part = parts[static_cast<size_t>(i)].file;
    whole.parts_.push_back(part.parts_.front());
    for (GgufTensor& tensor : part.tensors_) {
      tensor.part = i;
      whole.tensors_.push_back(tensor);
    }
    for (GgufFile::Mapping& mapping : part.mappings_) {
      whole.mappings_.push_back(std::move(mapping));
    }
  }
  if (Status s = index_tensors(whole); !s.ok()) return s;
  return whole;
}

}  // namespace kvik
