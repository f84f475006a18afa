#include "kernels/simt/emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>

namespace weft::simt {

constinit thread_local Thread* current = nullptr;
LaunchShape launch_shape;

namespace {

constexpr int kMaxThreadsPerBlock = 1024;
constexpr unsigned kMaxBlocksPerCluster = 16;
// Shared memory that was never written holds NaN in every floating format.
constexpr int kPoison = 0xff;

/// The cluster that runs.
struct Cluster {
  std::vector<Block> blocks;
  std::deque<Thread*> ready;
  int live = 0;
  Fiber host;
  std::string failure;
};

struct State {
  std::mutex mutex;
  Options options;
  std::string kernel;
  const std::function<void()>* body = nullptr;
  Cluster cluster;
  FiberStacks stacks;
  std::vector<char*> arenas;
  uint64_t random = 1;

  uint64_t next_random() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
};

State& state() {
  static State state;
  return state;
}

std::string place(const Site& site) { return fmt::format("{}:{}", site.file_name(), site.line()); }

std::string describe(const Thread& thread) {
  const uint3 b = thread.block->index;
  return fmt::format("thread {} of block ({}, {}, {})", thread.linear, b.x, b.y, b.z);
}

void resume_host(bool thread_ends) {
  Thread* const self = current;
  current = nullptr;
  switch_fiber(self->fiber, state().cluster.host, thread_ends);
}

/// Runs the next thread that can; back to the host when there is none.
void run_next(bool thread_ends = false) {
  State& s = state();
  std::deque<Thread*>& ready = s.cluster.ready;
  if (ready.empty()) {
    resume_host(thread_ends);
    return;
  }
  size_t next = 0;
  if (s.options.order == Order::random) next = s.next_random() % ready.size();
  Thread* const thread = ready[next];
  if (next != 0) ready[next] = ready.front();
  ready.pop_front();
  Thread* const self = current;
  if (thread == self) return;
  current = thread;
  switch_fiber(self->fiber, thread->fiber, thread_ends);
}

void make_ready(std::vector<Thread*>& threads) {
  State& s = state();
  if (s.options.order == Order::reverse) std::reverse(threads.begin(), threads.end());
  for (Thread* thread : threads) {
    thread->waits_for = nullptr;
    s.cluster.ready.push_back(thread);
  }
  threads.clear();
}

void wait(const char* operation, const Site& site) {
  current->waits_for = operation;
  current->site = site;
  run_next();
}

/// Opens barrier 0 when the threads that are left have all arrived: those that exited count.
void release_exited(Block& block) {
  Barrier& barrier = block.barriers[0];
  if (barrier.arrived == 0 || barrier.arrived < block.live) return;
  barrier.arrived = 0;
  make_ready(barrier.waiting);
}

void thread_entry() {
  fiber_started();
  (*state().body)();
  Thread& self = *current;
  self.exited = true;
  self.warp->exited |= 1u << self.lane;
  --self.block->live;
  --state().cluster.live;
  release_exited(*self.block);
  run_next(true);
  __builtin_unreachable();
}

void check_shape(const LaunchShape& shape) {
  const auto count = [](dim3 d) { return uint64_t{d.x} * d.y * d.z; };
  WEFT_CHECK(count(shape.grid) > 0 && shape.grid.y < 65536 && shape.grid.z < 65536 &&
                 shape.grid.x < 1u << 31,
             "{}: a grid of {} x {} x {} blocks cannot be launched", state().kernel, shape.grid.x,
             shape.grid.y, shape.grid.z);
  WEFT_CHECK(
      count(shape.block) > 0 && count(shape.block) <= kMaxThreadsPerBlock && shape.block.z <= 64,
      "{}: a block of {} x {} x {} threads cannot be launched; expected 1 to {}", state().kernel,
      shape.block.x, shape.block.y, shape.block.z, kMaxThreadsPerBlock);
  WEFT_CHECK(count(shape.cluster) > 0 && count(shape.cluster) <= kMaxBlocksPerCluster &&
                 shape.grid.x % shape.cluster.x == 0 && shape.grid.y % shape.cluster.y == 0 &&
                 shape.grid.z % shape.cluster.z == 0,
             "{}: a cluster of {} x {} x {} blocks does not divide the grid", state().kernel,
             shape.cluster.x, shape.cluster.y, shape.cluster.z);
  WEFT_CHECK(shape.dynamic_shared_bytes <= kMaxSharedBytes,
             "{}: {} bytes of dynamic shared memory, of which a block has {}", state().kernel,
             shape.dynamic_shared_bytes, kMaxSharedBytes);
}

void prepare_block(Block& block, uint3 index, char* arena, size_t first_stack) {
  const dim3 d = launch_shape.block;
  const int threads = static_cast<int>(d.x * d.y * d.z);
  block.index = index;
  block.live = threads;
  block.arena = arena;
  block.dynamic_bytes = launch_shape.dynamic_shared_bytes;
  block.shared_bytes = block.dynamic_bytes;
  block.static_arrays.clear();
  std::memset(arena, kPoison, kArenaBytes);
  for (Barrier& barrier : block.barriers) barrier = Barrier{};
  block.threads.assign(threads, Thread{});
  block.warps.assign((threads + kWarpSize - 1) / kWarpSize, Warp{});
  for (int t = 0; t < threads; ++t) {
    Thread& thread = block.threads[t];
    Warp& warp = block.warps[t / kWarpSize];
    const auto u = static_cast<unsigned>(t);
    thread.index = {u % d.x, u / d.x % d.y, u / (d.x * d.y)};
    thread.block = &block;
    thread.warp = &warp;
    thread.linear = t;
    thread.lane = t % kWarpSize;
    if (thread.lane == 0) warp.lanes = &thread;
    warp.block = &block;
    ++warp.size;
    state().stacks.prepare(first_stack + t, thread.fiber, thread_entry);
  }
}

std::string deadlock_message() {
  constexpr int kShown = 4;
  const Cluster& cluster = state().cluster;
  std::string message = fmt::format("deadlock: {} threads wait for ever:", cluster.live);
  int shown = 0;
  const char* last = nullptr;
  unsigned last_line = 0;
  for (const Block& block : cluster.blocks) {
    for (const Thread& thread : block.threads) {
      if (thread.exited || (thread.waits_for == last && thread.site.line() == last_line)) continue;
      last = thread.waits_for;
      last_line = thread.site.line();
      if (++shown > kShown) return message + " ...";
      message +=
          fmt::format(" {} at {} ({});", describe(thread), thread.waits_for, place(thread.site));
    }
  }
  message.pop_back();
  return message;
}

void run_cluster(uint3 first) {
  State& s = state();
  Cluster& cluster = s.cluster;
  const dim3 c = launch_shape.cluster;
  const size_t blocks = size_t{c.x} * c.y * c.z;
  cluster.blocks.resize(blocks);
  cluster.ready.clear();
  cluster.live = 0;
  cluster.failure.clear();
  const size_t threads_per_block =
      size_t{launch_shape.block.x} * launch_shape.block.y * launch_shape.block.z;
  for (size_t b = 0; b < blocks; ++b) {
    const auto u = static_cast<unsigned>(b);
    const uint3 index = {first.x + u % c.x, first.y + u / c.x % c.y, first.z + u / (c.x * c.y)};
    prepare_block(cluster.blocks[b], index, s.arenas[b], b * threads_per_block);
    cluster.live += cluster.blocks[b].live;
  }
  for (Block& block : cluster.blocks) {
    for (Thread& thread : block.threads) cluster.ready.push_back(&thread);
  }
  if (s.options.order == Order::reverse) std::reverse(cluster.ready.begin(), cluster.ready.end());

  // The host's own flow is the fiber that starts the first thread.
  size_t next = 0;
  if (s.options.order == Order::random) next = s.next_random() % cluster.ready.size();
  std::swap(cluster.ready.front(), cluster.ready[next]);
  current = cluster.ready.front();
  cluster.ready.pop_front();
  switch_fiber(cluster.host, current->fiber);
  if (cluster.failure.empty() && cluster.live > 0) cluster.failure = deadlock_message();
  if (!cluster.failure.empty()) throw KernelError(s.kernel + ": " + cluster.failure);
}

void check_barrier(int id, int threads, const Site& site) {
  if (id < 0 || id >= kNamedBarriers || threads % kWarpSize != 0) {
    fail_kernel(fmt::format("named barrier {} for {} threads: expected a barrier below {} and a "
                            "multiple of {} threads",
                            id, threads, kNamedBarriers, kWarpSize),
                site);
  }
}

/// Counts the current thread's arrival; true when that opened the barrier.
bool arrive(int id, int threads, const Site& site) {
  Block& block = *current->block;
  Barrier& barrier = block.barriers[id];
  const int expected = threads == 0 ? block.live : threads;
  if (barrier.arrived > 0 && threads != 0 && barrier.expected != expected) {
    fail_kernel(fmt::format("named barrier {}: {} says that {} threads take part, others said {}",
                            id, describe(*current), expected, barrier.expected),
                site);
  }
  barrier.expected = expected;
  if (++barrier.arrived < expected) return false;
  barrier.arrived = 0;
  make_ready(barrier.waiting);
  return true;
}

}  // namespace

Options& options() { return state().options; }

void run_grid(const char* kernel, const LaunchShape& shape, const std::function<void()>& body) {
  WEFT_ASSERT(current == nullptr);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.kernel = kernel;
  check_shape(shape);
  launch_shape = shape;
  s.body = &body;
  s.random = s.options.seed * 0x9E3779B97F4A7C15u | 1;
  const dim3 c = shape.cluster;
  while (s.arenas.size() < size_t{c.x} * c.y * c.z) {
    void* arena = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WEFT_CHECK(arena != MAP_FAILED, "the SIMT emulator found no memory for shared memory");
    s.arenas.push_back(static_cast<char*>(arena));
  }
  const dim3 clusters = {shape.grid.x / c.x, shape.grid.y / c.y, shape.grid.z / c.z};
  const uint64_t count = uint64_t{clusters.x} * clusters.y * clusters.z;
  for (uint64_t step = 0; step < count; ++step) {
    const uint64_t i = s.options.order == Order::reverse ? count - 1 - step : step;
    run_cluster({static_cast<unsigned>(i % clusters.x) * c.x,
                 static_cast<unsigned>(i / clusters.x % clusters.y) * c.y,
                 static_cast<unsigned>(i / (uint64_t{clusters.x} * clusters.y)) * c.z});
  }
}

void fail_kernel(const std::string& message, const Site& site) {
  Cluster& cluster = state().cluster;
  cluster.failure = fmt::format("{}: {} ({})", place(site), message, describe(*current));
  resume_host(true);
  __builtin_unreachable();
}

void yield() {
  state().cluster.ready.push_back(current);
  run_next();
}

void barrier_sync(int id, int threads, const Site& site) {
  check_barrier(id, threads, site);
  const char* const operation = threads == 0 ? "__syncthreads" : "bar.sync";
  if (!arrive(id, threads, site)) {
    current->block->barriers[id].waiting.push_back(current);
    wait(operation, site);
  }
}

void barrier_arrive(int id, int threads, const Site& site) {
  check_barrier(id, threads, site);
  arrive(id, threads, site);
}

void meet(uint32_t mask, const char* operation, const Site& site, WarpFunction run) {
  Warp& warp = *current->warp;
  const uint32_t self = 1u << current->lane;
  mask &= warp.existing();
  if (!(mask & self)) {
    fail_kernel(
        fmt::format("{}: lane {} is not in its own mask {:08x}", operation, current->lane, mask),
        site);
  }
  if (mask & warp.exited) {
    fail_kernel(fmt::format("{}: the mask {:08x} names lanes {:08x}, which have exited", operation,
                            mask, mask & warp.exited),
                site);
  }
  auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                              [&](const Meeting& m) { return (m.mask & mask) != 0; });
  if (meeting == warp.meetings.end()) {
    warp.meetings.push_back({mask, 0, operation, site});
    meeting = warp.meetings.end() - 1;
  }
  if (meeting->mask != mask || std::strcmp(meeting->operation, operation) != 0) {
    fail_kernel(fmt::format("divergent collective: lane {} is at {} with mask {:08x}, lanes {:08x} "
                            "are at {} with mask {:08x} ({})",
                            current->lane, operation, mask, meeting->arrived, meeting->operation,
                            meeting->mask, place(meeting->site)),
                site);
  }
  meeting->arrived |= self;
  if (meeting->arrived != mask) {
    wait(operation, site);
    return;
  }
  warp.meetings.erase(meeting);
  run(warp, mask);
  std::vector<Thread*> others;
  for (int lane = 0; lane < warp.size; ++lane) {
    if ((mask & ~self) >> lane & 1u) others.push_back(&warp.lanes[lane]);
  }
  make_ready(others);
}

void* static_shared(const void* key, size_t bytes, size_t alignment) {
  Block& block = *current->block;
  for (const Block::StaticArray& array : block.static_arrays) {
    if (array.key == key) return block.arena + array.offset;
  }
  const size_t offset = (block.shared_bytes + alignment - 1) / alignment * alignment;
  block.shared_bytes = offset + bytes;
  if (block.shared_bytes > kMaxSharedBytes) {
    fail_kernel(fmt::format("{} bytes of shared memory, of which a block has {}",
                            block.shared_bytes, kMaxSharedBytes),
                Site::current());
  }
  block.static_arrays.push_back({key, offset});
  return block.arena + offset;
}

void* dynamic_shared() { return current->block->arena; }

}  // namespace weft::simt
