// Writes small GGUF files in memory: good ones, and damaged ones for the reader's tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kvik/model/gguf.h"

namespace kvik::testing {

class ByteString {
 public:
  template <class T>
  ByteString& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof value);
    return *this;
  }
  ByteString& text(std::string_view s) {
    put(static_cast<uint64_t>(s.size()));
    return raw(s);
  }
  ByteString& raw(std::string_view s) {
    const auto* p = reinterpret_cast<const std::byte*>(s.data());
    bytes_.insert(bytes_.end(), p, p + s.size());
    return *this;
  }
  ByteString& append(std::span<const std::byte> more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return *this;
  }
  void pad_to(size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(std::byte{0});
  }
  size_t size() const { return bytes_.size(); }
  std::vector<std::byte> take() { return std::move(bytes_); }
  std::span<const std::byte> view() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Public fields after `data` override what a correct writer would put there.
struct TensorSpec {
  std::string name;
  uint32_t type = 0;
  std::vector<uint64_t> shape;
  std::vector<std::byte> data;
  std::optional<uint64_t> offset;
  std::optional<uint32_t> num_dims;
};

class GgufWriter {
 public:
  // Overrides for damaged files.
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> num_tensors, num_metadata;
  size_t alignment = 32;  // used for placing; add_value("general.alignment", ...) states it

  template <class T>
  GgufWriter& add_value(std::string_view key, GgufType type, T value) {
    entry(key, type).put(value);
    return *this;
  }
  GgufWriter& add_u32(std::string_view key, uint32_t v) { return add_value(key, GgufType::u32, v); }
  GgufWriter& add_f32(std::string_view key, float v) { return add_value(key, GgufType::f32, v); }
  GgufWriter& add_bool(std::string_view key, bool v) {
    return add_value(key, GgufType::boolean, static_cast<uint8_t>(v));
  }
  GgufWriter& add_string(std::string_view key, std::string_view v) {
    entry(key, GgufType::string).text(v);
    return *this;
  }
  template <class T>
  GgufWriter& add_array(std::string_view key, GgufType type, const std::vector<T>& values) {
    array(key, type, values.size());
    for (const T v : values) metadata_.put(v);
    return *this;
  }
  GgufWriter& add_strings(std::string_view key, const std::vector<std::string>& values) {
    array(key, GgufType::string, values.size());
    for (const std::string& v : values) metadata_.text(v);
    return *this;
  }
  // An entry whose value is these bytes, whatever they are.
  GgufWriter& add_raw(std::string_view key, uint32_t type, ByteString value) {
    entry(key, static_cast<GgufType>(type)).append(value.view());
    return *this;
  }
  GgufWriter& add_tensor(TensorSpec spec) {
    tensors_.push_back(std::move(spec));
    return *this;
  }

  std::vector<std::byte> bytes() const {
    ByteString out;
    out.raw(magic).put(version);
    out.put(num_tensors.value_or(tensors_.size())).put(num_metadata.value_or(count_));
    out.append(metadata_.view());
    ByteString data;
    for (const TensorSpec& t : tensors_) {
      data.pad_to(alignment);
      out.text(t.name).put(t.num_dims.value_or(static_cast<uint32_t>(t.shape.size())));
      for (const uint64_t dim : t.shape) out.put(dim);
      out.put(t.type).put(t.offset.value_or(data.size()));
      data.append(t.data);
    }
    if (!tensors_.empty()) out.pad_to(alignment);
    return out.append(data.view()).take();
  }

 private:
  ByteString& entry(std::string_view key, GgufType type) {
    ++count_;
    return metadata_.text(key).put(static_cast<uint32_t>(type));
  }
  void array(std::string_view key, GgufType type, size_t count) {
    entry(key, GgufType::array).put(static_cast<uint32_t>(type)).put(static_cast<uint64_t>(count));
  }

  ByteString metadata_;
  uint64_t count_ = 0;
  std::vector<TensorSpec> tensors_;
};

}  // namespace kvik::testing
