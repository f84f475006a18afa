// Which parts of a mapped file are in memory: asked for ahead of use, and let go after it. What is
// said of memory that is no file's changes nothing that can be read there.
#pragma once

#include <cstddef>
#include <span>

namespace weft {

/// Has the system read these bytes from disk while the caller does something else.
void will_need(std::span<const std::byte> bytes);

/// Takes the whole pages among these bytes of a mapped file out of this process's memory; whoever
/// touches them reads them again. Nobody may have changed them, for the change would be lost.
void let_go(std::span<const std::byte> bytes);

}  // namespace weft
