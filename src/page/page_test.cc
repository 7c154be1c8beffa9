#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kvik/page/block_table.h"
#include "kvik/page/page_pool.h"

namespace kvik {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<PagePool> make_pool(int max_pages, std::vector<int64_t> page_bytes = {4096, 64}) {
  std::vector<PageRun> runs;
  for (const int64_t bytes : page_bytes) {
    runs.push_back({Buffer::reserve(bytes * max_pages).value(), bytes});
  }
  return PagePool::create(std::move(runs), max_pages).value();
}

std::vector<int> ids(const std::vector<PageRef>& pages) {
  std::vector<int> out;
  for (const PageRef& page : pages) out.push_back(page.page());
  return out;
}

std::vector<PageRef> take(PagePool& pool, int count) {
  std::vector<PageRef> pages;
  EXPECT_TRUE(pool.allocate(count, pages).ok());
  return pages;
}

PageRef one(PagePool& pool) { return std::move(take(pool, 1)[0]); }

TEST(PagePool, HandsOutTheLowestFreePageFirst) {
  const auto pool = make_pool(8);
  std::vector<PageRef> pages = take(*pool, 5);
  EXPECT_THAT(ids(pages), ElementsAre(0, 1, 2, 3, 4));
  pages[3] = PageRef();
  pages[1] = PageRef();
  EXPECT_THAT(ids(take(*pool, 3)), ElementsAre(1, 3, 5));
}

TEST(PagePool, CountsReferencesAndFreesWithTheLast) {
  const auto pool = make_pool(4);
  PageRef a = one(*pool);
  PageRef b = a.share();
  PageRef c = b.share();
  EXPECT_EQ(pool->ref_count(0), 3);
  EXPECT_EQ(pool->num_shared(), 1);
  a = PageRef();
  c = PageRef();
  EXPECT_EQ(pool->num_shared(), 0);
  EXPECT_EQ(pool->num_used(), 1);
  b = PageRef();
  EXPECT_EQ(pool->num_used(), 0);
  EXPECT_EQ(pool->num_free(), 4);
}

TEST(PagePool, RunsOutWithAllOrNothing) {
  const auto pool = make_pool(4);
  const std::vector<PageRef> held = take(*pool, 3);
  std::vector<PageRef> more;
  const Status refused = pool->allocate(2, more);
  EXPECT_EQ(refused.code(), StatusCode::out_of_pages);
  EXPECT_THAT(refused.message(), HasSubstr("need 2 pages, have 1 free of 4"));
  EXPECT_TRUE(more.empty());
  EXPECT_EQ(pool->num_used(), 3);
  EXPECT_TRUE(pool->allocate(1, more).ok());
}

TEST(PagePool, AllocatesNothingWhenFull) {
  const auto pool = make_pool(1);
  const PageRef page = one(*pool);
  EXPECT_TRUE(take(*pool, 0).empty());
}

TEST(PagePool, MovesNothingWhenItGrows) {
  const auto pool = make_pool(100000);
  std::vector<PageRef> pages = take(*pool, 1);
  std::byte* const data = pool->run_data(0);
  std::memset(data, 7, 4096);
  for (int i = 0; i < 2000; ++i) pages.push_back(one(*pool));
  EXPECT_EQ(pool->run_data(0), data);
  EXPECT_EQ(data[4095], std::byte{7});
  EXPECT_GE(pool->num_committed(), 2001);
  EXPECT_LT(pool->committed_bytes(), 2001 * (4096 + 64) * 105 / 100 + (128 << 10));
}

TEST(PagePool, CommitsAheadOneRunAtATime) {
  const auto pool = make_pool(100000, {4096, 4096, 4096});
  const std::vector<PageRef> pages = take(*pool, 16);  // fills the first step of every run
  const int64_t before = pool->committed_bytes();
  pool->commit_ahead();
  EXPECT_EQ(pool->committed_bytes(), before + (64 << 10));
  for (int i = 0; i < 10; ++i) pool->commit_ahead();
  EXPECT_EQ(pool->committed_bytes(), before + 3 * (64 << 10));
}

TEST(PagePool, OutlivesItsHandle) {
  PageRef page;
  {
    const auto pool = make_pool(2);
    page = one(*pool);
  }
  EXPECT_FALSE(page.is_shared());
}

TEST(PagePool, RefusesRunsThatAreTooSmall) {
  std::vector<PageRun> runs;
  runs.push_back({Buffer::reserve(4096).value(), int64_t{1} << 40});
  EXPECT_EQ(PagePool::create(std::move(runs), 100).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(PagePool::create({}, -1).status().code(), StatusCode::invalid_argument);
}

TEST(PagePool, CopiesAPageInEveryRun) {
  const auto pool = make_pool(3);
  const std::vector<PageRef> pages = take(*pool, 3);
  std::memset(pool->run_data(0) + 4096, 5, 4096);
  std::memset(pool->run_data(1) + 64, 6, 64);
  pool->copy_page(1, 2);
  EXPECT_EQ(pool->run_data(0)[2 * 4096 + 4095], std::byte{5});
  EXPECT_EQ(pool->run_data(1)[2 * 64 + 63], std::byte{6});
  EXPECT_EQ(pool->run_data(0)[0], std::byte{0});
}

// ---- block tables: blocks of 16 tokens
// ---------------------------------------------------------------

class Tables : public testing::Test {
 protected:
  std::shared_ptr<PagePool> pool_ = make_pool(16);

  BlockTable with_blocks(int count) {
    BlockTable table;
    for (int i = 0; i < count; ++i) table.append(one(*pool_));
    return table;
  }
};

TEST_F(Tables, MapBlocksToPages) {
  const BlockTable table = with_blocks(3);
  EXPECT_EQ(table.end_block(), 3);
  EXPECT_EQ(table.page(2), 2);
  EXPECT_THAT(std::vector<int>(table.page_ids().begin(), table.page_ids().end()),
              ElementsAre(0, 1, 2));
}

TEST_F(Tables, LetTheOwnerOfATailWriteInPlaceAndMakeTheForkCopy) {
  BlockTable table = with_blocks(2);
  BlockTable fork = table.fork(20);
  EXPECT_EQ(pool_->num_shared(), 2);
  EXPECT_FALSE(table.must_copy(1, 20));
  EXPECT_TRUE(fork.must_copy(1, 20));
}

TEST_F(Tables, MakeTheOwnerCopyBelowWhatTheForkSees) {
  BlockTable table = with_blocks(2);
  BlockTable fork = table.fork(20);
  EXPECT_TRUE(table.must_copy(1, 19));
  fork.clear();
  EXPECT_FALSE(table.must_copy(1, 19));
}

TEST_F(Tables, GiveTheTailToWhoeverIsLeft) {
  BlockTable fork;
  {
    BlockTable table = with_blocks(2);
    fork = table.fork(20);
  }
  EXPECT_FALSE(fork.must_copy(1, 20));
}

TEST_F(Tables, ReplaceOnlyTheLastBlock) {
  BlockTable table = with_blocks(2);
  BlockTable fork = table.fork(20);
  fork.replace_last(1, one(*pool_));
  EXPECT_EQ(fork.page(1), 2);
  EXPECT_EQ(table.page(1), 1);
  EXPECT_EQ(pool_->num_shared(), 1);
  EXPECT_FALSE(fork.must_copy(1, 20));
}

TEST_F(Tables, DropBlocksAtBothEnds) {
  BlockTable table = with_blocks(6);
  table.drop_before(2);
  EXPECT_EQ(table.begin_block(), 2);
  EXPECT_EQ(table.page(2), 2);
  table.drop_from(4);
  EXPECT_EQ(table.end_block(), 4);
  EXPECT_EQ(pool_->num_used(), 2);
  EXPECT_DEATH(table.drop_from(1), "a window gave back");
}

// Of two handles that went their ways, each frees only what is its own.
TEST_F(Tables, ForksThatDivergeShareOnlyTheirCommonBlocks) {
  BlockTable parent = with_blocks(2);
  BlockTable a = parent.fork(22);
  BlockTable b = a.fork(22);
  parent.clear();
  a.replace_last(1, one(*pool_));
  EXPECT_EQ(pool_->num_used(), 3);  // block 0 shared by a and b, block 1 once each
  b.clear();
  EXPECT_EQ(pool_->num_used(), 2);
  a.clear();
  EXPECT_EQ(pool_->num_used(), 0);
}

}  // namespace
}  // namespace kvik
