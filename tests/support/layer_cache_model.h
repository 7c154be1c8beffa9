// Random operations on forks of a one-layer cache against plain lists of rows, with every view that
// was ever handed out checked after every operation.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "kvik/layer_cache/paged_kv_cache.h"
#include "support/layer_rows.h"

namespace kvik::test {

struct LayerOp {
  enum Kind { append, trim, fork, drop, keep_view, drop_view, restore, set_meta, kNumKinds };
  Kind kind = append;
  int handle = 0;
  int amount = 0;
};

inline void showValue(const LayerOp& op, std::ostream& os) {
  os << "{" << op.kind << ", " << op.handle << ", " << op.amount << "}";
}

inline rc::Gen<LayerOp> any_layer_op() {
  return rc::gen::build<LayerOp>(
      rc::gen::set(&LayerOp::kind,
                   rc::gen::map(rc::gen::weightedElement<int>({{6, LayerOp::append},
                                                               {3, LayerOp::trim},
                                                               {2, LayerOp::fork},
                                                               {1, LayerOp::drop},
                                                               {2, LayerOp::keep_view},
                                                               {2, LayerOp::drop_view},
                                                               {1, LayerOp::restore},
                                                               {1, LayerOp::set_meta}}),
                                [](int kind) { return LayerOp::Kind(kind); })),
      rc::gen::set(&LayerOp::handle, rc::gen::inRange(0, 64)),
      rc::gen::set(&LayerOp::amount, rc::gen::inRange(0, 20)));
}

// Cache: update_and_fetch, trim, fork, state, set_state, meta_state, set_meta_state, offset,
// capacity. `make` makes an empty one.
template <class Cache, class Make>
class LayerCacheModel {
 public:
  LayerCacheModel(Make make, KvArrayShape shape) : make_(make), shape_(shape) {
    handles_.push_back({make_(), {}});
    handles_[0].rows.shape = shape_;
  }

  void apply(const LayerOp& op) {
    Handle& handle = handles_[size_t(op.handle) % handles_.size()];
    switch (op.kind) {
      case LayerOp::append:
        return append(handle, op.amount);
      case LayerOp::trim: {
        const int64_t removed = std::min<int64_t>(op.amount, handle.rows.num_rows);
        ASSERT_EQ(handle.cache.trim(op.amount), removed);
        handle.rows = first_rows(handle.rows, handle.rows.num_rows - removed);
        return;
      }
      case LayerOp::fork:
        if (handles_.size() < 5) {
          Handle other{handle.cache.fork(), handle.rows};
          handles_.push_back(std::move(other));
        }
        return;
      case LayerOp::drop:
        if (handles_.size() > 1)
          handles_.erase(handles_.begin() + op.handle % int(handles_.size()));
        return;
      case LayerOp::keep_view: {
        const auto state = rows_of_state(handle.cache.state());
        if (state) views_.push_back({*state, handle.rows});
        return;
      }
      case LayerOp::drop_view:
        if (!views_.empty()) views_.erase(views_.begin() + op.handle % int(views_.size()));
        return;
      case LayerOp::restore: {
        Cache fresh = make_();
        ASSERT_TRUE(fresh.set_state(rows_of_state(handle.cache.state())).ok());
        ASSERT_TRUE(fresh.set_meta_state(handle.cache.meta_state()).ok());
        handle.cache = std::move(fresh);
        return;
      }
      case LayerOp::set_meta: {
        std::vector<std::string> meta = handle.cache.meta_state();
        const size_t item = std::is_same_v<Cache, PagedKVCache> ? 2 : 1;
        const int64_t to = handle.rows.num_rows - std::min<int64_t>(2, handle.rows.num_rows);
        meta[item] = std::to_string(to);
        ASSERT_TRUE(handle.cache.set_meta_state(meta).ok());
        handle.rows = first_rows(handle.rows, to);
        return;
      }
      case LayerOp::kNumKinds:
        return;
    }
  }

  void check() {
    for (Handle& handle : handles_) {
      ASSERT_EQ(handle.cache.offset(), handle.rows.num_rows);
      ASSERT_GE(handle.cache.capacity(), handle.cache.offset());
      const auto state = rows_of_state(handle.cache.state());
      if (state) {
        ASSERT_TRUE(same_rows(*state, handle.rows));
      } else {
        ASSERT_EQ(handle.rows.num_rows, 0);
      }
    }
    for (const View& view : views_) ASSERT_TRUE(same_rows(view.arrays, view.rows));
  }

 private:
  struct Handle {
    Cache cache;
    LayerRows rows;
  };
  struct View {
    KvArrays arrays;
    LayerRows rows;
  };

  void append(Handle& handle, int64_t n) {
    const LayerRows more(shape_, n, 2 * seed_, 2 * seed_ + 1);
    ++seed_;
    Result<KvArrays> all = handle.cache.update_and_fetch(more.keys(), more.values());
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    handle.rows = join(handle.rows, more);
    ASSERT_TRUE(same_rows(*all, handle.rows));
    if (n % 3 == 0) views_.push_back({*all, handle.rows});
  }

  Make make_;
  KvArrayShape shape_;
  uint64_t seed_ = 1;
  std::vector<Handle> handles_;
  std::vector<View> views_;
};

template <class Cache, class Make>
void run_layer_cache_model(Make make, const KvArrayShape& shape) {
  LayerCacheModel<Cache, Make> model(make, shape);
  for (const LayerOp& op : *rc::gen::container<std::vector<LayerOp>>(any_layer_op())) {
    model.apply(op);
    RC_ASSERT(!::testing::Test::HasFatalFailure());
    model.check();
    RC_ASSERT(!::testing::Test::HasFatalFailure());
  }
}

}  // namespace kvik::test
