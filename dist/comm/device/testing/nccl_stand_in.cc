#include "dist/comm/device/testing/nccl_stand_in.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/emulated.h"
#include "core/error.h"
#include "core/float_formats.h"
#include "core/runtime.h"

namespace weft::dist {
namespace nccl {

struct World;

/// A communicator of one rank.
struct CommOfNccl {
  std::shared_ptr<World> world;
  int rank = 0, device = 0;
  int under_way = 0;  // calls
  Result state = Result::kSuccess;
  std::string error;
};

namespace {

enum class Kind { kBroadcast, kReduce, kAllReduce, kReduceScatter, kAllGather, kSend, kRecv };

struct Call {
  Kind kind;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t count = 0;
  Type type = Type::kInt8;
  Op op = Op::kSum;
  int peer = 0;                         // root, destination or source
  std::vector<std::byte> content = {};  // of a send
  bool is_registered = false;           // all of its memory, with the communicator

  bool matches(const Call& other) const {
    return kind == other.kind && count == other.count && type == other.type && op == other.op &&
           peer == other.peer;
  }
};

size_t itemsize(Type type) {
  switch (type) {
    case Type::kInt8:
      return 1;
    case Type::kFloat16:
    case Type::kBfloat16:
      return 2;
    case Type::kInt64:
    case Type::kFloat64:
      return 8;
    default:
      return 4;
  }
}

std::string describe(const Call& c) {
  constexpr const char* kNames[] = {"broadcast",  "reduce", "all_reduce", "reduce_scatter",
                                    "all_gather", "send",   "recv"};
  return fmt::format("{} of {} of type {}, op {}, peer {}", kNames[static_cast<int>(c.kind)],
                     c.count, static_cast<int>(c.type), static_cast<int>(c.op), c.peer);
}

}  // namespace

/// The ranks of a communicator.
struct World {
  explicit World(int size) : ranks(size), collectives(size), sends(size), receives(size) {}
  int size() const { return static_cast<int>(ranks.size()); }

  std::vector<Comm> ranks;  // null: has not come, or has gone
  int joined = 0;           // that have ever come
  // What has been called and not yet met, of each rank.
  std::vector<std::deque<Call>> collectives, sends, receives;
};

namespace {

struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> worlds;  // by id
  int64_t next_id = 1;
  NcclCounts counts;
  struct Registration {
    size_t bytes;
    Comm comm;
  };
  std::map<const std::byte*, Registration> registered;
};

State& state() {
  static auto& the_state = *new State;
  return the_state;
}

thread_local int group_depth = 0;
thread_local std::vector<std::pair<Comm, Call>> grouped;

// --- Arithmetic.

template <class F>
void with_type(Type type, F&& f) {
  switch (type) {
    case Type::kFloat64:
      return f(double());
    case Type::kFloat32:
      return f(float());
    case Type::kFloat16:
      return f(f16());
    case Type::kBfloat16:
      return f(bf16());
    case Type::kInt64:
      return f(int64_t());
    case Type::kInt32:
      return f(int32_t());
    case Type::kInt8:
      return f(int8_t());
  }
}

template <class T>
T combine(T a, T b, Op op) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    return static_cast<T>(combine(static_cast<float>(a), static_cast<float>(b), op));
  } else {
    if (op == Op::kMax) return std::max(a, b);
    return op == Op::kMin ? std::min(a, b) : static_cast<T>(a + b);
  }
}

/// What rank `last` has of elements [begin, end) when they have gone around the ring to it.
template <class T>
std::vector<T> around_the_ring(const std::vector<Call*>& calls, size_t begin, size_t end,
                               int last) {
  const auto ranks = static_cast<int>(calls.size());
  const Op op = calls[0]->op;
  const auto input = [&](int r, size_t i) {
    const T x = reinterpret_cast<const T*>(calls[r]->from)[i];
    if constexpr (std::is_integral_v<T>) {
      return x;
    } else if (op == Op::kAvg) {
      using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
      const T share = static_cast<T>(Wide(1) / static_cast<Wide>(ranks));
      return static_cast<T>(static_cast<Wide>(x) * static_cast<Wide>(share));
    } else {
      return x;
    }
  };
  std::vector<T> result(end - begin);
  for (size_t i = begin; i < end; ++i) {
    T sum = input((last + 1) % ranks, i);
    for (int k = 2; k <= ranks; ++k) sum = combine(sum, input((last + k) % ranks, i), op);
    result[i - begin] = sum;
  }
  state().counts.sent += static_cast<int64_t>((ranks - 1) * (end - begin) * sizeof(T));
  return result;
}

