// Pre-tokenizers: how a text is cut into pieces before byte-pair merges run inside each piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// Each cuts as the model's regular expressions do, by a hand-written scanner over the Unicode 15.1
// classes L, N and White_Space (\s). All text lands in exactly one piece.
//   gpt2       's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   smollm     every \p{N} is a piece of its own; what lies between is cut by gpt2, each stretch
//              as a text of its own
//   llama_bpe  (?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+
//              |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   qwen2      as llama_bpe, but \p{N} for \p{N}{1,3}: each number is a piece of its own
// A byte sequence that is not UTF-8 counts as a character outside the three classes.
enum class PreTokenizer : uint8_t { gpt2, smollm, llama_bpe, qwen2 };

// The value of a GGUF file's `tokenizer.ggml.pre`: "gpt-2" (also "gpt2"), "smollm", "llama-bpe"
// (also "llama3", "llama-v3"), "qwen2". Any other name: unsupported.
KVIK_API Result<PreTokenizer> pre_tokenizer_from_name(std::string_view name);

// Whether texts are brought to Unicode's normal form C before they are cut, as the model's own
// tokenizer does: qwen2 alone.
KVIK_API bool normalises_to_nfc(PreTokenizer kind);

// End of the piece that starts at `begin`; depends on nothing before `begin`, so a caller walks a
// text from 0. A walk over a whole text takes linear time.
// Requires: begin < text.size(), and begin is 0 or an end returned for this text.
KVIK_API size_t piece_end(PreTokenizer kind, std::string_view text, size_t begin);

}  // namespace kvik
