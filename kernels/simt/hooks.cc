// What -fsanitize=thread and -fsanitize=bounds make instrumented code call. Weft links these
// instead of the sanitizers' own runtimes; outside emulated threads accesses are not looked at.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernels/simt/emulator.h"
#include "kernels/simt/memory.h"
#include "kernels/simt/watch.h"

using weft::simt::current;

#define WEFT_HOOK(name, bytes, alignment, kind, ...)                             \
  extern "C" void name(void* address __VA_OPT__(, ) __VA_ARGS__);                \
  void name(void* address __VA_OPT__(, ) __VA_ARGS__) {                          \
    if (current != nullptr) {                                                    \
      weft::simt::on_access(address, bytes, alignment, weft::simt::Access::kind, \
                            __builtin_return_address(0));                        \
    }                                                                            \
  }
// "unaligned" ones are those that the source makes without claiming an alignment: memcpy and
// packed.
#define WEFT_HOOKS(bytes)                                  \
  WEFT_HOOK(__tsan_read##bytes, bytes, bytes, kRead)       \
  WEFT_HOOK(__tsan_write##bytes, bytes, bytes, kWrite)     \
  WEFT_HOOK(__tsan_unaligned_read##bytes, bytes, 1, kRead) \
  WEFT_HOOK(__tsan_unaligned_write##bytes, bytes, 1, kWrite)
WEFT_HOOKS(1)
WEFT_HOOKS(2)
WEFT_HOOKS(4)
WEFT_HOOKS(8)
WEFT_HOOKS(16)
WEFT_HOOK(__tsan_read_range, size, 1, kRead, size_t size)
WEFT_HOOK(__tsan_write_range, size, 1, kWrite, size_t size)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Host code in instrumented units (reference counts and the like) has its atomics replaced, too.
#define WEFT_FETCH(bits, T, op)                                 \
  T __tsan_atomic##bits##_fetch_##op(volatile T* p, T v, int) { \
    return __atomic_fetch_##op(p, v, 5);                        \
  }
#define WEFT_ATOMIC(bits, T)                                                                     \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, 5); }       \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, 5); }       \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) {                                    \
    return __atomic_exchange_n(p, v, 5);                                                         \
  }                                                                                              \
  WEFT_FETCH(bits, T, add)                                                                       \
  WEFT_FETCH(bits, T, sub)                                                                       \
  WEFT_FETCH(bits, T, and)                                                                       \
  WEFT_FETCH(bits, T, or)                                                                        \
  WEFT_FETCH(bits, T, xor)                                                                       \
  WEFT_FETCH(bits, T, nand)                                                                      \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T v, int, int) { \
    return __atomic_compare_exchange_n(p, expected, v, false, 5, 5);                             \
  }                                                                                              \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T v, int, int) {   \
    return __atomic_compare_exchange_n(p, expected, v, true, 5, 5);                              \
  }                                                                                              \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T v, int, int) {       \
    __atomic_compare_exchange_n(p, &expected, v, false, 5, 5);                                   \
    return expected;                                                                             \
  }
WEFT_ATOMIC(8, uint8_t)
WEFT_ATOMIC(16, uint16_t)
WEFT_ATOMIC(32, uint32_t)
WEFT_ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(5); }
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

// An index beyond an array of a known size. Local arrays lie on the thread's stack, whose accesses
// are not looked at: this alone finds it. UBSan's own runtime, where it is linked, wins.
namespace {

struct TypeName {
  uint16_t kind, width;
  char text[1];  // and on: quoted
};
struct ArrayPlace {
  const char* file;
  uint32_t line, column;
  const TypeName* array;
  const TypeName* index;
};

}  // namespace

extern "C" [[gnu::weak]] void __ubsan_handle_out_of_bounds(const ArrayPlace* place,
                                                           uintptr_t index) {
  const int64_t value = static_cast<int64_t>(index);
  if (current == nullptr) {
    std::fprintf(stderr, "%s:%u: index %lld is beyond an array of type %s\n", place->file,
                 place->line, static_cast<long long>(value), place->array->text);
    std::abort();
  }
  const weft::simt::Place at = weft::simt::place_of(__builtin_return_address(0));
  weft::simt::fail_kernel(
      fmt::format("index {} is beyond an array of type {}", value, place->array->text),
      weft::simt::to_string(at), *current);
}
