// Rows of one cache tensor as nodes of MLX's graph, appended in place.
//
// A region reserves addresses for max_rows rows of every head, [B * H][max_rows][D]; memory backs
// them as they are populated or written. An array that append() or view() returns is a strided view
// of the first rows and registers their number until its last reference (the graph's and pending
// tasks' included) is gone. append() writes at a position only while every registered view ends at
// or below it, so written rows never change under a reader.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "graph_nodes.h"
#include "mlx/backend/cpu/encoder.h"

namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kDataOffset = 64;  // the first row; MLX's byte count lies in the word before
// Heads start this much off a multiple of a page, so that equal rows of different heads do not
// fall into the same cache sets.
constexpr int64_t kStaggerBytes = 17 * 64;

// The memory and the register of visible rows. Threads: any.
class Region {
 public:
  Region(int64_t num_heads, int64_t head_bytes, int64_t max_rows, int64_t row_bytes)
      : num_heads_(num_heads), row_bytes_(row_bytes), max_rows_(max_rows), head_bytes_(head_bytes) {
    mapped_ = kDataOffset + num_heads * head_bytes;
    void* base = mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(base);
    // A huge page per head would be resident for the sake of a few rows.
    madvise(base_, static_cast<size_t>(mapped_), MADV_NOHUGEPAGE);
    const auto bytes = static_cast<size_t>(mapped_ - kDataOffset);
    std::memcpy(base_ + kDataOffset - sizeof bytes, &bytes, sizeof bytes);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { munmap(base_, static_cast<size_t>(mapped_)); }

  char* data() const { return base_ + kDataOffset; }
  mx::allocator::Buffer buffer() const {
    return mx::allocator::Buffer(base_ + kDataOffset - sizeof(size_t));
  }
  int64_t max_rows() const { return max_rows_; }
  int64_t head_bytes() const { return head_bytes_; }

  // Backs rows [begin, end) of every head with memory before they are written.
  void populate(int64_t begin, int64_t end) const {
#ifdef MADV_POPULATE_WRITE
    for (int64_t head = 0; head < num_heads_; ++head) {
      const int64_t from = kDataOffset + head * head_bytes_ + begin * row_bytes_;
      const int64_t to = kDataOffset + head * head_bytes_ + end * row_bytes_;
      const int64_t first = from / kPageBytes * kPageBytes;
      // Where the kernel cannot, the first write does it.
      madvise(base_ + first, static_cast<size_t>(to - first), MADV_POPULATE_WRITE);
    }
#endif
  }

  int64_t resident_bytes() const {
    const auto pages = static_cast<size_t>((mapped_ + kPageBytes - 1) / kPageBytes);
    std::vector<unsigned char> in_memory(pages);
    if (mincore(base_, static_cast<size_t>(mapped_), in_memory.data()) != 0) return 0;
    return kPageBytes * std::count_if(in_memory.begin(), in_memory.end(),
                                      [](unsigned char page) { return (page & 1) != 0; });
  }

  void show(int64_t rows) {
    const std::lock_guard lock(mutex_);
    ++visible_[rows];
  }
  // Whether no row from `position` on is visible; if so, `rows` rows are from now on.
  bool claim(int64_t position, int64_t rows) {
    const std::lock_guard lock(mutex_);
    if (!visible_.empty() && visible_.rbegin()->first > position) return false;
    ++visible_[rows];
    return true;
  }
  void hide(int64_t rows) {
    const std::lock_guard lock(mutex_);
    const auto found = visible_.find(rows);
    if (--found->second == 0) visible_.erase(found);
  }
  int64_t visible_rows() {
    const std::lock_guard lock(mutex_);
    return visible_.empty() ? 0 : visible_.rbegin()->first;
  }

 private:
  int64_t num_heads_, row_bytes_, max_rows_, head_bytes_;
  int64_t mapped_ = 0;
  char* base_ = nullptr;
  std::mutex mutex_;
  std::map<int64_t, int64_t> visible_;  // rows of a view -> number of such views
};

// Keeps a registered view and its region alive.
class Visible {
 public:
  // Takes over a registration that was made already.
  Visible(std::shared_ptr<Region> region, int64_t rows) : region_(std::move(region)), rows_(rows) {}
  Visible(const Visible&) = delete;
  Visible& operator=(const Visible&) = delete;
  ~Visible() { region_->hide(rows_); }
  const std::shared_ptr<Region>& region() const { return region_; }

 private:
  std::shared_ptr<Region> region_;
  int64_t rows_;
};

// Points `out`, [B, H, rows, D], at the first rows of its region.
void alias(mx::array& out, const std::shared_ptr<Visible>& visible) {
  const Region& region = *visible->region();
  const auto head =
      static_cast<int64_t>(region.head_bytes() / static_cast<int64_t>(out.itemsize()));
  const int64_t heads = out.shape(1), rows = out.shape(2), dim = out.shape(3);
  const int64_t last_head = (static_cast<int64_t>(out.shape(0)) * heads - 1) * head;
  const bool one_head = last_head == 0;
  mx::array::Flags flags{};
  flags.contiguous = one_head;
  flags.row_contiguous = one_head;
  flags.col_contiguous = one_head && (rows == 1 || dim == 1);
  out.set_data(mx::allocator::Data(region.buffer(), [visible](mx::allocator::Buffer) {}),
               static_cast<size_t>(last_head + rows * dim), {heads * head, head, dim, 1}, flags);
}

// Rows as they lie in their source.
struct RowSource {
  const char* data;
  int64_t batch, heads, rows, dim, itemsize;
  mx::Strides strides;  // elements
};

void copy_row(const char* from, int64_t stride, int64_t dim, int64_t itemsize, char* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(dim * itemsize));
    return;
  }
  for (int64_t i = 0; i < dim; ++i) {
    std::memcpy(to + i * itemsize, from + i * stride * itemsize, static_cast<size_t>(itemsize));
  }
}

