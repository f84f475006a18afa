// Calls within calls, which a program may nest as deep as it likes, end in an Error before the
// stack does.
#pragma once

#include <string_view>

namespace weft {

/// Throws Error that begins with `what` where less than 256 KiB, or a quarter, of this thread's
/// stack are left. Costs a nanosecond.
void require_stack_room(std::string_view what);

}  // namespace weft
