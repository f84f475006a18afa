// The cuda flavour: the CUDA runtime, linked statically.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "core/runtime.h"

namespace weft::runtime {
namespace {

void check(cudaError_t error, const char* call, int device) {
  if (error == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // an error that is not sticky must not be met again
  fail("{} failed on cuda:{}: {} ({})", call, device, cudaGetErrorString(error),
       cudaGetErrorName(error));
}

/// Whether this process has a context on the device.
bool is_in_use(int device) {
  // Of the driver, so that the program links without it.
  static const auto state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000,
                                     cudaEnableDefault, &result);
    return reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function);
  }();
  unsigned flags = 0;
  int is_active = 0;
  return !state || (state(device, &flags, &is_active) == CUDA_SUCCESS && is_active);
}

/// A call of the runtime on a device; its name stands in the Error.
#define WEFT_CUDA(device, function, ...)             \
  do {                                               \
    const DeviceGuard guard(device);                 \
    check(function(__VA_ARGS__), #function, device); \
  } while (false)

/// The same for what destructors call, which must not throw: an error that stays shows at the next
/// call that may.
#define WEFT_CUDA_QUIETLY(device, function, ...)                     \
  do {                                                               \
    int previous = device;                                           \
    cudaGetDevice(&previous);                                        \
    if (cudaSetDevice(device) == cudaSuccess) function(__VA_ARGS__); \
    if (is_in_use(previous)) cudaSetDevice(previous);                \
    cudaGetLastError();                                              \
  } while (false)

cudaStream_t stream_of(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(EventHandle event) { return static_cast<cudaEvent_t>(event); }

struct Devices {
  int count = 0;
  std::string reason;

  Devices() {
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return;
    count = 0;
    cudaGetLastError();
    DeviceQuery query{.toolkit = CUDART_VERSION,
                      .refused_as_old = error == cudaErrorInsufficientDriver};
    cudaDriverGetVersion(&query.driver);
    if (error != cudaSuccess && error != cudaErrorNoDevice) query.error = cudaGetErrorString(error);
    reason = explain_no_device(query);
  }
};

const Devices& devices() {
  static const Devices found;
  return found;
}

/// Captures of all threads that go on on a device.
std::atomic<int>& captures(int device) {
  static std::vector<std::atomic<int>> all(devices().count);
  return all[device];
}

/// What allocate_pinned() has given out.
struct PinnedBlocks {
  std::mutex mutex;
  std::map<const char*, size_t> bytes;  // by first address
};
PinnedBlocks& pinned_blocks() {
  static auto& all = *new PinnedBlocks;
  return all;
}

/// Whether this is pinned memory of somebody else's, as DLPack and NumPy bring it. Its owner does
/// not know of a copy that goes on.
bool is_pinned_elsewhere(const void* memory) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (attributes.type != cudaMemoryTypeHost) return false;
  const char* const address = static_cast<const char*>(memory);
  PinnedBlocks& ours = pinned_blocks();
  const std::lock_guard lock(ours.mutex);
  const auto after = ours.bytes.upper_bound(address);
  return after == ours.bytes.begin() ||
         address >= std::prev(after)->first + std::prev(after)->second;
}

}  // namespace

int device_count() { return devices().count; }
const std::string& no_device_reason() { return devices().reason; }
bool is_emulated() { return false; }

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice", 0);
  return device;
}
void set_current_device(int device) { check(cudaSetDevice(device), "cudaSetDevice", device); }
void return_to_device(int device) {
  if (is_in_use(device)) set_current_device(device);
}

const DeviceLimits& limits(int device) {
  static const std::vector<DeviceLimits> all = [] {
    std::vector<DeviceLimits> all(device_count());
    for (int device = 0; device < device_count(); ++device) {
      const auto attribute = [&](cudaDeviceAttr name) {
        int value = 0;
        check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute", device);
        return value;
      };
      all[device] = {.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                                           attribute(cudaDevAttrComputeCapabilityMinor),
                     .multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
                     .shared_memory_per_block =
                         static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))};
    }
    return all;
  }();
  return all[device];
}

MemoryInfo memory_info(int device) {
  MemoryInfo info;
  WEFT_CUDA(device, cudaMemGetInfo, &info.free, &info.total);
  return info;
}

void* allocate(int device, size_t bytes) {
  const DeviceGuard guard(device);
  // Allocating is legal while another stream is captured, if one says so.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, bytes);
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(error, "cudaMalloc", device);
  return block;
}

void deallocate(int device, void* block) { WEFT_CUDA_QUIETLY(device, cudaFree, block); }

