// Tables of tools/make_unicode_case.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvik::jinja {

// Characters first, first + stride, ... last become those `difference` further on.
struct CaseRun {
  uint32_t first, last, stride;
  int32_t difference;
};
// A character that becomes several; 0 ends them.
struct CaseSpecial {
  uint32_t from;
  uint32_t to[3];
};
struct ClassRun {
  uint32_t first, last;
};

extern const CaseRun kUpperRuns[], kLowerRuns[], kTitleRuns[];
extern const size_t kNumUpperRuns, kNumLowerRuns, kNumTitleRuns;
extern const CaseSpecial kUpperSpecials[], kLowerSpecials[], kTitleSpecials[];
extern const size_t kNumUpperSpecials, kNumLowerSpecials, kNumTitleSpecials;
extern const ClassRun kUnprintable[], kLowerCase[], kUpperCase[], kTitleCase[], kDecimal[],
    kDigit[], kNumeric[], kAlpha[];
extern const size_t kNumUnprintable, kNumLowerCase, kNumUpperCase, kNumTitleCase, kNumDecimal,
    kNumDigit, kNumNumeric, kNumAlpha;

}  // namespace kvik::jinja
