#pragma once

#include <string_view>

namespace kvik::internal {

// UTF-8; they live for ever.
std::string_view calibration_prose();
std::string_view calibration_code();

}  // namespace kvik::internal
