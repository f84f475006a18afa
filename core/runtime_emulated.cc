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
  bool capturing = false;
  Work captured;
};

using EmulatedEvent = std::chrono::steady_clock::time_point;

EmulatedStream* stream_of(runtime::StreamHandle stream) {
  return static_cast<EmulatedStream*>(stream);
}

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

void submit(runtime::StreamHandle stream, std::function<void()> work) {
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

void* allocate_pinned(size_t bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
void deallocate_pinned(void* block) { std::free(block); }

StreamHandle create_stream(int) { return new EmulatedStream; }
void destroy_stream(int, StreamHandle stream) { delete stream_of(stream); }
void synchronize(int, StreamHandle stream) {
  WEFT_CHECK(!stream_of(stream)->capturing, "a stream cannot be waited for while it is captured");
}
void synchronize(int) {}

EventHandle create_event(int) { return new EmulatedEvent; }
void destroy_event(int, EventHandle event) { delete static_cast<EmulatedEvent*>(event); }
void record(int, EventHandle event, StreamHandle stream) {
  emulated::submit(
      stream, [event] { *static_cast<EmulatedEvent*>(event) = std::chrono::steady_clock::now(); });
}
void wait(int, StreamHandle, EventHandle) {}
bool is_done(int, EventHandle) { return true; }
void synchronize_event(int, EventHandle) {}
double elapsed_ms(int, EventHandle begin, EventHandle end) {
  const auto time = *static_cast<EmulatedEvent*>(end) - *static_cast<EmulatedEvent*>(begin);
  return std::chrono::duration<double, std::milli>(time).count();
}

void copy(int, void* to, const void* from, size_t bytes, StreamHandle stream) {
  emulated::submit(stream, [=] {
    std::memmove(to, from, bytes);
    note_written(to, from, bytes);
  });
}
void copy_peer(int device, void* to, int, const void* from, size_t bytes, StreamHandle stream) {
  copy(device, to, from, bytes, stream);
}
void set_bytes(int, void* to, int value, size_t bytes, StreamHandle stream) {
  emulated::submit(stream, [=] {
    std::memset(to, value, bytes);
    note_written(to, nullptr, bytes);
  });
}

void begin_capture(int, StreamHandle stream) {
  WEFT_CHECK(!stream_of(stream)->capturing, "the stream is being captured already");
  stream_of(stream)->capturing = true;
}
GraphHandle end_capture(int, StreamHandle stream) {
  EmulatedStream& s = *stream_of(stream);
  WEFT_CHECK(s.capturing, "the stream is not being captured");
  s.capturing = false;
  return new Work(std::exchange(s.captured, {}));
}
bool is_capturing(int, StreamHandle stream) { return stream_of(stream)->capturing; }
void launch_graph(int, GraphHandle graph, StreamHandle stream) {
  for (const auto& work : *static_cast<Work*>(graph)) emulated::submit(stream, work);
}
void destroy_graph(int, GraphHandle graph) { delete static_cast<Work*>(graph); }

void push_range(const char*) {}
void pop_range() {}
void check_launch(int) {}

}  // namespace runtime
}  // namespace weft