void write_rows(const RowSource& source, const Region& region, int64_t position) {
  const int64_t row_bytes = source.dim * source.itemsize;
  for (int64_t b = 0; b < source.batch; ++b) {
    for (int64_t h = 0; h < source.heads; ++h) {
      const char* from =
          source.data + (b * source.strides[0] + h * source.strides[1]) * source.itemsize;
      char* to =
          region.data() + (b * source.heads + h) * region.head_bytes() + position * row_bytes;
      if (source.strides[3] == 1 && source.strides[2] == source.dim) {
        std::memcpy(to, from, static_cast<size_t>(source.rows * row_bytes));
        continue;
      }
      for (int64_t row = 0; row < source.rows; ++row) {
        copy_row(from + row * source.strides[2] * source.itemsize, source.strides[3], source.dim,
                 source.itemsize, to + row * row_bytes);
      }
    }
  }
}

// Inputs: the new rows, then (unless the region was empty) the array of the rows before them, for
// the order alone. One output: MLX never frees the inputs of a primitive with several early enough.
class AppendRows : public mx::Primitive {
 public:
  AppendRows(mx::Stream stream, std::shared_ptr<Visible> visible, int64_t position)
      : Primitive(stream), visible_(std::move(visible)), position_(position) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    alias(outputs[0], visible_);
    const mx::array& rows = inputs[0];
    RowSource source{rows.data<char>(), rows.shape(0), rows.shape(1),
                     rows.shape(2),     rows.shape(3), static_cast<int64_t>(rows.itemsize()),
                     rows.strides()};
    mx::cpu::get_command_encoder(stream()).dispatch(
        [source = std::move(source), visible = visible_, position = position_] {
          write_rows(source, *visible->region(), position);
        });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("kvik: appending in place runs on the CPU only");
  }
  const char* name() const override { return "KvikAppendRows"; }

 private:
  std::shared_ptr<Visible> visible_;
  int64_t position_;
};

// The rows of one tensor, as Python sees them.
class TailRegion {
 public:
  // Rows [batch, heads, T, dim] of the dtype of `like`. Reserves at least min_rows rows and, where
  // the system has that many addresses, max_rows.
  TailRegion(const mx::array& like, int64_t min_rows, int64_t max_rows)
      : batch_(like.shape(0)), heads_(like.shape(1)), dim_(like.shape(3)), dtype_(like.dtype()) {
    const int64_t row_bytes = dim_ * static_cast<int64_t>(like.itemsize());
    if (row_bytes == 0 || batch_ * heads_ == 0) {
      throw std::invalid_argument("kvik: a region needs rows of at least one byte");
    }
    for (int64_t rows = std::max(min_rows, max_rows);; rows = std::max(min_rows, rows / 2)) {
      try {
        const int64_t head_bytes =
            (rows * row_bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kStaggerBytes;
        region_ = std::make_shared<Region>(batch_ * heads_, head_bytes, rows, row_bytes);
        return;
      } catch (const std::bad_alloc&) {
        if (rows == min_rows) throw;
      }
    }
  }

  int64_t max_rows() const { return region_->max_rows(); }
  void populate(int64_t begin, int64_t end) const { region_->populate(begin, end); }
  int64_t resident_bytes() const { return region_->resident_bytes(); }
  int64_t visible_rows() const { return region_->visible_rows(); }

  // Appends at `position`; none where a row from there on is visible elsewhere, or no room is left.
  std::optional<mx::array> append(const mx::array& rows, const std::optional<mx::array>& before,
                                  int64_t position) const {
    refuse_tracer(rows);
    if (rows.ndim() != 4 || rows.shape(0) != batch_ || rows.shape(1) != heads_ ||
        rows.shape(3) != dim_ || rows.dtype() != dtype_) {
      throw std::invalid_argument("kvik: rows of another shape or dtype than the region's");
    }
    const int64_t end = position + rows.shape(2);
    if (end > region_->max_rows() || !region_->claim(position, end)) return std::nullopt;
    std::vector<mx::array> inputs{rows};
    if (before) inputs.push_back(*before);
    const mx::Stream stream = mx::to_stream(mx::StreamOrDevice{}, mx::Device::cpu);
    return mx::array(
        shape(end), dtype_,
        std::make_shared<AppendRows>(stream, std::make_shared<Visible>(region_, end), position),
        std::move(inputs));
  }

  // The first rows. Requires: they are written (evaluate the array of the last append before).
  mx::array view(int64_t rows) const {
    region_->show(rows);
    mx::array out(shape(rows), dtype_, nullptr, {});
    alias(out, std::make_shared<Visible>(region_, rows));
    out.set_status(mx::array::Status::available);
    return out;
  }

 private:
  mx::Shape shape(int64_t rows) const {
    return {static_cast<int>(batch_), static_cast<int>(heads_), static_cast<int>(rows),
            static_cast<int>(dim_)};
  }

  int64_t batch_, heads_, dim_;
  mx::Dtype dtype_;
  std::shared_ptr<Region> region_;
};

}  // namespace
