// AddressSanitizer's functions where the program was linked with it, else null: for code that lays
// out memory itself, without being compiled twice.
//
//   if (sanitizer::poison) sanitizer::poison(guard, bytes);
#pragma once

#include <cstddef>

extern "C" {
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* begin, size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin, size_t bytes);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                  size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom,
                                                   size_t* old_bytes);
}

namespace weft::sanitizer {

inline void (*const poison)(const volatile void*, size_t) = &__asan_poison_memory_region;
inline void (*const unpoison)(const volatile void*, size_t) = &__asan_unpoison_memory_region;

/// Whether the program was linked with AddressSanitizer.
inline bool is_linked() { return poison != nullptr; }

}  // namespace weft::sanitizer
