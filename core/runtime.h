// What core asks of CUDA: memory, streams, events, copies and graphs. One implementation is linked,
// by flavour: runtime_cuda.cc on the CUDA runtime, runtime_emulated.cc in this process's memory,
// runtime_absent.cc, which has no devices and says so.
//
// Programs use core/stream.h, core/transfer.h and core/allocator.h instead. Every function throws
// Error naming the failed call and CUDA's reason; none asks whether `device` exists:
// require_device() did.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "core/device.h"

namespace weft {

/// Throws Error when tensors cannot live on the device: which flavour, driver or index is missing,
/// and what to do about it.
void require_device(Device device);

namespace runtime {

using StreamHandle = void*;  // cudaStream_t
using EventHandle = void*;   // cudaEvent_t
using GraphHandle = void*;   // cudaGraphExec_t

/// CUDA devices that the driver shows. Safe to ask anywhere; 0 comes with a reason.
int device_count();
/// Why there is no device; empty when there is one.
const std::string& no_device_reason();
/// What CUDA says when it is asked for devices and has none. Versions as CUDA writes them: 13000.
struct DeviceQuery {
  int driver = 0;               // the newest CUDA that the driver serves; 0 without a driver
  int toolkit = 0;              // that the program was built with
  bool refused_as_old = false;  // cudaErrorInsufficientDriver
  std::string error = {};       // any other but cudaErrorNoDevice
};
/// The reason, and what to do about it.
std::string explain_no_device(const DeviceQuery& query);
/// True where kernels run in the host's emulator: correct, and thousands of times slower.
bool is_emulated();

/// The device that this thread's calls of CUDA go to where they name none: launches, libraries'
/// handles, events' streams.
int current_device();
/// Throws Error when the device cannot be made the current one.
void set_current_device(int device);
/// The same where this process works on the device already. To make another one current would take
/// half a gigabyte of it for a context that nobody uses.
void return_to_device(int device);

/// Makes a device this thread's current one while it lives, and then the previous one where that
/// was in use. The functions below do so themselves.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : previous_(current_device()), changed_(previous_ != device) {
    if (changed_) set_current_device(device);
  }
  ~DeviceGuard() {
    try {
      if (changed_) return_to_device(previous_);
    } catch (const std::exception&) {
      // A device that has failed: the next call that may throw says why.
    }
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_;
  bool changed_;
};

/// What kernels must know of a device.
struct DeviceLimits {
  int compute_capability = 0;  // 10 * major + minor: 80 for an A100, 90 for an H100
  int multiprocessors = 0;
  size_t shared_memory_per_block = 0;  // bytes that a block may ask for
};
const DeviceLimits& limits(int device);

struct MemoryInfo {
  size_t free = 0, total = 0;  // bytes
};
MemoryInfo memory_info(int device);
/// nullptr when the device has no more. Aligned to 256 bytes.
void* allocate(int device, size_t bytes);
void deallocate(int device, void* block);
/// Host memory that the device copies from and to without a staging copy.
void* allocate_pinned(size_t bytes);
void deallocate_pinned(void* block);

StreamHandle create_stream(int device);
void destroy_stream(int device, StreamHandle stream);
void synchronize(int device, StreamHandle stream);
void synchronize(int device);

EventHandle create_event(int device);
void destroy_event(int device, EventHandle event);
void record(int device, EventHandle event, StreamHandle stream);
/// Work submitted to `stream` from now on waits for the event.
void wait(int device, StreamHandle stream, EventHandle event);
bool is_done(int device, EventHandle event);
void synchronize_event(int device, EventHandle event);
/// Milliseconds between two recorded and finished events.
double elapsed_ms(int device, EventHandle begin, EventHandle end);

/// Between host and device or within a device, in the order of the stream. Pageable host memory may
/// be reused on return; pinned memory only once the copy is done.
void copy(int device, void* to, const void* from, size_t bytes, StreamHandle stream);
/// Between two devices, ordered by the receiver's stream.
void copy_peer(int to_device, void* to, int from_device, const void* from, size_t bytes,
               StreamHandle stream);
void set_bytes(int device, void* to, int value, size_t bytes, StreamHandle stream);

/// Work submitted to the stream between begin and end is recorded instead of run.
void begin_capture(int device, StreamHandle stream);
GraphHandle end_capture(int device, StreamHandle stream);
bool is_capturing(int device, StreamHandle stream);
void launch_graph(int device, GraphHandle graph, StreamHandle stream);
void destroy_graph(int device, GraphHandle graph);

/// Names what follows in a profiler's timeline, until pop_range().
void push_range(const char* name);
void pop_range();
/// Throws Error if a launch since the last check was refused: a bad configuration, an architecture
/// that was not built. Does not wait.
void check_launch(int device);

}  // namespace runtime
}  // namespace weft
