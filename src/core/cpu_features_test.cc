#include "kvik/core/cpu_features.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace kvik {
namespace {

// What the kernel says about the first processor: an account of its own, made from its own reading.
class CpuFeaturesTest : public testing::Test {
 protected:
  void SetUp() override {
#if !defined(__x86_64__)
    GTEST_SKIP() << "features of x86-64 only";
#endif
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line) && !line.empty();) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const std::string key = line.substr(0, line.find_last_not_of(" \t:", colon) + 1);
      fields_[key] = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    }
    std::istringstream words(fields_["flags"]);
    for (std::string word; words >> word;) flags_.insert(word);
    if (flags_.empty()) GTEST_SKIP() << "/proc/cpuinfo names no flags";
  }

  bool has(const std::string& flag) const { return flags_.count(flag) != 0; }

  std::map<std::string, std::string> fields_;
  std::set<std::string> flags_;
  const CpuFeatures features_ = detect_cpu_features();
};

TEST_F(CpuFeaturesTest, NamesTheProcessorAsTheKernelDoes) {
  const std::string vendor = fields_["vendor_id"];
  EXPECT_EQ(features_.vendor, vendor == "GenuineIntel"   ? CpuVendor::intel
                              : vendor == "AuthenticAMD" ? CpuVendor::amd
                                                         : CpuVendor::other);
  EXPECT_EQ(std::to_string(features_.family), fields_["cpu family"]);
  EXPECT_EQ(std::to_string(features_.model), fields_["model"]);
}

TEST_F(CpuFeaturesTest, SeesTheVectorUnitsThatTheKernelSees) {
  EXPECT_EQ(features_.fma, has("fma"));
  EXPECT_EQ(features_.f16c, has("f16c"));
  EXPECT_EQ(features_.avx2, has("avx2"));
  const bool avx512 = has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  EXPECT_EQ(features_.avx512, avx512);
  EXPECT_EQ(features_.avx512_vnni, avx512 && has("avx512_vnni"));
  EXPECT_EQ(features_.avx512_vbmi, avx512 && has("avx512vbmi"));
  EXPECT_EQ(features_.avx512_bf16, avx512 && has("avx512_bf16"));
  EXPECT_EQ(features_.amx_bf16, has("amx_tile") && has("amx_bf16"));
  EXPECT_EQ(features_.amx_int8, has("amx_tile") && has("amx_int8"));
}

TEST(DescribeCpuFeatures, NamesVendorFamilyModelAndWhatIsThere) {
  CpuFeatures features;
  EXPECT_EQ(describe(features), "other family 0 model 0:");
  features.vendor = CpuVendor::amd;
  features.family = 25;
  features.model = 1;
  features.fma = features.f16c = features.avx2 = true;
  EXPECT_EQ(describe(features), "amd family 25 model 1: fma f16c avx2");
}

TEST(DescribeCpuFeatures, NamesEachFeatureOnce) {
  CpuFeatures features;
  features.vendor = CpuVendor::intel;
  features.fma = features.f16c = features.avx2 = features.avx512 = true;
  features.avx512_vnni = features.avx512_vbmi = features.avx512_bf16 = true;
  features.amx_bf16 = features.amx_int8 = true;
  std::istringstream words(describe(features));
  std::set<std::string> distinct;
  int count = 0;
  for (std::string word; words >> word; ++count) distinct.insert(word);
  EXPECT_EQ(count, 5 + 9);
  EXPECT_EQ(distinct.size(), 14u);
}

}  // namespace
}  // namespace kvik
