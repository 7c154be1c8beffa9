// Files of real models and texts for golden tests.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kvik::test {

// A file that scripts/fetch-model or scripts/fetch-text puts into the cache folder.
struct FetchedFile {
  std::string name;  // as those scripts call it
  std::string file;

  // In $KVIK_CACHE_DIR, else $XDG_CACHE_HOME/kvik, else ~/.cache/kvik.
  std::filesystem::path path() const;
  // Why a test that needs the file cannot run; nullopt if it is there.
  std::optional<std::string> missing() const;
  // True if its absence must fail a test instead of skipping it: $KVIK_REQUIRE_MODELS, a list of
  // names, holds this one.
  bool is_required() const;
};

inline const FetchedFile kSmolLm2 = {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"};
inline const FetchedFile kGemma3 = {"gemma3", "gemma-3-270m-q4_k_m.gguf"};

}  // namespace kvik::test

// In a test or its SetUp(): leaves it when the file is not there.
#define KVIK_NEEDS_FILE(fetched)                 \
  if (const auto why = (fetched).missing()) {    \
    if ((fetched).is_required()) FAIL() << *why; \
    GTEST_SKIP() << *why;                        \
  }
