#include "support/model_files.h"

#include <cstdlib>
#include <sstream>

namespace kvik::test {
namespace {

std::filesystem::path cache_dir() {
  if (const char* dir = std::getenv("KVIK_CACHE_DIR")) return dir;
  if (const char* dir = std::getenv("XDG_CACHE_HOME")) return std::filesystem::path(dir) / "kvik";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache" / "kvik";
}

}  // namespace

std::filesystem::path FetchedFile::path() const { return cache_dir() / file; }

std::optional<std::string> FetchedFile::missing() const {
  if (std::filesystem::exists(path())) return std::nullopt;
  return path().string() + " is missing; scripts/fetch-model and scripts/fetch-text fetch it";
}

bool FetchedFile::is_required() const {
  const char* const list = std::getenv("KVIK_REQUIRE_MODELS");
  std::istringstream names(list != nullptr ? list : "");
  for (std::string each; names >> each;) {
    if (each == name) return true;
  }
  return false;
}

}  // namespace kvik::test
