// Random operations on a cache set against a naive model: a list of token ids per sequence. After
// each operation every row of every sequence is compared, and the pool's counts with a recount of
// the tables.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"
#include "support/model_rows.h"

namespace kvik {
namespace {

using test::holds_model_rows;
using test::write_model_rows;

struct Tracked {
  Sequence sequence;
  std::vector<int64_t> ids;
  int longest = 0;  // since it was last empty: what a window gave back depends on it
};

// What one random step does; the numbers choose among what is there.
struct Op {
  int kind = 0;
  int a = 0;
  int b = 0;
};

class Model {
 public:
  Model(int block_size, int max_blocks) : max_blocks_(max_blocks) {
    PagedCacheOptions full;
    full.spec = {2, 8, 5, {{KvCode::f32, KvCode::f16}, {KvCode::bf16, KvCode::f32}}};
    full.block_size = block_size;
    full.max_blocks = max_blocks;
    PagedCacheOptions window = full;
    window.spec = {1, 3, 4, {{KvCode::f16, KvCode::bf16}}};
    window.window = kWindow;
    window.rollback_slack = kSlack;
    const std::vector<PagedCacheOptions> options = {full, window};
    set_.emplace(CacheSet::create(options, make_cpu_backend({}).value()).value());
  }

  void apply(const Op& op) {
    switch (op.kind) {
      case 0:
        sequences_.push_back({set_->new_sequence(), {}, 0});
        break;
      case 1:
      case 2:
        step(op, Outcome::commit);
        break;
      case 3:
        step(op, Outcome::drop);
        break;
      case 4:
        step(op, Outcome::forget_layer);
        break;
      case 5:
        fork(op);
        break;
      case 6:
        truncate(op);
        break;
      case 7:
        if (!sequences_.empty()) sequences_.erase(sequences_.begin() + pick(op.a));
        break;
      default:
        step_batch(op);
    }
    audit();
  }

 private:
  static constexpr int kWindow = 20;
  static constexpr int kSlack = 8;
  enum class Outcome { commit, drop, forget_layer };

  int pick(int a) const { return a % static_cast<int>(sequences_.size()); }

  std::vector<int64_t> fresh_ids(int count) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (int64_t& id : ids) id = next_id_++;
    return ids;
  }

  // Blocks of cache `c` that the pool has left.
  int64_t free_blocks(int c) {
    const CacheStats stats = set_->cache(c).stats();
    return stats.max_blocks - stats.used_blocks;
  }

  void run(const std::vector<int>& who, const std::vector<std::vector<int64_t>>& news,
           Outcome outcome) {
    std::vector<AppendRequest> requests;
    std::vector<int64_t> all;
    for (size_t i = 0; i < who.size(); ++i) {
      requests.push_back(
          {&sequences_[static_cast<size_t>(who[i])].sequence, static_cast<int>(news[i].size())});
      all.insert(all.end(), news[i].begin(), news[i].end());
    }
    const int64_t free_before = free_blocks(0);
    Result<SetPlan> plan = set_->reserve(requests);
    if (!plan.ok()) {
      RC_ASSERT(plan.status().code() == StatusCode::out_of_pages);
      RC_ASSERT(free_blocks(0) == free_before);
      return;
    }
    for (int c = 0; c < set_->num_caches(); ++c) {
      const int num_layers = set_->cache(c).spec().num_layers();
      const int last = outcome == Outcome::forget_layer && c == 1 ? num_layers - 1 : num_layers;
      for (int layer = 0; layer < last; ++layer) {
        write_model_rows(set_->cache(c), plan->plan(c), layer, all);
      }
    }
    if (outcome == Outcome::drop) return;
    const Status status = set_->commit(std::move(plan).value());
    RC_ASSERT(status.ok() == (outcome == Outcome::commit || all.empty()));
    if (!status.ok()) return;
    for (size_t i = 0; i < who.size(); ++i) {
      Tracked& t = sequences_[static_cast<size_t>(who[i])];
      t.ids.insert(t.ids.end(), news[i].begin(), news[i].end());
      t.longest = std::max(t.longest, static_cast<int>(t.ids.size()));
    }
  }

  void step(const Op& op, Outcome outcome) {
    if (sequences_.empty()) return;
    run({pick(op.a)}, {fresh_ids(op.b)}, outcome);
  }

