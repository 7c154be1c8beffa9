// Marks what the shared library exports; everything else stays hidden.
#pragma once

#define KVIK_API [[gnu::visibility("default")]]
