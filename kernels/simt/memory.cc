#include "kernels/simt/memory.h"

namespace weft::simt {

void on_access(void*, size_t, Access, void*) {}

}  // namespace weft::simt
