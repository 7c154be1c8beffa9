// Text of files and users on its way to a terminal, a table or a page.
#pragma once

#include <string>
#include <string_view>

namespace kvik::cli {

// On one line, and nothing in it steers a terminal or hides: control characters (C0, DEL, C1),
// line and paragraph separators, marks that turn or join text unseen, bytes that are not UTF-8.
// They are written out: \n, \t, \x1b, \u202e. All else stays.
std::string one_line(std::string_view text);
// The same without touching line breaks, tabs and marks of direction: for text of several lines.
std::string without_controls(std::string_view text);
// JSON with what one_line() writes out as \u escapes, line breaks between values apart: the same
// values, and safe to look at.
std::string escaped_json(std::string_view json);
// A JSON string in quotes, but for bytes that are not UTF-8: they are written out as \xff.
std::string quoted(std::string_view text);
// A cell of a Markdown table: one_line(), and neither | nor \ ends the cell.
std::string markdown_cell(std::string_view text);
// Columns that the text takes: characters, marks that combine with the one before not counted.
size_t columns_of(std::string_view text);

}  // namespace kvik::cli
