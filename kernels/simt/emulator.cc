#include "kernels/simt/emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/emulated.h"
#include "kernels/simt/tensor_core.h"
#include "kernels/simt/watch.h"

namespace weft::simt {

constinit thread_local Thread* current = nullptr;
LaunchShape launch_shape;

namespace {

// Shared memory that was never written holds NaN in every floating format.
constexpr int kPoison = 0xff;
constexpr size_t kMaxFindings = 8;
// Looked for at every barrier, by its address.
constexpr char kSyncthreads[] = "__syncthreads";
// Clocks have 32 bits: beyond this the shadow is forgotten and they start anew.
constexpr Clock kLastClock = 1u << 31;

void resume_host(bool thread_ends) {
  Thread* const self = current;
  current = nullptr;
  switch_fiber(self->fiber, state().host, thread_ends);
}

/// Takes the thread whose turn it is from those that can run.
Thread* next_ready() {
  State& s = state();
  if (s.options.order == Order::kRandom) {
    std::swap(s.ready.front(), s.ready[s.next_random() % s.ready.size()]);
  }
  Thread* const thread = s.ready.front();
  s.ready.pop_front();
  return thread;
}

/// Runs the next thread that can; back to the host when there is none.
void run_next(bool thread_ends = false) {
  if (state().ready.empty()) return resume_host(thread_ends);
  Thread* const thread = next_ready();
  Thread* const self = current;
  if (thread == self) return;
  current = thread;
  switch_fiber(self->fiber, thread->fiber, thread_ends);
}

/// Lets the threads that wait at a barrier go on, with what all who arrived knew.
void open_barrier(Barrier& barrier) {
  barrier.arrived = 0;
  if (const KnowledgePtr known = barrier.release.take()) {
    for (Thread* thread : barrier.waiting) learn(*thread, known);
    learn(*current, known);
  }
  make_ready(barrier.waiting);
}

/// Opens barrier 0 when the threads that are left have all arrived: those that exited count.
void release_exited(Block& block) {
  Barrier& barrier = block.barriers[0];
  if (barrier.arrived > 0 && barrier.arrived >= block.live) open_barrier(barrier);
}

void thread_entry() {
  fiber_started();
  state().body(state().context);
  Thread& self = *current;
  finish_copies(self);
  self.exited = true;
  self.warp->exited |= 1u << self.lane;
  --self.block->live;
  --state().live;
  if (state().watches()) {
    self.block->barriers[0].release.add(self.known, self.agent, self.clock);
    self.block->exits.add(self.known, self.agent, self.clock);
  }
  release_exited(*self.block);
  open_complete_cluster_barrier();
  if (self.block->live == 0) finish_shared(*self.block);
  run_next(true);
  __builtin_unreachable();
}

size_t max_shared_bytes() { return emulated::gpu().limits.shared_memory_per_block; }

void check_shape(const LaunchShape& shape) {
  const std::string& kernel = state().kernel;
  const auto [grid, block, cluster, shared_bytes] = shape;
  const auto count = [](dim3 d) { return uint64_t{d.x} * d.y * d.z; };
  WEFT_CHECK(count(grid) > 0 && grid.x < 1u << 31 && grid.y < 1u << 16 && grid.z < 1u << 16,
             "{}: a grid of {} x {} x {} blocks cannot be launched", kernel, grid.x, grid.y,
             grid.z);
  WEFT_CHECK(count(block) > 0 && count(block) <= kMaxThreadsPerBlock && block.z <= 64,
             "{}: a block of {} x {} x {} threads cannot be launched; expected 1 to {}", kernel,
             block.x, block.y, block.z, kMaxThreadsPerBlock);
  WEFT_CHECK(count(cluster) > 0 && count(cluster) <= kMaxBlocksPerCluster &&
                 grid.x % cluster.x == 0 && grid.y % cluster.y == 0 && grid.z % cluster.z == 0,
             "{}: a cluster of {} x {} x {} blocks does not divide the grid", kernel, cluster.x,
             cluster.y, cluster.z);
  const size_t most = max_shared_bytes();
  WEFT_CHECK(shared_bytes <= most,
             "{}: {} bytes of dynamic shared memory, of which a block of the emulated {} has {}",
             kernel, shared_bytes, emulated::gpu().name, most);
}

void prepare_block(int rank, uint3 index) {
  State& s = state();
  const dim3 d = launch_shape.block;
  const size_t threads = size_t{d.x} * d.y * d.z;
  const size_t dynamic_bytes = launch_shape.dynamic_shared_bytes;
  Block& block = s.blocks[rank] = {.index = index,
                                   .rank = rank,
                                   .live = static_cast<int>(threads),
                                   .arena = s.workspace.arena(rank),
                                   .dynamic_bytes = dynamic_bytes,
                                   .shared_bytes = dynamic_bytes,
                                   .threads = s.threads().subspan(rank * threads, threads)};
  if (sanitizer::poison) {
    sanitizer::poison(block.arena, kArenaBytes);
    sanitizer::unpoison(block.arena, block.dynamic_bytes);
  }
  std::memset(block.arena, kPoison, block.dynamic_bytes);
  block.warps.assign((threads + kWarpSize - 1) / kWarpSize, Warp{});
  for (size_t t = 0; t < threads; ++t) {
    Thread& thread = *new (&block.threads[t]) Thread{};
    Warp& warp = block.warps[t / kWarpSize];
    const auto u = static_cast<unsigned>(t);
    thread.index = {u % d.x, u / d.x % d.y, u / (d.x * d.y)};
    thread.block = &block;
    thread.warp = &warp;
    thread.linear = static_cast<int>(t);
    thread.lane = static_cast<int>(t % kWarpSize);
    thread.agent = static_cast<int>(rank * threads + t);
    if (thread.lane == 0) warp.lanes = &thread;
    warp.block = &block;
    ++warp.size;
    prepare_fiber(thread.fiber, s.workspace.stack(rank * threads + t), Workspace::kStackBytes,
                  thread_entry);
  }
}

std::string deadlock_message() {
  constexpr int kShown = 4;
  State& s = state();
  std::string message = fmt::format("deadlock: {} threads wait for ever:", s.live);
  int shown = 0;
  const char* last = nullptr;
  unsigned last_line = 0;
  for (const Thread& thread : s.threads()) {
    if (thread.exited || (thread.waits_for == last && thread.site.line() == last_line)) continue;
    last = thread.waits_for;
    last_line = thread.site.line();
    if (++shown > kShown) return message + " ...";
    message +=
        fmt::format(" {} at {} ({});", describe(thread), thread.waits_for, to_string(thread.site));
  }
  message.pop_back();
  return message;
}

/// Gives every thread of the cluster its clock and what it knows: the end of earlier launches.
void start_clocks() {
  State& s = state();
  s.cluster_start = s.last_clock;
  s.cluster_starts.push_back(s.cluster_start);
  auto known = std::make_shared<Knowledge>();
  known->seen.assign(s.agents(), s.cluster_start);
  known->fenced.assign(s.agents(), s.cluster_start);
  std::fill_n(s.pool_clocks, kPoolAgents, s.cluster_start);
  s.pool_agents_used = 0;
  for (Thread& thread : s.threads()) {
    thread.clock = next_clock(s.cluster_start);
    thread.known = known;
  }
}

void run_cluster(uint3 first) {
  State& s = state();
  const dim3 c = launch_shape.cluster;
  s.n_blocks = static_cast<int>(c.x * c.y * c.z);
  s.n_threads = s.n_blocks * static_cast<int>(launch_shape.block.x * launch_shape.block.y *
                                              launch_shape.block.z);
  s.workspace.guard_stacks(s.n_threads);
  s.ready.clear();
  s.failure.clear();
  s.mbarriers.clear();
  s.cluster_barrier = Barrier{};
  s.live = s.n_threads;
  for (int b = 0; b < s.n_blocks; ++b) {
    const auto u = static_cast<unsigned>(b);
    prepare_block(b, {first.x + u % c.x, first.y + u / c.x % c.y, first.z + u / (c.x * c.y)});
  }
  begin_watching_cluster();
  start_clocks();
  for (Thread& thread : s.threads()) s.ready.push_back(&thread);
  if (s.options.order == Order::kReverse) std::reverse(s.ready.begin(), s.ready.end());
  current = next_ready();
  switch_fiber(s.host, current->fiber);
  if (s.failure.empty() && s.live > 0) s.failure = deadlock_message();
  if (s.failure.empty()) fold_traffic();
  // Threads that did not return leave their stacks as poisoned as they were.
  if (sanitizer::unpoison && s.live > 0) {
    for (int t = 0; t < s.n_threads; ++t) {
      sanitizer::unpoison(s.workspace.stack(t), Workspace::kStackBytes);
    }
  }
  std::ranges::destroy(s.threads());
  for (int b = 0; b < s.n_blocks; ++b) s.blocks[b] = Block{};
  if (!s.failure.empty()) report(s.failure, s.failure);
}

void check_barrier(int id, int threads, const Site& site) {
  if (id < 0 || id >= kNamedBarriers || threads % kWarpSize != 0) {
    fail_kernel(site,
                "named barrier {} for {} threads: expected a barrier below {} and a "
                "multiple of {} threads",
                id, threads, kNamedBarriers, kWarpSize);
  }
}

/// Counts the current thread's arrival; true when that opened the barrier.
bool arrive(int id, int threads, const Site& site) {
  Block& block = *current->block;
  Barrier& barrier = block.barriers[id];
  const int expected = threads == 0 ? block.live : threads;
  if (barrier.arrived > 0 && threads != 0 && barrier.expected != expected) {
    fail_kernel(site, "named barrier {}: {} says that {} threads take part, others said {}", id,
                describe(*current), expected, barrier.expected);
  }
  barrier.expected = expected;
  release_past(barrier.release);
  return ++barrier.arrived >= expected;
}

/// Lanes of a warp must meet at one __syncthreads: bar.sync is .aligned.
void check_aligned(const Site& site) {
  const Warp& warp = *current->warp;
  for (const Thread& other : std::span(warp.lanes, warp.size)) {
    if (other.waits_for != kSyncthreads || other.site.line() == site.line()) continue;
    fail_kernel(site,
                "divergent collective: lanes of a warp wait at different "
                "__syncthreads, another at {}",
                to_string(other.site));
  }
}

}  // namespace

Workspace::Workspace() {
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  WEFT_CHECK(memory != MAP_FAILED, "the SIMT emulator found no address space for {} MiB",
             kBytes >> 20);
  base_ = static_cast<char*>(memory);
}

void Workspace::guard_stacks(size_t n) {
  for (; guarded_ < n; ++guarded_) mprotect(stack(guarded_) - kPage, kPage, PROT_NONE);
}

constinit State* the_state = nullptr;

State& make_state() {
  // In the program's image, which kernels may read: blockIdx lies here.
  alignas(State) static char memory[sizeof(State)];
  static State& state = *new (memory) State;
  the_state = &state;
  return state;
}

Options& options() { return state().options; }

void run_grid(const char* kernel, const LaunchShape& shape, void (*body)(void*), void* context,
              std::span<const std::byte> parameters) {
  WEFT_ASSERT(current == nullptr);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.kernel = kernel;
  check_shape(shape);
  launch_shape = shape;
  s.body = body;
  s.context = context;
  s.parameters = parameters;
  s.random = s.options.seed * 0x9E3779B97F4A7C15u | 1;
  s.findings.clear();
  s.released.clear();
  s.cluster_starts.clear();
  if (s.last_clock > kLastClock) {
    s.last_clock = 0;
    s.global.clear();
    s.granules.clear();
  }
  s.launch_start = s.last_clock;
  if (!s.watches()) emulated::forget_unwritten();
  if (s.global.pages() > 4096) s.global.clear();
  const dim3 c = shape.cluster;
  const dim3 clusters = {shape.grid.x / c.x, shape.grid.y / c.y, shape.grid.z / c.z};
  const uint64_t count = uint64_t{clusters.x} * clusters.y * clusters.z;
  for (uint64_t step = 0; step < count && s.failure.empty(); ++step) {
    const uint64_t i = s.options.order == Order::kReverse ? count - 1 - step : step;
    run_cluster({static_cast<unsigned>(i % clusters.x) * c.x,
                 static_cast<unsigned>(i / clusters.x % clusters.y) * c.y,
                 static_cast<unsigned>(i / (uint64_t{clusters.x} * clusters.y)) * c.z});
  }
  s.failure.clear();
  if (s.findings.empty()) return;
  std::string message = s.kernel + ":";
  for (size_t i = 0; i < std::min(s.findings.size(), kMaxFindings); ++i) {
    const State::Finding& finding = s.findings[i];
    message += (s.findings.size() > 1 ? "\n  " : " ") + finding.message;
    if (finding.count > 1) message += fmt::format(" ({} times)", finding.count);
  }
  if (s.findings.size() > kMaxFindings) {
    message += fmt::format("\n  and {} more", s.findings.size() - kMaxFindings);
  }
  throw KernelError(message);
}

void fail_kernel(const std::string& message, const std::string& place, const Thread& thread) {
  state().failure = fmt::format("{}: {} ({})", place, message, describe(thread));
  resume_host(true);
  __builtin_unreachable();
}

void report(const std::string& key, const std::string& message) {
  std::vector<State::Finding>& findings = state().findings;
  const auto same = std::ranges::find(findings, key, &State::Finding::key);
  if (same != findings.end()) {
    ++same->count;
  } else {
    findings.push_back({key, message});
  }
}

std::string describe(const Thread& thread) {
  const uint3 b = thread.block->index;
  return fmt::format("thread {} of block ({}, {}, {})", thread.linear, b.x, b.y, b.z);
}

std::string describe_agent(int agent) {
  State& s = state();
  if (agent < s.n_threads) return describe(s.workspace.threads()[agent]);
  if (agent < 2 * s.n_threads) {
    return "cp.async of " + describe(s.workspace.threads()[agent - s.n_threads]);
  }
  return "an asynchronous operation";
}

void tick(Thread& thread) { thread.clock = next_clock(thread.clock); }

void release_past(Release& release) {
  if (!state().watches()) return;
  release.add(current->known, current->agent, current->clock);
  tick(*current);
}

Clock next_clock(Clock clock) {
  State& s = state();
  s.last_clock = std::max(s.last_clock, clock + 1);
  return clock + 1;
}

std::pair<int, Clock> next_pool_agent() {
  State& s = state();
  const int slot = s.pool_agents_used++ % kPoolAgents;
  return {2 * s.n_threads + slot, s.pool_clocks[slot] = next_clock(s.pool_clocks[slot])};
}

void learn(Thread& thread, const KnowledgePtr& known) {
  // Threads that leave a barrier together knew the same before it, most often.
  static KnowledgePtr last_a, last_b, last_joined;
  if (thread.known == known || !known) return;
  if (thread.known != last_a || known != last_b) {
    last_a = thread.known;
    last_b = known;
    last_joined = join(thread.known, known);
  }
  thread.known = last_joined;
}

void make_ready(std::span<Thread*> threads) {
  State& s = state();
  if (s.options.order == Order::kReverse) std::reverse(threads.begin(), threads.end());
  for (Thread* thread : threads) {
    thread->waits_for = nullptr;
    s.ready.push_back(thread);
  }
}

void make_ready(std::vector<Thread*>& waiting) {
  make_ready(std::span(waiting));
  waiting.clear();
}

void wait(const char* operation, const Site& site) {
  current->waits_for = operation;
  current->site = site;
  run_next();
}

void yield() {
  state().ready.push_back(current);
  run_next();
}

void barrier_sync(int id, int threads, const Site& site) {
  check_barrier(id, threads, site);
  if (threads == 0) check_aligned(site);
  Barrier& barrier = current->block->barriers[id];
  if (arrive(id, threads, site)) {
    open_barrier(barrier);
  } else {
    barrier.waiting.push_back(current);
    wait(threads == 0 ? kSyncthreads : "bar.sync", site);
  }
}

void barrier_arrive(int id, int threads, const Site& site) {
  check_barrier(id, threads, site);
  Barrier& barrier = current->block->barriers[id];
  if (!arrive(id, threads, site)) return;
  // The last one to arrive does not wait, so it learns nothing.
  const KnowledgePtr known = current->known;
  open_barrier(barrier);
  current->known = known;
}

void meet(uint32_t mask, const char* operation, const Site& site, WarpFunction run) {
  Warp& warp = *current->warp;
  const uint32_t self = 1u << current->lane;
  mask &= warp.existing();
  if (!(mask & self)) {
    fail_kernel(site, "divergent collective: {} by lane {}, which is not in its own mask {:08x}",
                operation, current->lane, mask);
  }
  if (mask & warp.exited) {
    fail_kernel(site,
                "divergent collective: {} with a mask {:08x} that names lanes {:08x}, "
                "which have exited",
                operation, mask, mask & warp.exited);
  }
  auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                              [&](const Meeting& m) { return (m.mask & mask) != 0; });
  if (meeting == warp.meetings.end()) {
    warp.meetings.push_back({mask, 0, operation, site});
    meeting = warp.meetings.end() - 1;
  }
  const bool is_same =
      meeting->operation == operation || std::strcmp(meeting->operation, operation) == 0;
  if (meeting->mask != mask || !is_same) {
    fail_kernel(site,
                "divergent collective: lane {} is at {} with mask {:08x}, lanes {:08x} "
                "are at {} with mask {:08x} ({})",
                current->lane, operation, mask, meeting->arrived, meeting->operation, meeting->mask,
                to_string(meeting->site));
  }
  meeting->arrived |= self;
  if (meeting->arrived != mask) return wait(operation, site);
  warp.meetings.erase(meeting);
  run(warp, mask);
  Thread* others[kWarpSize];
  size_t count = 0;
  for (uint32_t rest = mask & ~self; rest != 0; rest &= rest - 1) {
    others[count++] = &warp.lanes[std::countr_zero(rest)];
  }
  make_ready(std::span(others, count));
}

