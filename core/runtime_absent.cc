// The host flavour: no CUDA device, and a reason. Programs that have the emulated devices link
// core/runtime_emulated.cc before this.
#include "core/runtime.h"

namespace weft::runtime {

int device_count() { return 0; }
const std::string& no_device_reason() {
  static const std::string reason =
      "this is the host flavour; ./weft --flavor cuda builds the CUDA kernels, --device emulated "
      "runs them on an emulated GPU";
  return reason;
}
bool is_emulated() { return false; }

namespace {
[[noreturn]] void absent() { fail("CUDA is not available: {}", no_device_reason()); }
}  // namespace

int current_device() { return 0; }
void set_current_device(int) { absent(); }
void return_to_device(int) { absent(); }
const DeviceLimits& limits(int) { absent(); }
MemoryInfo memory_info(int) { absent(); }
void* allocate(int, size_t) { absent(); }
void deallocate(int, void*) { absent(); }
void* allocate_pinned(size_t) { absent(); }
void deallocate_pinned(void*) { absent(); }
StreamHandle create_stream(int) { absent(); }
void destroy_stream(int, StreamHandle) { absent(); }
void synchronize(int, StreamHandle) { absent(); }
void synchronize(int) { absent(); }
EventHandle create_event(int) { absent(); }
void destroy_event(int, EventHandle) { absent(); }
void record(int, EventHandle, StreamHandle) { absent(); }
void wait(int, StreamHandle, EventHandle) { absent(); }
bool is_done(int, EventHandle) { absent(); }
void synchronize_event(int, EventHandle) { absent(); }
double elapsed_ms(int, EventHandle, EventHandle) { absent(); }
void copy(int, void*, const void*, size_t, StreamHandle) { absent(); }
void copy_peer(int, void*, int, const void*, size_t, StreamHandle) { absent(); }
void set_bytes(int, void*, int, size_t, StreamHandle) { absent(); }
void begin_capture(int, StreamHandle) { absent(); }
GraphHandle end_capture(int, StreamHandle) { absent(); }
bool is_capturing(int, StreamHandle) { absent(); }
void launch_graph(int, GraphHandle, StreamHandle) { absent(); }
void destroy_graph(int, GraphHandle) { absent(); }
void push_range(const char*) {}
void pop_range() {}
void check_launch(int) { absent(); }

}  // namespace weft::runtime
