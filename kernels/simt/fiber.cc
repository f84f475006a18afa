#include "kernels/simt/fiber.h"

#include <cstring>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// void weft_simt_switch(void** save, void* load): six registers and the stack pointer.
extern "C" void weft_simt_switch(void** save, void* load);
asm(R"(
.text
.globl weft_simt_switch
.type weft_simt_switch, @function
weft_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size weft_simt_switch, . - weft_simt_switch
)");

namespace weft::simt {
namespace {

constexpr int kSavedRegisters = 6;

}  // namespace

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool from_ends) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.sanitizer_stack, to.stack_bottom,
                                 to.stack_bytes);
#endif
  weft_simt_switch(&from.stack_pointer, to.stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from.sanitizer_stack, nullptr, nullptr);
#endif
}

void fiber_started() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

void prepare_fiber(Fiber& fiber, void* stack, size_t bytes, void (*entry)()) {
  fiber = Fiber{};
  fiber.stack_bottom = stack;
  fiber.stack_bytes = bytes;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack, bytes);
#endif
  // As a call leaves it: the return address on top, 8 bytes off a multiple of 16 inside the callee.
  auto* top = reinterpret_cast<void**>(static_cast<char*>(stack) + bytes) - 2;
  *top = reinterpret_cast<void*>(entry);
  std::memset(top - kSavedRegisters, 0, kSavedRegisters * sizeof(void*));
  fiber.stack_pointer = top - kSavedRegisters;
}

}  // namespace weft::simt
