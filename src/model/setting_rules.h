// Which settings of an architecture may stand in a file without being computed.
#pragma once

#include <string_view>

#include "kvik/core/status.h"
#include "kvik/model/gguf.h"
#include "kvik/model/model.h"

namespace kvik::internal {

// A key of the architecture (its name begins with `prefix`) that its code has not read: ok where
// the key never changes results, or has the value that stands for "none". Errors, naming key, value
// and what would be lost: unsupported; corrupt where the value contradicts the rest of the file.
Status check_unread_setting(const GgufFile& file, const GgufEntry& entry, std::string_view prefix,
                            const ModelInfo& info);

// Keys under "general." that say that the file is no model, or that its weights are packed in
// another way. Errors: unsupported, naming the key and its value.
Status check_general_settings(const GgufFile& file);

}  // namespace kvik::internal
