// Text that came from a file, made fit for a one-line message on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace weft::io {

/// The text in double quotes, everything but printable ASCII escaped as in JSON, bytes that are not
/// UTF-8 replaced, and cut after 120 bytes.
std::string quote(std::string_view text);

/// Whether it can stand in JSON, YAML and what else is text.
bool is_utf8(std::string_view text);

/// A name for a table: as it is when that is printable, else quoted whole.
std::string printable(const std::string& name);

}  // namespace weft::io