void* static_shared(const void* key, size_t bytes, size_t alignment) {
  // Keeps arrays apart, so that an access beyond one's end does not meet the next.
  constexpr size_t kGap = 64;
  Block& block = *current->block;
  for (const Block::StaticArray& array : block.static_arrays) {
    if (array.key == key) return block.arena + array.offset;
  }
  const size_t offset = (block.shared_bytes + kGap + alignment - 1) / alignment * alignment;
  const size_t gaps = kGap * (block.static_arrays.size() + 1);
  block.shared_bytes = offset + bytes;
  const size_t all = block.shared_bytes - gaps;
  if (all > max_shared_bytes() || block.shared_bytes > kArenaBytes) {
    fail_kernel(Site::current(),
                "{} bytes of shared memory, of which a block of the emulated {} has {}", all,
                emulated::gpu().name, max_shared_bytes());
  }
  if (all - block.dynamic_bytes > kMaxStaticBytes) {
    fail_kernel(Site::current(), "{} bytes of static shared memory; expected at most {}",
                all - block.dynamic_bytes, kMaxStaticBytes);
  }
  block.static_arrays.push_back({key, offset});
  if (sanitizer::unpoison) sanitizer::unpoison(block.arena + offset, bytes);
  std::memset(block.arena + offset, kPoison, bytes);
  open_shared(block, offset, bytes);
  return block.arena + offset;
}

void* dynamic_shared() { return current->block->arena; }

}  // namespace weft::simt
