// Operations of warpgroups: wgmma, its fences and groups, setmaxnreg.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/simt/matrix_unit.h"
#include "kernels/simt/tensor_core.h"
#include "kernels/simt/watch.h"

namespace weft::simt {
namespace {

constexpr int kWarpgroupWarps = 4;
constexpr int kWarpgroupThreads = kWarpgroupWarps * kWarpSize;
constexpr int kRegistersPerMultiprocessor = 65536;

WarpgroupQueue& warpgroup(const char* operation, const Site& site) {
  Block& block = *current->block;
  const size_t index = current->linear / kWarpgroupThreads;
  if (block.threads.size() < (index + 1) * kWarpgroupThreads) {
    fail_kernel(site, "{}: the last {} threads of a block are no warpgroup of {}", operation,
                block.threads.size() % kWarpgroupThreads, kWarpgroupThreads);
  }
  block.warpgroups.resize(std::max(block.warpgroups.size(), index + 1));
  if (!block.warpgroups[index]) block.warpgroups[index] = std::make_shared<WarpgroupQueue>();
  return *block.warpgroups[index];
}

/// Waits until all threads of the warpgroup have arrived at the operation; the last one calls
/// act(queue) for all.
template <class F>
void as_warpgroup(const char* operation, const Site& site, F&& act) {
  WarpgroupQueue& queue = warpgroup(operation, site);
  if (queue.arrived.empty()) {
    queue.operation = operation;
    queue.site = site;
  } else if (std::strcmp(queue.operation, operation) != 0 || queue.site.line() != site.line()) {
    fail_kernel(site,
                "divergent collective: {} is at {}, {} threads of its warpgroup are at {} ({})",
                describe(*current), operation, queue.arrived.size(), queue.operation,
                to_string(queue.site));
  }
  queue.arrived.push_back(current);
  if (queue.arrived.size() < kWarpgroupThreads) return wait(operation, site);
  act(queue);
  std::vector<Thread*> others = std::exchange(queue.arrived, {});
  std::erase(others, current);
  make_ready(others);
}

/// Thread t of the current warpgroup.
Thread& member(int t) {
  return current->block->threads[current->linear / kWarpgroupThreads * kWarpgroupThreads + t];
}

/// What all four warps know: each may be the first to run.
KnowledgePtr warpgroup_knowledge() {
  std::shared_ptr<Knowledge> common;
  for (int w = 0; w < kWarpgroupWarps; ++w) {
    Release release;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const Thread& thread = member(w * kWarpSize + lane);
      release.add(thread.known, thread.agent, thread.clock);
    }
    const KnowledgePtr known = release.take();
    if (!common) {
      common = std::make_shared<Knowledge>(*known);
      continue;
    }
    for (size_t i = 0; i < common->seen.size(); ++i) {
      common->seen[i] = std::min(common->seen[i], known->seen[i]);
      common->fenced[i] = std::min(common->fenced[i], known->fenced[i]);
    }
  }
  return common;
}

/// A matrix in shared memory as a wgmma descriptor names it (PTX ISA, "Matrix Descriptor Format").
struct SharedMatrix {
  char* arena;
  uint32_t start, leading, stride;
  Swizzle swizzle;
  bool mn_major;
  int element_bytes;

  SharedMatrix(uint64_t descriptor, bool is_mn_major, int bytes)
      : arena(current->block->arena),
        start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        swizzle(static_cast<Swizzle>((4 - (descriptor >> 62)) & 3)),  // 1 is 128 bytes, 3 is 32
        mn_major(is_mn_major),
        element_bytes(bytes) {}

