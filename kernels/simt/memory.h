// The memory that emulated kernels touch, watched access by access.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::simt {

enum class Access : uint8_t { read, write };

/// An ordinary load or store of the current thread, about to happen; `pc` lies behind it.
void on_access(void* address, size_t bytes, Access access, void* pc);

}  // namespace weft::simt
