#include "kvik/backend/backend.h"

namespace kvik {

Status attend(Backend& backend, const AttentionCall& call) {
  if (Status status = check(call); !status.ok()) return status;
  backend.attend(call);
  return {};
}

}  // namespace kvik
