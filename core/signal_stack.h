// A stack of its own for a thread's signal handlers.
#pragma once

namespace weft {

/// Gives this thread an alternate signal stack, unless it has one, for handlers with SA_ONSTACK
/// (sigaltstack(2)). Handlers of a program that multiplies matrices need it: below AVX-512 oneDNN's
/// f32 products keep the stack pointer in a buffer on the heap where K is large, and a signal that
/// comes meanwhile would be delivered onto what lies in front of that buffer. Throws Error when
/// there is no memory for it.
void ensure_signal_stack();

}  // namespace weft
