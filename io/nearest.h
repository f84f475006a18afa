// What somebody probably meant: the suggestion in an error about an unknown name.
//
//   WEFT_FAIL("unknown key \"{}\"{}", key, did_you_mean(key, known));   // ...; did you mean "lr"?
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::io {

/// The shortest candidate that begins with the word, if this has three letters or more. Else the
/// one that the fewest edits lead to, the first of several: letters put in, left out or changed,
/// neighbours swapped (Damerau's distance, each letter edited once). Empty where that takes more
/// than a third of the word's letters, and more than one. Case, the difference of - and _ and an
/// option's leading dashes are put aside.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "; did you mean \"lr\"?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace weft::io
