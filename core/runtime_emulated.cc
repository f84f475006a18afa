// Two emulated CUDA devices in this process's memory (core/emulated.h), where a program links them.
// Streams run their work as it is submitted, events are done when they are recorded.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/emulated.h"
#include "core/sanitizer.h"

namespace weft {
namespace {

constexpr int kDevices = 2;
constexpr size_t kMemory = size_t{4} << 30;  // of each device
constexpr size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xA5, kFresh = 0xFF;

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, emulated::Block> blocks;  // by first address
  std::atomic<uint64_t> generation{0};
  size_t used[kDevices] = {};
};

Memory& memory() {
  static auto& the_memory = *new Memory;
  return the_memory;
}

using Work = std::vector<std::function<void()>>;

struct EmulatedStream {
  int device;
  bool capturing = false;
  Work captured = {};
};

struct EmulatedEvent {
  int device;
  std::chrono::steady_clock::time_point time = {};
};

thread_local int the_current_device = 0;

/// The stream that this thread captures, and the first call that CUDA forbids meanwhile, which
/// leaves a capture without a graph. As cudaStreamCaptureModeThreadLocal has it.
thread_local EmulatedStream* the_captured_stream = nullptr;
thread_local const char* the_forbidden_call = nullptr;
std::atomic<int> captures[kDevices];  // of all threads that go on

/// Calls that may throw do so, too.
void forbid_in_capture(const char* call) {
  if (!the_captured_stream) return;
  if (!the_forbidden_call) the_forbidden_call = call;
}
void refuse_in_capture(const char* call) {
  forbid_in_capture(call);
  WEFT_CHECK(!the_captured_stream, "{} is not allowed while this thread captures a graph", call);
}

/// Shared memory that a block may ask for: CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability".
constexpr emulated::Gpu gpu_of(std::string_view name, int compute_capability, size_t shared_kib) {
  return {name, {compute_capability, 2, shared_kib << 10}};
}
constexpr emulated::Gpu kGpus[] = {gpu_of("h100", 90, 227),  gpu_of("h200", 90, 227),
                                   gpu_of("b200", 100, 227), gpu_of("a100", 80, 163),
                                   gpu_of("a10", 86, 99),    gpu_of("4090", 89, 99),
                                   gpu_of("5090", 120, 99)};

const emulated::Gpu& find_gpu(std::string_view name, const char* asked_by) {
  std::string names;
  for (const emulated::Gpu& gpu : kGpus) {
    if (gpu.name == name) return gpu;
    names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  }
  WEFT_FAIL("{}: no GPU called \"{}\" can be emulated; expected {}", asked_by, name, names);
}

const emulated::Gpu*& the_gpu() {
  static const emulated::Gpu* gpu = [] {
    const char* name = std::getenv("WEFT_EMULATED_GPU");
    return name ? &find_gpu(name, "WEFT_EMULATED_GPU") : &kGpus[0];
  }();
  return gpu;
}

EmulatedStream* stream_of(runtime::StreamHandle stream) {
  return static_cast<EmulatedStream*>(stream);
}
EmulatedEvent* event_of(runtime::EventHandle event) { return static_cast<EmulatedEvent*>(event); }

/// Bytes of device memory become what `from` says they are; anything from the host is written.
void note_written(const void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const auto target = emulated::block_of(to);
  if (!target) return;
  const auto source = from ? emulated::block_of(from) : std::nullopt;
  const auto notes = [](const emulated::Block& block, const void* at) {
    return block.is_written + (static_cast<const unsigned char*>(at) - block.begin);
  };
  if (source) {
    std::memmove(notes(*target, to), notes(*source, from), bytes);
  } else {
    std::memset(notes(*target, to), true, bytes);
  }
}

}  // namespace