void* allocate_pinned(size_t bytes) {
  // By a context that there is, for it serves all of them.
  int device = current_device();
  for (int other = 0; !is_in_use(device) && other < device_count(); ++other) {
    if (is_in_use(other)) device = other;
  }
  const DeviceGuard guard(device);
  void* block = nullptr;
  check(cudaHostAlloc(&block, bytes, cudaHostAllocPortable), "cudaHostAlloc", 0);
  const std::lock_guard lock(pinned_blocks().mutex);
  pinned_blocks().bytes[static_cast<char*>(block)] = bytes;
  return block;
}
void deallocate_pinned(void* block) {
  {
    const std::lock_guard lock(pinned_blocks().mutex);
    pinned_blocks().bytes.erase(static_cast<char*>(block));
  }
  cudaFreeHost(block);
  cudaGetLastError();
}

StreamHandle create_stream(int device) {
  cudaStream_t stream = nullptr;
  WEFT_CUDA(device, cudaStreamCreateWithFlags, &stream, cudaStreamNonBlocking);
  return stream;
}
void destroy_stream(int device, StreamHandle stream) {
  WEFT_CUDA_QUIETLY(device, cudaStreamDestroy, stream_of(stream));
}
void synchronize(int device, StreamHandle stream) {
  WEFT_CUDA(device, cudaStreamSynchronize, stream_of(stream));
}
void synchronize(int device) {
  // CUDA would refuse it, and spoil the capture of whichever thread is at it.
  WEFT_CHECK(captures(device) == 0,
             "cudaDeviceSynchronize is not possible on cuda:{} while a graph is captured there",
             device);
  WEFT_CUDA(device, cudaDeviceSynchronize);
}

EventHandle create_event(int device) {
  cudaEvent_t event = nullptr;
  WEFT_CUDA(device, cudaEventCreate, &event);
  return event;
}
void destroy_event(int device, EventHandle event) {
  WEFT_CUDA_QUIETLY(device, cudaEventDestroy, event_of(event));
}
void record(int device, EventHandle event, StreamHandle stream) {
  WEFT_CUDA(device, cudaEventRecord, event_of(event), stream_of(stream));
}
void wait(int device, StreamHandle stream, EventHandle event) {
  WEFT_CUDA(device, cudaStreamWaitEvent, stream_of(stream), event_of(event), 0);
}
bool is_done(int device, EventHandle event) {
  const DeviceGuard guard(device);
  const cudaError_t error = cudaEventQuery(event_of(event));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaEventQuery", device);
  return true;
}
void synchronize_event(int device, EventHandle event) {
  WEFT_CUDA(device, cudaEventSynchronize, event_of(event));
}
double elapsed_ms(int device, EventHandle begin, EventHandle end) {
  float milliseconds = 0;
  WEFT_CUDA(device, cudaEventElapsedTime, &milliseconds, event_of(begin), event_of(end));
  return milliseconds;
}

void copy(int device, void* to, const void* from, size_t bytes, StreamHandle stream) {
  WEFT_CUDA(device, cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, stream_of(stream));
  if (is_pinned_elsewhere(from)) synchronize(device, stream);
}
void copy_peer(int to_device, void* to, int from_device, const void* from, size_t bytes,
               StreamHandle stream) {
  WEFT_CUDA(to_device, cudaMemcpyPeerAsync, to, to_device, from, from_device, bytes,
            stream_of(stream));
}
void set_bytes(int device, void* to, int value, size_t bytes, StreamHandle stream) {
  WEFT_CUDA(device, cudaMemsetAsync, to, value, bytes, stream_of(stream));
}

void begin_capture(int device, StreamHandle stream) {
  WEFT_CUDA(device, cudaStreamBeginCapture, stream_of(stream), cudaStreamCaptureModeThreadLocal);
  ++captures(device);
}
GraphHandle end_capture(int device, StreamHandle stream) {
  const DeviceGuard guard(device);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_of(stream), &graph);
  --captures(device);  // however it has ended
  check(ended, "cudaStreamEndCapture", device);
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate", device);
  return executable;
}
bool is_capturing(int device, StreamHandle stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  WEFT_CUDA(device, cudaStreamIsCapturing, stream_of(stream), &status);
  return status != cudaStreamCaptureStatusNone;
}
void launch_graph(int device, GraphHandle graph, StreamHandle stream) {
  WEFT_CUDA(device, cudaGraphLaunch, static_cast<cudaGraphExec_t>(graph), stream_of(stream));
}
void destroy_graph(int device, GraphHandle graph) {
  WEFT_CUDA_QUIETLY(device, cudaGraphExecDestroy, static_cast<cudaGraphExec_t>(graph));
}

void push_range(const char* name) { nvtxRangePushA(name); }
void pop_range() { nvtxRangePop(); }

void check_launch(int device) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) [[likely]]
    return;
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion) {
    cudaDeviceProp properties = {};
    cudaGetDeviceProperties(&properties, device);
    fail(
        "cuda:{} is a {} of compute capability {}.{}, for which no kernel was built; this program "
        "serves 8.0 and later. Use --device cpu",
        device, properties.name, properties.major, properties.minor);
  }
  check(error, "a kernel launch", device);
}

}  // namespace weft::runtime
