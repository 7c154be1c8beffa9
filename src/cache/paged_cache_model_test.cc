// Random operations on a cache set against a naive model (tests/support/cache_set_model.h).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "support/cache_set_model.h"

namespace kvik {
namespace {

using test::CacheOp;

rc::Gen<CacheOp> any_op() {
  return rc::gen::build<CacheOp>(
      rc::gen::set(&CacheOp::kind, rc::gen::map(rc::gen::inRange<int>(0, CacheOp::kNumKinds),
                                                [](int kind) { return CacheOp::Kind(kind); })),
      rc::gen::set(&CacheOp::a, rc::gen::inRange(0, 256)),
      rc::gen::set(&CacheOp::b, rc::gen::inRange(0, 50)));
}

RC_GTEST_PROP(CacheSetModel, RandomOperationsMatchAListOfTokens, ()) {
  const int block_size = *rc::gen::element(16, 32, 48);
  test::CacheSetModel model(block_size, *rc::gen::inRange(4, 24));
  const auto ops = *rc::gen::container<std::vector<CacheOp>>(any_op());
  model.apply({});
  for (const CacheOp& op : ops) model.apply(op);
  model.finish(*rc::gen::inRange(0, 6));
}

}  // namespace
}  // namespace kvik