namespace emulated {

const Gpu& gpu() { return *the_gpu(); }
void use_gpu(std::string_view name) { the_gpu() = &find_gpu(name, "--gpu"); }

std::optional<Block> block_of(const void* address) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto after = m.blocks.upper_bound(at);
  if (after == m.blocks.begin()) return std::nullopt;
  const Block& block = std::prev(after)->second;
  if (at - reinterpret_cast<uintptr_t>(block.begin) >= block.bytes) return std::nullopt;
  return block;
}

void forget_unwritten() {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  for (const auto& [begin, block] : m.blocks) std::memset(block.is_written, true, block.bytes);
}

uint64_t block_generation() { return memory().generation.load(std::memory_order_relaxed); }

// CUDA refuses a launch into a stream of another device than the current one.
void submit(runtime::StreamHandle stream, std::function<void()> work) {
  WEFT_CHECK(!stream || stream_of(stream)->device == the_current_device,
             "work for a stream of cuda:{} was submitted while cuda:{} is current",
             stream_of(stream)->device, the_current_device);
  if (stream && stream_of(stream)->capturing) {
    stream_of(stream)->captured.push_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace emulated

namespace runtime {

int device_count() { return kDevices; }
const std::string& no_device_reason() {
  static const std::string none;
  return none;
}
bool is_emulated() { return true; }
int current_device() { return the_current_device; }
void set_current_device(int device) { the_current_device = device; }
void return_to_device(int device) { the_current_device = device; }

const DeviceLimits& limits(int) { return the_gpu()->limits; }

MemoryInfo memory_info(int device) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  return {kMemory - m.used[device], kMemory};
}

void* allocate(int device, size_t bytes) {
  Memory& m = memory();
  {
    std::lock_guard lock(m.mutex);
    if (bytes > kMemory - m.used[device]) return nullptr;
  }
  const size_t total = (bytes + 2 * kGuard + kGuard - 1) / kGuard * kGuard;
  auto* raw = static_cast<unsigned char*>(std::aligned_alloc(kGuard, total));
  auto* is_written = static_cast<bool*>(std::calloc(bytes + 1, sizeof(bool)));
  if (!raw || !is_written) {
    std::free(raw);
    std::free(is_written);
    return nullptr;
  }
  std::memset(raw, kGuardByte, kGuard);
  std::memset(raw + kGuard, kFresh, bytes);
  std::memset(raw + kGuard + bytes, kGuardByte, total - kGuard - bytes);
  if (sanitizer::poison) {
    sanitizer::poison(raw, kGuard);
    sanitizer::poison(raw + kGuard + bytes, total - kGuard - bytes);
  }
  unsigned char* begin = raw + kGuard;
  std::lock_guard lock(m.mutex);
  m.blocks[reinterpret_cast<uintptr_t>(begin)] = {begin, bytes, device, is_written};
  m.used[device] += bytes;
  ++m.generation;
  return begin;
}

void deallocate(int device, void* block) {
  forbid_in_capture("cudaFree");
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  const auto entry = m.blocks.find(reinterpret_cast<uintptr_t>(block));
  WEFT_ASSERT(entry != m.blocks.end() && entry->second.device == device);
  const size_t bytes = entry->second.bytes;
  unsigned char* raw = static_cast<unsigned char*>(block) - kGuard;
  if (sanitizer::unpoison) sanitizer::unpoison(raw, bytes + 2 * kGuard);
  const auto is_guard = [](unsigned char byte) { return byte == kGuardByte; };
  // Nothing may throw where tensors die: a damaged guard ends the program.
  if (!std::all_of(raw, raw + kGuard, is_guard) ||
      !std::all_of(raw + kGuard + bytes, raw + 2 * kGuard + bytes, is_guard)) {
    fmt::print(stderr, "emulated cuda:{}: something wrote outside a block of {} bytes\n", device,
               bytes);
    std::abort();
  }
  m.used[device] -= bytes;
  std::free(entry->second.is_written);
  m.blocks.erase(entry);
  ++m.generation;
  std::free(raw);
}

void* allocate_pinned(size_t bytes) {
  refuse_in_capture("cudaHostAlloc");
  return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
}
void deallocate_pinned(void* block) {
  forbid_in_capture("cudaFreeHost");
  std::free(block);
}

StreamHandle create_stream(int device) { return new EmulatedStream{device}; }
void destroy_stream(int, StreamHandle stream) { delete stream_of(stream); }
void synchronize(int, StreamHandle stream) {
  WEFT_CHECK(!stream_of(stream)->capturing, "a stream cannot be waited for while it is captured");
}
void synchronize(int device) {
  refuse_in_capture("cudaDeviceSynchronize");
  WEFT_CHECK(captures[device] == 0,
             "cudaDeviceSynchronize is not possible on cuda:{} while a graph is captured there",
             device);
}

EventHandle create_event(int device) { return new EmulatedEvent{device}; }
void destroy_event(int, EventHandle event) { delete event_of(event); }
void record(int device, EventHandle event, StreamHandle stream) {
  const DeviceGuard guard(device);
  WEFT_CHECK(event_of(event)->device == device, "an event of cuda:{} was recorded on cuda:{}",
             event_of(event)->device, device);
  emulated::submit(stream, [event] { event_of(event)->time = std::chrono::steady_clock::now(); });
}
void wait(int, StreamHandle, EventHandle) {}
bool is_done(int, EventHandle) {
  refuse_in_capture("cudaEventQuery");
  return true;
}
void synchronize_event(int, EventHandle) { refuse_in_capture("cudaEventSynchronize"); }
double elapsed_ms(int, EventHandle begin, EventHandle end) {
  const auto time = event_of(end)->time - event_of(begin)->time;
  return std::chrono::duration<double, std::milli>(time).count();
}

void copy(int device, void* to, const void* from, size_t bytes, StreamHandle stream) {
  const DeviceGuard guard(device);
  emulated::submit(stream, [=] {
    std::memmove(to, from, bytes);
    note_written(to, from, bytes);
  });
}
void copy_peer(int device, void* to, int, const void* from, size_t bytes, StreamHandle stream) {
  copy(device, to, from, bytes, stream);
}
void set_bytes(int device, void* to, int value, size_t bytes, StreamHandle stream) {
  const DeviceGuard guard(device);
  emulated::submit(stream, [=] {
    std::memset(to, value, bytes);
    note_written(to, nullptr, bytes);
  });
}

void begin_capture(int, StreamHandle stream) {
  WEFT_CHECK(!stream_of(stream)->capturing, "the stream is being captured already");
  WEFT_CHECK(!the_captured_stream, "this thread captures another stream already");
  stream_of(stream)->capturing = true;
  ++captures[stream_of(stream)->device];
  the_captured_stream = stream_of(stream);
  the_forbidden_call = nullptr;
}
GraphHandle end_capture(int, StreamHandle stream) {
  EmulatedStream& s = *stream_of(stream);
  WEFT_CHECK(s.capturing, "the stream is not being captured");
  s.capturing = false;
  --captures[s.device];
  the_captured_stream = nullptr;
  Work captured = std::exchange(s.captured, {});
  WEFT_CHECK(!the_forbidden_call,
             "the capture has no graph: {} was called, which is not allowed in between",
             the_forbidden_call);
  return new Work(std::move(captured));
}
bool is_capturing(int, StreamHandle stream) { return stream_of(stream)->capturing; }
void launch_graph(int device, GraphHandle graph, StreamHandle stream) {
  const DeviceGuard guard(device);
  for (const auto& work : *static_cast<Work*>(graph)) emulated::submit(stream, work);
}
void destroy_graph(int, GraphHandle graph) { delete static_cast<Work*>(graph); }

void push_range(const char*) {}
void pop_range() {}
void check_launch(int) {}

}  // namespace runtime
}  // namespace weft
