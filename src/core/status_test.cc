#include "kvik/core/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace kvik {
namespace {

TEST(Status, OkIsTheDefaultAndCarriesNoMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.to_string(), "ok");
}

TEST(Status, NamesItsCodeBeforeTheMessage) {
  EXPECT_EQ(Status(StatusCode::out_of_pages, "need 3, have 2").to_string(),
            "out_of_pages: need 3, have 2");
}

TEST(Result, MovesItsValueOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(Result, CarriesTheStatusOfAFailure) {
  const Result<int> result(invalid_argument("no"));
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
}

TEST(ResultDeathTest, TakingTheValueOfAFailureAborts) {
  Result<int> result(invalid_argument("the reason"));
  EXPECT_DEATH(result.value(), "the reason");
}

}  // namespace
}  // namespace kvik
