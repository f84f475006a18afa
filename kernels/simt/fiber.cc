#include "kernels/simt/fiber.h"

#include <pthread.h>

#include <cstring>

#include "core/sanitizer.h"

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

/// The host thread's stack, which AddressSanitizer asks for when the fibers give it back.
void note_own_stack(Fiber& host) {
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &host.stack_bottom, &host.stack_bytes);
  pthread_attr_destroy(&attributes);
}

}  // namespace

void switch_fiber(Fiber& from, Fiber& to, bool from_ends) {
  const bool tells = sanitizer::is_linked();
  if (tells) {
    if (from.stack_bottom == nullptr) note_own_stack(from);
    __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.sanitizer_stack, to.stack_bottom,
                                   to.stack_bytes);
  }
  weft_simt_switch(&from.stack_pointer, to.stack_pointer);
  if (tells) __sanitizer_finish_switch_fiber(from.sanitizer_stack, nullptr, nullptr);
}

void fiber_started() {
  if (sanitizer::is_linked()) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}

void prepare_fiber(Fiber& fiber, void* stack, size_t bytes, void (*entry)()) {
  fiber = Fiber{};
  fiber.stack_bottom = stack;
  fiber.stack_bytes = bytes;
  // As a call leaves it: the return address on top, 8 bytes off a multiple of 16 inside the callee.
  auto* top = reinterpret_cast<void**>(static_cast<char*>(stack) + bytes) - 2;
  *top = reinterpret_cast<void*>(entry);
  std::memset(top - kSavedRegisters, 0, kSavedRegisters * sizeof(void*));
  fiber.stack_pointer = top - kSavedRegisters;
}

}  // namespace weft::simt
