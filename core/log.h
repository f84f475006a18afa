// What a run may tell beside its results: WEFT_LOG=1 has detours said on stderr, such as a kernel
// that was passed over because an operand is not aligned.
#pragma once

#include <string>

namespace weft {

/// The level that WEFT_LOG asks for; 0 without it. Throws Error when it is no number.
int log_level();

/// "weft: <line>" on stderr, the first time that this line is said.
void log_once(const std::string& line);

}  // namespace weft
