// What AddressSanitizer's leak checker is not to report, in every program under clang. LLVM's
// OpenMP never gives back what it keeps for its threads.

extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }
