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

std::vector<int> ids(const BlockTable& table) {
  return {table.page_ids().begin(), table.page_ids().end()};
}

TEST_F(Tables, LoseARunInTheMiddleAndKeepTheOtherPages) {
  BlockTable table = with_blocks(8);
  table.erase(2, 3, 16);
  EXPECT_THAT(ids(table), ElementsAre(0, 1, 5, 6, 7));
  EXPECT_EQ(table.end_block(), 5);
  EXPECT_EQ(table.page(2), 5);
  EXPECT_EQ(pool_->num_used(), 5);
  table.erase(3, 2, 16);  // to the end
  EXPECT_THAT(ids(table), ElementsAre(0, 1, 5));
  table.erase(0, 0, 16);
  table.append(one(*pool_));
  EXPECT_THAT(ids(table), ElementsAre(0, 1, 5, 2));
  table.drop_from(1);
  EXPECT_THAT(ids(table), ElementsAre(0));
  EXPECT_DEATH(table.erase(0, 2, 16), "not there");
}

TEST_F(Tables, TakeOutBlocksThatAWindowGaveBackAsWell) {
  const auto erased = [&](int begin, int block, int count) {
    BlockTable table = with_blocks(8);
    table.drop_before(begin);
    table.erase(block, count, 16);
    EXPECT_EQ(table.end_block(), 8 - count);
    EXPECT_EQ(table.end_block() - table.begin_block(), int(table.page_ids().size()));
    std::vector<int> moved = ids(table);
    moved.insert(moved.begin(), table.begin_block());
    return moved;  // first block, then pages
  };
  EXPECT_THAT(erased(1, 2, 3), ElementsAre(1, 1, 5, 6, 7));
  EXPECT_THAT(erased(3, 2, 3), ElementsAre(2, 5, 6, 7));
  EXPECT_THAT(erased(5, 2, 3), ElementsAre(2, 5, 6, 7));
  EXPECT_THAT(erased(6, 2, 3), ElementsAre(3, 6, 7));
  EXPECT_THAT(erased(4, 2, 6), ElementsAre(2));
}

TEST_F(Tables, ForgetBlocksForGood) {
  BlockTable table = with_blocks(8);
  table.drop_before(1);
  EXPECT_EQ(table.floor_block(), 0);
  table.forget_before(5);
  EXPECT_EQ(table.begin_block(), 5);
  table.forget_before(2);
  EXPECT_EQ(table.floor_block(), 5);
  EXPECT_EQ(table.fork(128).floor_block(), 5);
  table.erase(2, 1, 16);
  EXPECT_EQ(table.floor_block(), 4);
  table.erase(1, 6, 16);
  EXPECT_EQ(table.floor_block(), 1);
  table.clear();
  EXPECT_EQ(table.floor_block(), 0);
}

// The tail goes on to belong to whoever wrote it; others see no more of its page than before.
TEST_F(Tables, OwnTheSameRowsAfterARunIsTakenOut) {
  BlockTable table = with_blocks(6);
  BlockTable fork = table.fork(85);  // 5 rows of the last block
  table.erase(1, 3, 16);             // position 85 is 37 now
  EXPECT_FALSE(table.must_copy(2, 37));
  EXPECT_TRUE(table.must_copy(2, 36));
  EXPECT_TRUE(fork.must_copy(5, 85));
  fork.erase(1, 2, 16);
  EXPECT_TRUE(fork.must_copy(3, 53));
  EXPECT_EQ(pool_->num_used(), 4);
  EXPECT_EQ(pool_->num_shared(), 3);  // 0, 4 and 5; the fork alone has 3
  EXPECT_FALSE(fork.must_copy(1, 20));
  fork.append(one(*pool_));
  BlockTable third = fork.fork(70);
  EXPECT_FALSE(fork.must_copy(4, 70));
  EXPECT_TRUE(third.must_copy(4, 70));
}

TEST_F(Tables, OwnWhatTheyAppendAfterTheirOwnBlocksAreTakenOut) {
  BlockTable parent = with_blocks(4);
  BlockTable fork = parent.fork(64);
  for (int i = 0; i < 3; ++i) fork.append(one(*pool_));  // blocks 4 to 6 are its own
  BlockTable third = fork.fork(104);
  fork.erase(2, 3, 16);  // of the parent's 2 and 3, of its own 4
  EXPECT_FALSE(fork.must_copy(3, 56));
  EXPECT_TRUE(fork.must_copy(3, 55));
  EXPECT_TRUE(fork.must_copy(1, 31));
  fork.erase(2, 2, 16);  // nothing of its own is left
  EXPECT_TRUE(fork.must_copy(1, 31));
  fork.append(one(*pool_));
  BlockTable fourth = fork.fork(40);
  EXPECT_FALSE(fork.must_copy(2, 40));
  EXPECT_TRUE(fourth.must_copy(2, 40));
}

}  // namespace
}  // namespace kvik
