#include "autograd/stack_room.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/error.h"

namespace weft {
namespace {

/// A thread's stack, which grows downwards to `end`; zeros where the system does not say.
struct Stack {
  uintptr_t end = 0;
  size_t size = 0;

  uintptr_t least() const { return end + std::min<size_t>(256 << 10, size / 4); }
};

Stack stack_of_this_thread() {
  pthread_attr_t attributes;
  if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return {};
  void* end = nullptr;
  size_t size = 0;
  const bool is_known = ::pthread_attr_getstack(&attributes, &end, &size) == 0;
  ::pthread_attr_destroy(&attributes);
  return is_known ? Stack{reinterpret_cast<uintptr_t>(end), size} : Stack{};
}

}  // namespace

void require_stack_room(std::string_view what) {
  thread_local const Stack stack = stack_of_this_thread();
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  WEFT_CHECK(here >= stack.least(),
             "{}: calls are nested too deep for this thread's stack of {} KiB (ulimit -s)", what,
             stack.size >> 10);
}

}  // namespace weft
