// JSON files that hold the CRC-32 of themselves, so that no damaged one is read.
//
//   {"crc32": "1c291ca3", "format": "...", ...}
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "io/files.h"

namespace weft::io {

/// A file's text. `object` has no "crc32" yet, and no key that sorts before it; `indent` as in
/// json::dump: 2, or -1 for one line.
std::string checked_json_text(nlohmann::json object, int indent = -1);

/// Whether a text begins as checked_json_text() writes it.
bool looks_like_checked_json(std::string_view text);

/// The object, with its "crc32". Throws Error naming `file` unless every byte is as it was written.
nlohmann::json parse_checked_json(std::string_view text, const Path& file);

/// JSON of a stranger's, of at most 32 MiB and nested at most 32 deep: memory used is at most 24
/// times the text. Throws Error naming `file`.
nlohmann::json parse_foreign_json(std::string_view text, const Path& file);

/// The same of a text that somebody writes by hand: of what is no JSON the Error names the line,
/// and a key that an object has twice is an Error as well.
nlohmann::json parse_json(std::string_view text, const Path& file);
/// With the keys in the text's order.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const Path& file);

}  // namespace weft::io
