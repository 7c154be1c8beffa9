// What a template can read of a chat, found in its text.
#pragma once

#include <set>
#include <string>

#include "model/jinja/ast.h"

namespace kvik::jinja {

struct Reads {
  std::set<std::string> names;         // of variables
  std::set<std::string> message_keys;  // of messages, or of what may be one
};

// Follows `messages` through loops, assignments, filters and parameters of macros, without regard
// to the order of statements: a key counts as read where the value may be a message.
Reads find_reads(const Block& block);

}  // namespace kvik::jinja
