#include "support/model_vocabulary.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvik::test {
namespace {

using nlohmann::json;

template <class T>
void read(const json& object, const char* key, T& value) {
  if (object.contains(key)) value = object.at(key).get<T>();
}

template <class T>
void read(const json& object, const char* key, std::optional<T>& value) {
  if (object.contains(key)) value = object.at(key).get<T>();
}

}  // namespace

std::filesystem::path cache_dir() {
  if (const char* dir = std::getenv("KVIK_CACHE_DIR")) return dir;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache" / "kvik";
}

bool models_required() { return std::getenv("KVIK_REQUIRE_MODELS") != nullptr; }

std::optional<Result<ModelVocabulary>> load_vocabulary(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  ModelVocabulary model;
  try {
    const json object = json::parse(in);
    Vocabulary& v = model.vocabulary;
    read(object, "model", v.model);
    read(object, "pre", v.pre);
    read(object, "pieces", v.pieces);
    read(object, "scores", v.scores);
    read(object, "token_types", v.token_types);
    read(object, "merges", v.merges);
    read(object, "bos", v.bos);
    read(object, "eos", v.eos);
    read(object, "unknown", v.unknown);
    read(object, "padding", v.padding);
    read(object, "add_bos", v.add_bos);
    read(object, "add_eos", v.add_eos);
    read(object, "chat_template", model.chat_template);
  } catch (const json::exception& error) {
    return Result<ModelVocabulary>(
        Status(StatusCode::corrupt, path.string() + ": " + error.what()));
  }
  return Result<ModelVocabulary>(std::move(model));
}

}  // namespace kvik::test
