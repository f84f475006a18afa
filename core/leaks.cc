// What AddressSanitizer's leak checker is not to report, in every program under clang: what LLVM's
// OpenMP keeps for its threads to the end. Of Open MPI's ranks nothing at all: it has unloaded by
// then what it allocated in, so that its leaks have no name.
#include <cstdlib>

extern "C" {
const char* __lsan_default_suppressions();
int __lsan_is_turned_off();

const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }
int __lsan_is_turned_off() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }
}