  /// Where the element (r of M or N, k) lies.
  char* at(int r, int k) const {
    const int es = element_bytes;
    const int per_16 = 16 / es;
    const int kb = k * es;
    const int width = 16 << static_cast<int>(swizzle);
    uint32_t offset = 0;
    if (!mn_major && swizzle == Swizzle::kNone) {
      offset = r / 8 * stride + r % 8 * 16 + kb / 16 * leading + kb % 16;
    } else if (!mn_major) {
      offset = r / 8 * stride + r % 8 * width + kb;
    } else if (swizzle == Swizzle::kNone) {
      offset = r % per_16 * es + r / per_16 * stride + k % 8 * 16 + k / 8 * leading;
    } else {
      const int row = width / es;  // elements of M or N in one swizzled row
      offset = r % row * es + r / row * leading + k % 8 * width + k / 8 * stride;
    }
    return arena + swizzled(start + offset, swizzle);
  }

  /// Reads rows x k elements; enters every 16 bytes once.
  std::vector<float> read(MatrixType type, int rows, int k) const {
    std::vector<float> values(static_cast<size_t>(rows) * k);
    for (int r = 0; r < rows; ++r) {
      for (int l = 0; l < k; ++l) values[r * k + l] = widen(type, at(r, l));
    }
    return values;
  }
  void enter(const AsyncAgent& agent, int rows, int k) const {
    const int step = 16 / element_bytes;
    for (int r = 0; r < rows; r += mn_major ? step : 1) {
      for (int l = 0; l < k; l += mn_major ? 1 : step) {
        access_memory(agent, at(r, l), 16, 16, Access::kRead);
      }
    }
  }
};

bool is_refused(uint64_t descriptor) { return (descriptor >> 49 & 7) != 0; }

struct WgmmaArguments {
  const Wgmma* operation;
  uint64_t a_descriptor, b_descriptor;
};

/// Element i of a thread's accumulator.
Position accumulator_position(int thread, int i) {
  const int lane = thread % kWarpSize;
  return {16 * (thread / kWarpSize) + lane / 4 + 8 * (i / 2 % 2),
          8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

void issue_wgmma(WarpgroupQueue& queue, const Site& site) {
  const auto arguments = *static_cast<const WgmmaArguments*>(current->pointers[2]);
  const Wgmma op = *arguments.operation;
  const int bytes = info(op.a_type).bytes, k = 32 / bytes, floats = op.n / 2;
  const bool has_registers = current->pointers[1] != nullptr;
  for (int t = 0; t < kWarpgroupThreads; ++t) {
    const auto& other = *static_cast<const WgmmaArguments*>(member(t).pointers[2]);
    if (other.b_descriptor != arguments.b_descriptor ||
        (!has_registers && other.a_descriptor != arguments.a_descriptor)) {
      fail_kernel(site, "wgmma: the threads of a warpgroup give different descriptors");
    }
  }
  if (is_refused(arguments.b_descriptor) ||
      (!has_registers && is_refused(arguments.a_descriptor))) {
    fail_kernel(site,
                "wgmma: a descriptor with a base offset is not supported: align tiles to the "
                "swizzle's atom of 8 rows");
  }
  if (op.a_type != op.b_type && (bytes != 1 || info(op.b_type).bytes != 1)) {
    fail_kernel(site, "wgmma: there is none of {} and {}", info(op.a_type).name,
                info(op.b_type).name);
  }
  if ((op.a_mn_major || op.b_mn_major) && bytes != 2) {
    fail_kernel(site, "wgmma: only 16-bit elements may be M- or N-major");
  }
  if (op.n < 8 || op.n > 256 || op.n % 8 != 0) {
    fail_kernel(site, "wgmma: n = {}, expected a multiple of 8 up to 256", op.n);
  }
  if (!queue.is_fenced) {
    report(fmt::format("wgmma_fence {}", to_string(site)),
           fmt::format("missing wgmma_fence: wgmma at {} may read accumulators before they are "
                       "written",
                       to_string(site)));
    queue.is_fenced = true;
  }
  const SharedMatrix b(arguments.b_descriptor, op.b_mn_major, bytes);
  const SharedMatrix a(arguments.a_descriptor, op.a_mn_major, bytes);
  State& s = state();
  if (s.watches()) {
    if (queue.open.agents.empty()) queue.open.agents.push_back(next_pool_agent());
    const auto [agent_index, clock] = queue.open.agents.front();
    const AsyncAgent agent{agent_index, clock, current, warpgroup_knowledge(), site, true, false};
    b.enter(agent, op.n, k);
    if (!has_registers) a.enter(agent, 64, k);
    for (int t = 0; t < kWarpgroupThreads; ++t) tick(member(t));
  }
  WarpgroupQueue::Operation operation;
  operation.floats = floats;
  std::vector<float> a_values(64 * k);
  for (int t = 0; t < kWarpgroupThreads; ++t) {
    Thread& thread = member(t);
    auto* d = static_cast<float*>(thread.pointers[0]);
    operation.accumulators.push_back(d);
    thread.in_flight.emplace_back(d, d + floats);
    if (!has_registers) continue;
    const auto* registers = static_cast<const char*>(thread.pointers[1]);
    auto* const operand = static_cast<float*>(thread.pointers[1]);
    operation.operands.emplace_back(operand, operand + 64 * 32 / kWarpgroupThreads / 4);
    thread.in_flight.push_back(operation.operands.back());
    for (int i = 0; i < 64 * k / kWarpgroupThreads; ++i) {
      const Position p = a_position(t % kWarpSize, i, bytes, k);
      a_values[(16 * (t / kWarpSize) + p.row) * k + p.col] =
          widen(op.a_type, registers + i * bytes);
    }
  }
  const bool is_eager = s.options.completion == Completion::kEager;
  if (!is_eager) {
    for (float* d : operation.accumulators) {
      if (queue.held.contains(d)) continue;
      queue.held[d].assign(d, d + floats);
      std::fill_n(d, floats, std::bit_cast<float>(~0u));
    }
  }
  operation.run = [&queue, op, a, b, k, floats, has_registers, a_values,
                   accumulators = operation.accumulators] {
    const std::vector<float> left = has_registers ? a_values : a.read(op.a_type, 64, k);
    const std::vector<float> right = b.read(op.b_type, op.n, k);
    std::vector<float> sums(64 * static_cast<size_t>(op.n));
    const auto values = [&](int t) {
      const auto held = queue.held.find(accumulators[t]);
      return held == queue.held.end() ? accumulators[t] : held->second.data();
    };
    for (int t = 0; op.accumulate && t < kWarpgroupThreads; ++t) {
      for (int i = 0; i < floats; ++i) {
        const Position p = accumulator_position(t, i);
        sums[p.row * op.n + p.col] = values(t)[i];
      }
    }
    multiply(Instruction::kWgmma, {op.a_type, op.b_type}, 64, op.n, k, left.data(), right.data(),
             sums.data());
    for (int t = 0; t < kWarpgroupThreads; ++t) {
      for (int i = 0; i < floats; ++i) {
        const Position p = accumulator_position(t, i);
        values(t)[i] = sums[p.row * op.n + p.col];
      }
    }
  };
  if (is_eager) std::exchange(operation.run, nullptr)();
  queue.open.operations.push_back(std::move(operation));
}

/// The results of a group, no longer committed, become visible to its threads.
void finish(WarpgroupQueue& queue, WarpgroupQueue::Group& group) {
  for (WarpgroupQueue::Operation& operation : group.operations) {
    if (operation.run) std::exchange(operation.run, nullptr)();
  }
  const auto is_used = [&](const WarpgroupQueue::Group& other, float* d) {
    return std::ranges::any_of(other.operations, [&](const auto& o) {
      return o.run && std::ranges::find(o.accumulators, d) != o.accumulators.end();
    });
  };
  for (WarpgroupQueue::Operation& operation : group.operations) {
    for (float* d : operation.accumulators) {
      const auto held = queue.held.find(d);
      if (held == queue.held.end() || is_used(queue.open, d) ||
          std::ranges::any_of(queue.committed, [&](const auto& g) { return is_used(g, d); })) {
        continue;
      }
      std::ranges::copy(held->second, d);
      queue.held.erase(held);
    }
  }
}

}  // namespace

void wgmma(const Wgmma& operation, float* d, const uint32_t* a, uint64_t a_descriptor,
           uint64_t b_descriptor, const Site& site) {
  WgmmaArguments arguments{&operation, a_descriptor, b_descriptor};
  current->pointers[0] = d;
  current->pointers[1] = const_cast<uint32_t*>(a);
  current->pointers[2] = &arguments;
  as_warpgroup("wgmma", site, [&](WarpgroupQueue& queue) { issue_wgmma(queue, site); });
}

void wgmma_fence(const Site& site) {
  as_warpgroup("wgmma.fence", site, [](WarpgroupQueue& queue) { queue.is_fenced = true; });
}

void wgmma_commit(const Site& site) {
  as_warpgroup("wgmma.commit_group", site, [](WarpgroupQueue& queue) {
    queue.committed.push_back(std::exchange(queue.open, {}));
  });
}

void wgmma_wait(int pending, const Site& site) {
  as_warpgroup("wgmma.wait_group", site, [&](WarpgroupQueue& queue) {
    while (queue.committed.size() > static_cast<size_t>(pending)) {
      WarpgroupQueue::Group group = std::move(queue.committed.front());
      queue.committed.erase(queue.committed.begin());
      finish(queue, group);
      for (int t = 0; state().watches() && t < kWarpgroupThreads; ++t) {
        for (const auto& [agent, clock] : group.agents) {
          learn(member(t), with_event(member(t).known, agent, clock));
        }
      }
    }
    // Registers that a later group still works on stay out of bounds.
    for (int t = 0; t < kWarpgroupThreads; ++t) {
      auto& in_flight = member(t).in_flight;
      in_flight.clear();
      for (const WarpgroupQueue::Group& group : queue.committed) {
        for (const auto& operation : group.operations) {
          float* const begin = operation.accumulators[t];
          in_flight.emplace_back(begin, begin + operation.floats);
          if (!operation.operands.empty()) in_flight.push_back(operation.operands[t]);
        }
      }
    }
    queue.is_fenced = false;
  });
}

void set_max_registers(int count, bool increases, const Site& site) {
  constexpr int kLeastRegisters = 24;
  if (count % 8 != 0 || count < kLeastRegisters || count > 256) {
    fail_kernel(site, "setmaxnreg {}: expected a multiple of 8 from 24 to 256", count);
  }
  as_warpgroup(increases ? "setmaxnreg.inc" : "setmaxnreg.dec", site, [&](WarpgroupQueue& queue) {
    queue.registers = count;
    // A block's registers are those that it is launched with, as many as its launch bounds leave a
    // thread; who asks for more than the others give up waits for ever.
    const Block& block = *current->block;
    const int threads = static_cast<int>(block.threads.size());
    const int launched = kRegistersPerMultiprocessor / threads / 8 * 8 * threads;
    int total = 0, said = 0;
    for (const auto& other : block.warpgroups) {
      if (!other || other->registers == 0) continue;
      total += other->registers * kWarpgroupThreads;
      said += kWarpgroupThreads;
    }
    total += (threads - said) * kLeastRegisters;
    if (total > launched) {
      fail_kernel(site,
                  "setmaxnreg {}: the block's warpgroups would hold {} registers, of the {} that "
                  "{} threads are launched with",
                  count, total, launched, threads);
    }
  });
}

void check_registers(const Thread& thread, const void* address, size_t bytes, Place place) {
  for (const auto& [begin, end] : thread.in_flight) {
    if (static_cast<const char*>(address) + bytes <= reinterpret_cast<const char*>(begin) ||
        static_cast<const char*>(address) >= reinterpret_cast<const char*>(end)) {
      continue;
    }
    report(fmt::format("wgmma_wait {}", place),
           fmt::format("missing wgmma_wait: {} touches at {} a register that a wgmma in flight "
                       "works on",
                       describe(thread), to_string(place)));
    return;
  }
}

}  // namespace weft::simt
