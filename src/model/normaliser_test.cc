#include "model/normaliser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "model/unicode.h"

namespace kvik::internal {
namespace {

std::string nfc_of(std::string_view text) { return std::string(NfcText(text).view()); }

TEST(Nfc, ComposesDecomposesAndOrdersAsUnicodeSays) {
  EXPECT_EQ(nfc_of("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(nfc_of("caf\u00e9"), "caf\u00e9");
  // Hangul by rule, singletons, exclusions.
  EXPECT_EQ(nfc_of("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(nfc_of("\u212b"), "\u00c5");
  EXPECT_EQ(nfc_of("\u0958"), "\u0915\u093c");
  EXPECT_EQ(nfc_of("\u0344"), "\u0308\u0301");
  // Marks are put in order, then the first that can joins: a dot below goes before a dot above.
  EXPECT_EQ(nfc_of("s\u0307\u0323"), "\u1e69");
  // A mark between of the same class blocks.
  EXPECT_EQ(nfc_of("a\u0305\u0301"), "a\u0305\u0301");
  // Compatibility characters stay.
  EXPECT_EQ(nfc_of("\ufb01 \u2460 \uff21"), "\ufb01 \u2460 \uff21");
}

TEST(Nfc, LeavesBytesThatAreNotUtf8AndJoinsNothingAcrossThem) {
  const std::string bad = "e\xff\xcc\x81";
  EXPECT_EQ(nfc_of(bad), bad);
  EXPECT_EQ(nfc_of("\xcc"), "\xcc");
  EXPECT_EQ(nfc_of("e\u0301\xed\xa0\x80"
                   "e\u0301"),
            "\u00e9\xed\xa0\x80\u00e9");
}

TEST(Nfc, SaysWhereAByteCameFrom) {
  const std::string text = "ae\u0301b\u0416c";  // a e ◌́ b Ж c
  const NfcText normal(text);
  ASSERT_EQ(normal.view(), "a\u00e9b\u0416c");
  const size_t expected[] = {0, 1, 1, 4, 5, 6, 7, 8};
  for (size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(normal.original_offset(i), expected[i]) << i;
  }
  const NfcText plain("abc");
  EXPECT_EQ(plain.original_offset(2), 2U);
}

TEST(Nfc, TakesNoQuadraticTimeForALongRunOfMarks) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  const auto start = std::chrono::steady_clock::now();
  const std::string normal = nfc_of(text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  // The dots below come first, and the first of them joins.
  EXPECT_TRUE(normal.starts_with("\u1ea1\u0323\u0323"));
  EXPECT_TRUE(normal.ends_with("\u0301\u0301"));
}

}  // namespace
}  // namespace kvik::internal
