// Vocabularies of real models for golden tests.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kvik/core/status.h"
#include "kvik/model/vocabulary.h"

namespace kvik::test {

// $KVIK_CACHE_DIR, else ~/.cache/kvik.
std::filesystem::path cache_dir();

// True if a missing model must fail the test instead of skipping it ($KVIK_REQUIRE_MODELS is set).
bool models_required();

struct ModelVocabulary {
  Vocabulary vocabulary;
  std::string chat_template;  // empty if the model has none
};

// Reads what tools/export_vocabulary.py wrote. nullopt if the file is missing; a file that cannot
// be understood is an error.
std::optional<Result<ModelVocabulary>> load_vocabulary(const std::filesystem::path& path);

}  // namespace kvik::test