  void step_batch(const Op& op) {
    std::vector<int> who;
    std::vector<std::vector<int64_t>> news;
    for (int i = 0; i < static_cast<int>(sequences_.size()); ++i) {
      if (((op.a >> (i % 8)) & 1) == 0) continue;
      who.push_back(i);
      news.push_back(fresh_ids((op.b + 5 * i) % 23));
    }
    run(who, news, Outcome::commit);
  }

  void fork(const Op& op) {
    if (sequences_.empty() || sequences_.size() > 7) return;
    const Tracked& from = sequences_[static_cast<size_t>(pick(op.a))];
    Result<Sequence> other = set_->fork(from.sequence);
    RC_ASSERT(other.ok());
    Tracked copy{std::move(other).value(), from.ids, from.longest};
    sequences_.push_back(std::move(copy));
  }

  void truncate(const Op& op) {
    if (sequences_.empty()) return;
    Tracked& t = sequences_[static_cast<size_t>(pick(op.a))];
    const int keep = static_cast<int>(t.ids.size()) - op.b;
    const Status status = set_->truncate(t.sequence, keep);
    if (keep < 0) {
      RC_ASSERT(status.code() == StatusCode::invalid_argument);
    } else if (t.longest - keep <= kSlack || keep == 0) {
      RC_ASSERT(status.ok());
    } else {
      RC_ASSERT(status.ok() || status.code() == StatusCode::unsupported);
    }
    if (!status.ok()) return;
    t.ids.resize(static_cast<size_t>(keep));
    if (keep == 0) t.longest = 0;
  }

  void audit() {
    for (int c = 0; c < set_->num_caches(); ++c) {
      std::map<int, int> references;
      for (Tracked& t : sequences_) audit_sequence(c, t, references);
      const CacheStats stats = set_->cache(c).stats();
      const auto shared = std::count_if(references.begin(), references.end(),
                                        [](const auto& entry) { return entry.second > 1; });
      RC_ASSERT(stats.used_blocks == static_cast<int64_t>(references.size()));
      RC_ASSERT(stats.shared_blocks == shared);
      RC_ASSERT(stats.used_blocks <= stats.committed_blocks);
      RC_ASSERT(stats.committed_blocks <= max_blocks_);
    }
  }

  void audit_sequence(int c, Tracked& t, std::map<int, int>& references) {
    RC_ASSERT(t.sequence.num_cached() == static_cast<int>(t.ids.size()));
    const BlockTable& table = t.sequence.table(c);
    for (int block = table.begin_block(); block < table.end_block(); ++block) {
      ++references[table.page(block)];
    }
    const int block_size = set_->cache(c).block_size();
    const auto length = static_cast<int>(t.ids.size());
    RC_ASSERT(table.end_block() == (length + block_size - 1) / block_size);
    const int first = table.begin_block() * block_size;
    if (c == 0) RC_ASSERT(first == 0);
    // What the next token sees, wherever truncate may have gone, is still there.
    RC_ASSERT(first <= std::max(0, length + 1 - kWindow));
    AppendRequest read{&t.sequence, 0};
    Result<SetPlan> plan = set_->reserve({&read, 1});
    RC_ASSERT(plan.ok());
    for (int layer = 0; layer < set_->cache(c).spec().num_layers(); ++layer) {
      const KvView view = set_->cache(c).view(plan->plan(c), layer);
      RC_ASSERT(view.first_pos[0] + view.kv_len[0] == length);
      RC_ASSERT(holds_model_rows(view, 0, layer, t.ids, first));
    }
  }

  int max_blocks_;
  std::optional<CacheSet> set_;
  std::vector<Tracked> sequences_;
  int64_t next_id_ = 1;
};

RC_GTEST_PROP(CacheSetModel, RandomOperationsMatchAListOfTokens, ()) {
  const int block_size = *rc::gen::element(16, 32, 48);
  Model model(block_size, *rc::gen::inRange(4, 24));
  const auto ops = *rc::gen::container<std::vector<Op>>(
      rc::gen::build<Op>(rc::gen::set(&Op::kind, rc::gen::inRange(0, 10)),
                         rc::gen::set(&Op::a, rc::gen::inRange(0, 256)),
                         rc::gen::set(&Op::b, rc::gen::inRange(0, 50))));
  model.apply({0, 0, 0});
  for (const Op& op : ops) model.apply(op);
}

}  // namespace
}  // namespace kvik