void write(std::byte* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  std::memmove(to, from, bytes);
  const auto block = emulated::block_of(to);
  WEFT_ASSERT(block);
  std::memset(block->is_written + (reinterpret_cast<const unsigned char*>(to) - block->begin), true,
              bytes);
}

/// Of every rank the same collective.
void run(const std::vector<Call*>& calls) {
  const auto ranks = static_cast<int>(calls.size());
  const Call& c = *calls[0];
  const size_t bytes = c.count * itemsize(c.type);
  NcclCounts& counts = state().counts;
  with_type(c.type, [&]<class T>(T) {
    switch (c.kind) {
      case Kind::kBroadcast:
        for (Call* to : calls) write(to->to, calls[c.peer]->from, bytes);
        counts.sent += static_cast<int64_t>((ranks - 1) * bytes);
        return;
      case Kind::kReduce: {
        const std::vector<T> sums = around_the_ring<T>(calls, 0, c.count, c.peer);
        return write(calls[c.peer]->to, sums.data(), bytes);
      }
      case Kind::kReduceScatter: {
        std::vector<std::vector<T>> parts;
        for (int r = 0; r < ranks; ++r) {
          parts.push_back(around_the_ring<T>(calls, r * c.count, (r + 1) * c.count, r));
        }
        for (int r = 0; r < ranks; ++r) write(calls[r]->to, parts[r].data(), bytes);
        return;
      }
      case Kind::kAllReduce: {
        // A part to each rank, then all to all.
        std::vector<T> sums;
        for (int r = 0; r < ranks; ++r) {
          const std::vector<T> part =
              around_the_ring<T>(calls, r * c.count / ranks, (r + 1) * c.count / ranks, r);
          sums.insert(sums.end(), part.begin(), part.end());
        }
        for (Call* to : calls) write(to->to, sums.data(), bytes);
        counts.sent += static_cast<int64_t>((ranks - 1) * bytes);
        return;
      }
      case Kind::kAllGather: {
        std::vector<std::vector<std::byte>> parts;
        for (Call* from : calls) parts.emplace_back(from->from, from->from + bytes);
        for (Call* to : calls) {
          for (int r = 0; r < ranks; ++r) write(to->to + r * bytes, parts[r].data(), bytes);
        }
        counts.sent += static_cast<int64_t>(ranks * (ranks - 1) * bytes);
        return;
      }
      case Kind::kSend:
      case Kind::kRecv:
        WEFT_ASSERT(false);
    }
  });
}

// --- Calls that meet.

/// Under the lock: what has come from all, or from both ends.
void meet(World& world) {
  const int size = world.size();
  const auto fail = [&](const std::string& why) {
    for (Comm comm : world.ranks) {
      if (!comm) continue;
      comm->state = Result::kInvalidUsage;
      comm->error = why;
    }
  };
  const auto ended = [&](int rank) {
    if (world.ranks[rank]) --world.ranks[rank]->under_way;
  };
  const auto has_come = [](const std::deque<Call>& calls) { return !calls.empty(); };
  while (std::ranges::all_of(world.collectives, has_come)) {
    std::vector<Call*> calls;
    for (auto& queue : world.collectives) calls.push_back(&queue.front());
    for (int r = 1; r < size; ++r) {
      if (!calls[r]->matches(*calls[0])) {
        return fail(fmt::format("rank 0 calls {}, rank {} calls {}", describe(*calls[0]), r,
                                describe(*calls[r])));
      }
      if (calls[r]->is_registered != calls[0]->is_registered) {
        return fail(fmt::format("{}: of ranks 0 and {} one alone has registered its memory",
                                describe(*calls[0]), r));
      }
    }
    run(calls);
    for (int r = 0; r < size; ++r) {
      world.collectives[r].pop_front();
      ended(r);
    }
  }
  for (int from = 0; from < size; ++from) {
    for (auto send = world.sends[from].begin(); send != world.sends[from].end();) {
      auto& receives = world.receives[send->peer];
      const auto receive = std::ranges::find(receives, from, &Call::peer);
      if (receive == receives.end()) {
        ++send;
        continue;
      }
      if (send->count != receive->count || send->type != receive->type) {
        return fail(fmt::format("rank {} calls {}, rank {} calls {}", from, describe(*send),
                                send->peer, describe(*receive)));
      }
      const size_t bytes = send->count * itemsize(send->type);
      write(receive->to, send->content.data(), bytes);
      state().counts.sent += static_cast<int64_t>(bytes);
      ended(send->peer);
      receives.erase(receive);
      send = world.sends[from].erase(send);
    }
  }
}

/// Bytes that a call reads and writes; 0 where it does not.
struct Extent {
  size_t read, written;

