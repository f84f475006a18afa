#include "core/signal_stack.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace weft {

void ensure_signal_stack() {
  stack_t stack = {};
  if (::sigaltstack(nullptr, &stack) == 0 && !(stack.ss_flags & SS_DISABLE)) return;
  // The registers that a signal saves take kilobytes of it, with AMX eleven.
  constexpr long kLeast = 64 << 10;
  const long page = ::sysconf(_SC_PAGESIZE);
  const auto bytes = static_cast<size_t>(std::max(::sysconf(_SC_SIGSTKSZ), kLeast));
  // It stays for as long as signals may come; below it nothing is mapped, for it not to grow there.
  void* const memory = ::mmap(nullptr, bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  WEFT_CHECK(memory != MAP_FAILED, "signals: no memory for a stack of {} bytes: {}", bytes,
             std::strerror(errno));
  stack = {.ss_sp = static_cast<char*>(memory) + page, .ss_flags = 0, .ss_size = bytes};
  const bool is_there = ::mprotect(stack.ss_sp, bytes, PROT_READ | PROT_WRITE) == 0 &&
                        ::sigaltstack(&stack, nullptr) == 0;
  WEFT_CHECK(is_there, "signals: no stack of {} bytes: {}", bytes, std::strerror(errno));
}

}  // namespace weft
