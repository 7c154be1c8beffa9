#include "support/model_files.h"

#include <cstdlib>

namespace kvik::test {

std::filesystem::path cache_dir() {
  if (const char* dir = std::getenv("KVIK_CACHE_DIR")) return dir;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache" / "kvik";
}

bool models_required() { return std::getenv("KVIK_REQUIRE_MODELS") != nullptr; }

std::optional<std::string> missing(const std::filesystem::path& path) {
  if (std::filesystem::exists(path)) return std::nullopt;
  return path.string() + " is missing; scripts/fetch-model and scripts/fetch-text fetch it";
}

}  // namespace kvik::test