  Extent(const Comm comm, const Call& c) {
    const size_t bytes = c.count * itemsize(c.type), ranks = comm->world->ranks.size();
    const bool reads = c.kind != Kind::kRecv;
    const bool writes = c.kind != Kind::kSend && (c.kind != Kind::kReduce || comm->rank == c.peer);
    read = reads ? (c.kind == Kind::kReduceScatter ? bytes * ranks : bytes) : 0;
    written = writes ? (c.kind == Kind::kAllGather ? bytes * ranks : bytes) : 0;
  }
};

/// Under the lock: whether all that a call reads and writes is registered with its communicator.
bool is_registered(const Comm comm, const Call& c) {
  const auto holds = [&](const std::byte* memory, size_t length) {
    const auto after = state().registered.upper_bound(memory);
    if (after == state().registered.begin()) return false;
    const auto& [begin, registration] = *std::prev(after);
    return registration.comm == comm && memory + length <= begin + registration.bytes;
  };
  const Extent extent(comm, c);
  return (extent.read == 0 || holds(c.from, extent.read)) &&
         (extent.written == 0 || holds(c.to, extent.written));
}

/// Why the memory of a call will not do; empty when it does.
std::string problem_of(const Comm comm, const Call& c) {
  const auto [read, written] = Extent(comm, c);
  const size_t bytes = c.count * itemsize(c.type);
  const bool reads = read > 0, writes = written > 0;
  const auto is_on_device = [&](const std::byte* memory, size_t length) {
    const auto block = emulated::block_of(memory);
    return block && block->device == comm->device &&
           reinterpret_cast<const unsigned char*>(memory) + length <= block->begin + block->bytes;
  };
  if ((reads && !is_on_device(c.from, read)) || (writes && !is_on_device(c.to, written))) {
    return fmt::format("{}: memory that is not on cuda:{}", describe(c), comm->device);
  }
  const bool overlaps = reads && writes && c.from < c.to + written && c.to < c.from + read;
  const std::byte* const in_place = c.kind == Kind::kReduceScatter ? c.from + comm->rank * bytes
                                    : c.kind == Kind::kAllGather   ? c.from - comm->rank * bytes
                                                                   : c.from;
  if (overlaps && c.to != in_place) {
    return fmt::format("{}: input and output overlap without being in place", describe(c));
  }
  return "";
}

/// The calls of a group, of one communicator or several.
Result submit(std::vector<std::pair<Comm, Call>> calls) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  std::vector<Comm> busy;
  for (auto& [comm, call] : calls) {
    if (comm->under_way > 0 && !std::ranges::count(busy, comm)) {
      comm->error = "a call while the one before it is under way";
      return Result::kInvalidUsage;
    }
    comm->error = problem_of(comm, call);
    if (!comm->error.empty()) return comm->state = Result::kInvalidArgument;
    call.is_registered = is_registered(comm, call);
    s.counts.unregistered += !call.is_registered;
    World& world = *comm->world;
    auto& queue = call.kind == Kind::kSend   ? world.sends
                  : call.kind == Kind::kRecv ? world.receives
                                             : world.collectives;
    queue[comm->rank].push_back(call);
    if (call.kind == Kind::kSend) {
      const size_t bytes = call.count * itemsize(call.type);
      queue[comm->rank].back().content.assign(call.from, call.from + bytes);
    } else {
      ++comm->under_way;
    }
    if (!std::ranges::count(busy, comm)) busy.push_back(comm);
  }
  s.counts.launches += !calls.empty();
  for (Comm comm : busy) meet(*comm->world);
  return calls.empty() ? Result::kSuccess : Result::kInProgress;
}

Result call(Comm comm, const Call& call) {
  if (group_depth == 0) return submit({{comm, call}});
  grouped.emplace_back(comm, call);
  return Result::kSuccess;
}

const std::byte* bytes(const void* memory) { return static_cast<const std::byte*>(memory); }
std::byte* bytes(void* memory) { return static_cast<std::byte*>(memory); }

// --- The functions.

Result get_unique_id(UniqueId* id) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  fmt::format_to_n(id->internal, sizeof id->internal, "stand-in {}{}", s.next_id++, '\0');
  return Result::kSuccess;
}

Result comm_init_rank_config(Comm* made, int ranks, UniqueId id, int rank, Config* config) {
  if (config->blocking != 0 || config->magic != 0xcafebeef) return Result::kInvalidArgument;
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto& world = s.worlds[id.internal];
  if (!world) world = std::make_shared<World>(ranks);
  *made = new CommOfNccl{world, rank, runtime::current_device()};
  world->ranks.at(rank) = *made;
  ++world->joined;
  return Result::kInProgress;
}

