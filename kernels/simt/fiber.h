// Fibers: one stack per emulated CUDA thread, and a switch between them that saves the callee-saved
// registers of the x86-64 System V ABI and nothing else. swapcontext, which makes a system call for
// the signal mask, is 30 times dearer.
#pragma once

#include <cstddef>

namespace weft::simt {

/// A suspended flow of control. The host thread that runs the fibers is one too.
struct Fiber {
  void* stack_pointer = nullptr;
  void* stack_bottom = nullptr;  // lowest address; null: the host thread's, not asked for yet
  size_t stack_bytes = 0;
  void* sanitizer_stack = nullptr;  // AddressSanitizer's fake stack of a suspended fiber
};

/// Suspends `from`, the running fiber, and resumes `to`. `from_ends` says that it never runs again.
void switch_fiber(Fiber& from, Fiber& to, bool from_ends = false);

/// Makes the fiber start in `entry`, which must not return, on a stack of that memory.
void prepare_fiber(Fiber& fiber, void* stack, size_t bytes, void (*entry)());

/// To be called first thing by a fiber's entry.
void fiber_started();

}  // namespace weft::simt
