// Rows that a program itself puts in front of the ops' lists, for a while or for good.
#pragma once

#include <string_view>

namespace weft::kernels {

/// `variant`, a Variant of the op's problem, stands first in its list from its next use on, for as
/// long as the program runs.
void add_row(std::string_view op, const void* variant);

}  // namespace weft::kernels