Result comm_get_async_error(Comm comm, Result* error) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  // Under way from the start: until all ranks have come together.
  const bool waits = comm->under_way > 0 || comm->world->joined < comm->world->size();
  *error = comm->state != Result::kSuccess ? comm->state
           : waits                         ? Result::kInProgress
                                           : Result::kSuccess;
  return Result::kSuccess;
}

Result leave(Comm comm) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  World& world = *comm->world;
  world.ranks[comm->rank] = nullptr;
  // What it has sent still arrives.
  world.collectives[comm->rank].clear();
  world.receives[comm->rank].clear();
  delete comm;
  return Result::kSuccess;
}

Result group_start() {
  ++group_depth;
  return Result::kSuccess;
}
Result group_end() {
  if (group_depth == 0) return Result::kInvalidUsage;
  if (--group_depth > 0) return Result::kSuccess;
  return submit(std::exchange(grouped, {}));
}

const char* get_error_string(Result result) {
  switch (result) {
    case Result::kInvalidArgument:
      return "invalid argument";
    case Result::kInvalidUsage:
      return "invalid usage";
    default:
      return "unexpected";
  }
}
const char* get_last_error(Comm comm) { return comm ? comm->error.c_str() : ""; }

Result mem_alloc(void** memory, size_t bytes) {
  *memory = runtime::allocate(runtime::current_device(), bytes);
  return *memory ? Result::kSuccess : Result::kInternalError;
}
Result mem_free(void* memory) {
  {
    std::lock_guard lock(state().mutex);
    if (state().registered.contains(bytes(memory))) return Result::kInvalidUsage;
  }
  runtime::deallocate(runtime::current_device(), memory);
  return Result::kSuccess;
}
Result comm_register(Comm comm, void* memory, size_t size, void** handle) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.registered[bytes(memory)] = {size, comm};
  s.counts.registered += static_cast<int64_t>(size);
  *handle = memory;
  return Result::kSuccess;
}
Result comm_deregister(Comm comm, void* handle) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto entry = s.registered.find(bytes(handle));
  if (entry == s.registered.end() || entry->second.comm != comm) return Result::kInvalidArgument;
  s.counts.registered -= static_cast<int64_t>(entry->second.bytes);
  s.registered.erase(entry);
  return Result::kSuccess;
}

constexpr Api kStandIn = {
    .get_unique_id = get_unique_id,
    .comm_init_rank_config = comm_init_rank_config,
    .comm_get_async_error = comm_get_async_error,
    .comm_finalize = [](Comm) { return Result::kSuccess; },
    .comm_destroy = leave,
    .comm_abort = leave,
    .group_start = group_start,
    .group_end = group_end,
    .send =
        [](const void* from, size_t count, Type type, int peer, Comm comm, Stream) {
          return call(comm, {.kind = Kind::kSend,
                             .from = bytes(from),
                             .count = count,
                             .type = type,
                             .peer = peer});
        },
    .recv =
        [](void* to, size_t count, Type type, int peer, Comm comm, Stream) {
          return call(
              comm,
              {.kind = Kind::kRecv, .to = bytes(to), .count = count, .type = type, .peer = peer});
        },
    .broadcast =
        [](const void* from, void* to, size_t count, Type type, int root, Comm comm, Stream) {
          return call(comm,
                      {Kind::kBroadcast, bytes(from), bytes(to), count, type, Op::kSum, root});
        },
    .reduce =
        [](const void* from, void* to, size_t count, Type type, Op op, int root, Comm comm,
           Stream) {
          return call(comm, {Kind::kReduce, bytes(from), bytes(to), count, type, op, root});
        },
    .all_reduce =
        [](const void* from, void* to, size_t count, Type type, Op op, Comm comm, Stream) {
          return call(comm, {Kind::kAllReduce, bytes(from), bytes(to), count, type, op});
        },
    .reduce_scatter =
        [](const void* from, void* to, size_t count, Type type, Op op, Comm comm, Stream) {
          return call(comm, {Kind::kReduceScatter, bytes(from), bytes(to), count, type, op});
        },
    .all_gather =
        [](const void* from, void* to, size_t count, Type type, Comm comm, Stream) {
          return call(comm, {Kind::kAllGather, bytes(from), bytes(to), count, type});
        },
    .get_error_string = get_error_string,
    .get_last_error = get_last_error,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .comm_register = comm_register,
    .comm_deregister = comm_deregister,
};

}  // namespace
}  // namespace nccl

const nccl::Api& nccl_stand_in() { return nccl::kStandIn; }

NcclCounts nccl_stand_in_counts() {
  std::lock_guard lock(nccl::state().mutex);
  return nccl::state().counts;
}
void reset_nccl_stand_in_counts() {
  std::lock_guard lock(nccl::state().mutex);
  nccl::state().counts = {.registered = nccl::state().counts.registered};
}

}  // namespace weft::dist
