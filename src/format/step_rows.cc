#include "kvik/format/step_rows.h"

#include <utility>

namespace kvik {

// Not inline: g++ 12 warns falsely of lists of views when it sees the count of references.
StepRef::StepRef() noexcept = default;
StepRef::StepRef(std::shared_ptr<const StepRows> rows, int layer) noexcept
    : rows_(std::move(rows)), number_(rows_->number), layer_(layer) {}
StepRef::StepRef(const StepRef&) noexcept = default;
StepRef& StepRef::operator=(const StepRef&) noexcept = default;
StepRef::~StepRef() = default;

}  // namespace kvik
