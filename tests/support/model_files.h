// Files of real models and texts for golden tests.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kvik::test {

// $KVIK_CACHE_DIR, else ~/.cache/kvik.
std::filesystem::path cache_dir();

// True if a missing model must fail the test instead of skipping it ($KVIK_REQUIRE_MODELS is set).
bool models_required();

// Why a test that needs the file cannot run; nullopt if it is there.
std::optional<std::string> missing(const std::filesystem::path& path);

inline constexpr const char* kSmolLm2File = "SmolLM2-135M-Instruct.Q4_1.gguf";
inline constexpr const char* kGemma3File = "gemma-3-270m-q4_k_m.gguf";

}  // namespace kvik::test
