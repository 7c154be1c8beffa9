// Metadata of a model file as JSON that loses nothing.
#pragma once

#include <nlohmann/json.hpp>

#include "kvik/model/gguf.h"

namespace kvik::cli {

// An integer, a boolean or a string as it is. A float as the shortest decimal that reads back as
// the same float of its width; one that is not finite as "NaN", "Infinity" or "-Infinity". A string
// that is not UTF-8 as {"not_utf8": its bytes in hexadecimal}. An array element by element, or, of
// more than `max_elements`, as {"array_of": type, "count": n}.
nlohmann::ordered_json value_json(const GgufValue& value, int64_t max_elements);

// Text of a file for JSON: the string, or, where it is not UTF-8, an object as above.
nlohmann::ordered_json text_json(std::string_view text);

}  // namespace kvik::cli
