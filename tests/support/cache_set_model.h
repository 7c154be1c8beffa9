// A cache set beside a naive model of it: a list of token ids per sequence. After each operation
// every row of every sequence is compared, and the pool's counts with a recount of the tables. The
// random test and the fuzz target of the cache both drive it.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"
#include "support/model_rows.h"

namespace kvik::test {

// What the model throws when cache and model differ: a random test shrinks it, a fuzzer stops.
class ModelMismatch : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void must(bool condition, const char* what) {
  if (!condition) throw ModelMismatch(what);
}

// One operation; a and b choose among what is there. Values at or above 0.
struct CacheOp {
  enum Kind : uint8_t {
    create,
    append,
    append_and_drop,
    append_without_last_layer,
    append_batch,
    open_plan,    // a step that stays open while other operations run
    commit_plan,  // an open one, whichever it is
    drop_plan,
    fork,
    truncate,
    destroy,  // also with an open plan
    kNumKinds
  };
  Kind kind = create;
  int a = 0;
  int b = 0;
};

class CacheSetModel {
 public:
  CacheSetModel(int block_size, int max_blocks) : max_blocks_(max_blocks) {
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

  void apply(const CacheOp& op) {
    switch (op.kind) {
      case CacheOp::create:
        if (sequences_.size() < kMostSequences) sequences_.push_back({set_->new_sequence(), {}, 0});
        break;
      case CacheOp::append:
        append(op, Outcome::commit);
        break;
      case CacheOp::append_and_drop:
        append(op, Outcome::drop);
        break;
      case CacheOp::append_without_last_layer:
        append(op, Outcome::forget_layer);
        break;
      case CacheOp::append_batch:
        append_batch(op, Outcome::commit);
        break;
      case CacheOp::open_plan:
        append_batch(op, Outcome::keep_open);
        break;
      case CacheOp::commit_plan:
        commit_plan(op);
        break;
      case CacheOp::drop_plan:
        if (!open_.empty()) close(op.a % num_open());
        break;
      case CacheOp::fork:
        fork(op);
        break;
      case CacheOp::truncate:
        truncate(op);
        break;
      case CacheOp::destroy:
        destroy(op);
        break;
      case CacheOp::kNumKinds:
        break;
    }
    audit();
  }

  // Destroys sequences, open plans and the set in one of the six orders.
  void finish(int order) {
    for (const int part : kOrders[static_cast<size_t>(order % 6)]) {
      if (part == 0) sequences_.clear();
      if (part == 1) open_.clear();
      if (part == 2) set_.reset();
    }
  }

 private:
  static constexpr int kWindow = 20;
  static constexpr int kSlack = 8;
  static constexpr size_t kMostSequences = 8;
  static constexpr int kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  enum class Outcome { commit, drop, forget_layer, keep_open };

  struct Tracked {
    Sequence sequence;
    std::vector<int64_t> ids;
    int longest = 0;  // since it was last empty: what a window gave back depends on it
    bool has_open_plan = false;

    void grow(const std::vector<int64_t>& news) {
      ids.insert(ids.end(), news.begin(), news.end());
      longest = std::max(longest, static_cast<int>(ids.size()));
    }
  };
  // A step whose rows are written but not committed.
  struct OpenPlan {
    SetPlan plan;
    std::vector<uint64_t> who;  // ids of its sequences; those destroyed since are no longer tracked
    std::vector<std::vector<int64_t>> news;
    // Per cache, pages of destroyed sequences that the plan keeps alive, one entry per reference.
    std::vector<std::vector<int>> orphans;
  };

  int num_open() const { return static_cast<int>(open_.size()); }
  size_t pick(int a) const { return static_cast<size_t>(a) % sequences_.size(); }

  Tracked* find(uint64_t id) {
    for (Tracked& t : sequences_) {
      if (t.sequence.id() == id) return &t;
    }
    return nullptr;
  }

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

  static std::vector<int64_t> joined(const std::vector<std::vector<int64_t>>& lists) {
    std::vector<int64_t> all;
    for (const std::vector<int64_t>& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  void step(const std::vector<size_t>& who, const std::vector<std::vector<int64_t>>& news,
            Outcome outcome) {
    std::vector<AppendRequest> requests;
    bool is_free = true;
    for (size_t i = 0; i < who.size(); ++i) {
      Tracked& t = sequences_[who[i]];
      is_free = is_free && !t.has_open_plan;
      requests.push_back({&t.sequence, static_cast<int>(news[i].size())});
    }
    const std::vector<int64_t> before = {free_blocks(0), free_blocks(1)};
    Result<SetPlan> plan = set_->reserve(requests);
    if (!plan.ok()) {
      must(plan.status().code() ==
               (is_free ? StatusCode::out_of_pages : StatusCode::invalid_argument),
           "reserve failed for another reason");
      must(free_blocks(0) == before[0] && free_blocks(1) == before[1],
           "a failed reserve kept blocks");
      return;
    }
    must(is_free, "a sequence got two open plans");
    const std::vector<int64_t> all = joined(news);
    for (int c = 0; c < set_->num_caches(); ++c) {
      const int num_layers = set_->cache(c).spec().num_layers();
      const int last = outcome == Outcome::forget_layer && c == 1 ? num_layers - 1 : num_layers;
      for (int layer = 0; layer < last; ++layer) {
        write_model_rows(set_->cache(c), plan->plan(c), layer, all);
      }
    }
    if (outcome == Outcome::drop) return;
    if (outcome == Outcome::keep_open) {
      keep(std::move(plan).value(), who, news);
      return;
    }
    const Status status = set_->commit(std::move(plan).value());
    must(status.ok() == (outcome == Outcome::commit || all.empty()), "commit went the other way");
    if (!status.ok()) return;
    for (size_t i = 0; i < who.size(); ++i) sequences_[who[i]].grow(news[i]);
  }

  void keep(SetPlan plan, const std::vector<size_t>& who,
            const std::vector<std::vector<int64_t>>& news) {
    OpenPlan open{std::move(plan), {}, news, std::vector<std::vector<int>>(2)};
    for (const size_t i : who) {
      sequences_[i].has_open_plan = true;
      open.who.push_back(sequences_[i].sequence.id());
    }
    open_.push_back(std::move(open));
  }

  void append(const CacheOp& op, Outcome outcome) {
    if (!sequences_.empty()) step({pick(op.a)}, {fresh_ids(op.b)}, outcome);
  }

  void append_batch(const CacheOp& op, Outcome outcome) {
    std::vector<size_t> who;
    std::vector<std::vector<int64_t>> news;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (((op.a >> (i % 8)) & 1) == 0) continue;
      who.push_back(i);
      news.push_back(fresh_ids((op.b + 5 * static_cast<int>(i)) % 23));
    }
    step(who, news, outcome);
  }

  // The plan's sequences are free again, as after a drop.
  void close(int i) {
    for (const uint64_t id : open_[static_cast<size_t>(i)].who) {
      if (Tracked* t = find(id)) t->has_open_plan = false;
    }
    open_.erase(open_.begin() + i);
  }

  void commit_plan(const CacheOp& op) {
    if (open_.empty()) return;
    const int i = op.a % num_open();
    OpenPlan& open = open_[static_cast<size_t>(i)];
    // Every row of the step is readable before it is committed.
    for (size_t s = 0; s < open.who.size(); ++s) check_open(open, s);
    must(set_->commit(std::move(open.plan)).ok(), "an open plan cannot be committed");
    for (size_t s = 0; s < open.who.size(); ++s) {
      if (Tracked* t = find(open.who[s])) t->grow(open.news[s]);
    }
    close(i);
  }

  void check_open(const OpenPlan& open, size_t s) {
    Tracked* t = find(open.who[s]);
    if (t == nullptr) return;
    std::vector<int64_t> ids = t->ids;
    ids.insert(ids.end(), open.news[s].begin(), open.news[s].end());
    for (int c = 0; c < set_->num_caches(); ++c) {
      for (int layer = 0; layer < set_->cache(c).spec().num_layers(); ++layer) {
        const KvView view = set_->cache(c).view(open.plan.plan(c), layer);
        must(holds_model_rows(view, static_cast<int>(s), layer, ids, view.first_pos[s]),
             "an open plan shows other rows");
      }
    }
  }

  void fork(const CacheOp& op) {
    if (sequences_.empty() || sequences_.size() >= kMostSequences) return;
    const Tracked& from = sequences_[pick(op.a)];
    Result<Sequence> other = set_->fork(from.sequence);
    must(other.ok() == !from.has_open_plan, "fork went the other way");
    if (!other.ok()) return;
    Tracked copy{std::move(other).value(), from.ids, from.longest};
    sequences_.push_back(std::move(copy));
  }

  void truncate(const CacheOp& op) {
    if (sequences_.empty()) return;
    Tracked& t = sequences_[pick(op.a)];
    const int keep = static_cast<int>(t.ids.size()) - op.b;
    const Status status = set_->truncate(t.sequence, keep);
    if (keep < 0 || t.has_open_plan) {
      must(status.code() == StatusCode::invalid_argument, "a wrong truncate was let through");
    } else if (t.longest - keep <= kSlack || keep == 0) {
      must(status.ok(), "a truncate within the slack was refused");
    } else {
      must(status.ok() || status.code() == StatusCode::unsupported, "truncate failed otherwise");
    }
    if (!status.ok()) return;
    t.ids.resize(static_cast<size_t>(keep));
    if (keep == 0) t.longest = 0;
  }

  void destroy(const CacheOp& op) {
    if (sequences_.empty()) return;
    const size_t i = pick(op.a);
    for (OpenPlan& open : open_) {
      const uint64_t id = sequences_[i].sequence.id();
      if (std::find(open.who.begin(), open.who.end(), id) == open.who.end()) continue;
      for (size_t c = 0; c < open.orphans.size(); ++c) {
        const std::span<const int32_t> ids =
            sequences_[i].sequence.table(static_cast<int>(c)).page_ids();
        open.orphans[c].insert(open.orphans[c].end(), ids.begin(), ids.end());
      }
    }
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void audit() {
    for (int c = 0; c < set_->num_caches(); ++c) {
      std::map<int, int> references;
      for (Tracked& t : sequences_) audit_sequence(c, t, references);
      for (OpenPlan& open : open_) {
        for (const int page : open.orphans[static_cast<size_t>(c)]) ++references[page];
      }
      // Pages of an open plan that no table holds came from the pool for it.
      for (const OpenPlan& open : open_) {
        const KvView view = set_->cache(c).view(open.plan.plan(c), 0);
        for (const int page : view.page_ids) references.try_emplace(page, 1);
      }
      const CacheStats stats = set_->cache(c).stats();
      const auto shared = std::count_if(references.begin(), references.end(),
                                        [](const auto& entry) { return entry.second > 1; });
      must(stats.used_blocks == static_cast<int64_t>(references.size()), "used blocks");
      must(stats.shared_blocks == shared, "shared blocks");
      must(stats.used_blocks <= stats.committed_blocks, "used blocks without memory");
      must(stats.committed_blocks <= max_blocks_, "more blocks than the limit");
    }
  }

  void audit_sequence(int c, Tracked& t, std::map<int, int>& references) {
    must(t.sequence.num_cached() == static_cast<int>(t.ids.size()), "length");
    const BlockTable& table = t.sequence.table(c);
    for (const int page : table.page_ids()) ++references[page];
    const int block_size = set_->cache(c).block_size();
    const auto length = static_cast<int>(t.ids.size());
    must(table.end_block() == (length + block_size - 1) / block_size, "blocks of a table");
    const int first = table.begin_block() * block_size;
    if (c == 0) must(first == 0, "a cache without window gave rows back");
    // What the next token sees, wherever truncate may have gone, is still there.
    must(first <= std::max(0, length + 1 - kWindow), "rows inside the window are gone");
    if (t.has_open_plan) return;  // its plan is read when it is committed
    AppendRequest read{&t.sequence, 0};
    Result<SetPlan> plan = set_->reserve({&read, 1});
    must(plan.ok(), "a plan to read with was refused");
    for (int layer = 0; layer < set_->cache(c).spec().num_layers(); ++layer) {
      const KvView view = set_->cache(c).view(plan->plan(c), layer);
      must(view.first_pos[0] + view.kv_len[0] == length, "length of a view");
      must(holds_model_rows(view, 0, layer, t.ids, first), "rows");
    }
  }

  int max_blocks_;
  std::optional<CacheSet> set_;
  std::vector<Tracked> sequences_;
  std::vector<OpenPlan> open_;
  int64_t next_id_ = 1;
};

}  // namespace kvik::test
