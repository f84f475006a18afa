#include "kernels/simt/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/float_formats.h"
#include "kernels/simt/watch.h"
#include "numerics/tensor_core.h"

namespace weft::simt {
namespace {

constexpr int kWarpgroupWarps = 4;
constexpr int kWarpgroupThreads = kWarpgroupWarps * kWarpSize;
constexpr int kRegistersPerMultiprocessor = 65536;

struct TypeInfo {
  const char* name;
  DType dtype;
  int bytes;
};
constexpr TypeInfo kTypes[] = {{"f16", DType::f16, 2},
                               {"bf16", DType::bf16, 2},
                               {"tf32", DType::tf32, 4},
                               {"e4m3", DType::f8e4m3, 1},
                               {"e5m2", DType::f8e5m2, 1}};

const TypeInfo& info(MatrixType type) { return kTypes[static_cast<int>(type)]; }

float widen(MatrixType type, const void* element) {
  uint32_t bits = 0;
  std::memcpy(&bits, element, info(type).bytes);
  switch (type) {
    case MatrixType::f16:
      return static_cast<float>(f16::from_bits(static_cast<uint16_t>(bits)));
    case MatrixType::bf16:
      return static_cast<float>(bf16::from_bits(static_cast<uint16_t>(bits)));
    case MatrixType::tf32:
      return std::bit_cast<float>(bits & 0xffffe000u);  // the tensor core truncates
    case MatrixType::e4m3:
      return static_cast<float>(f8e4m3::from_bits(static_cast<uint8_t>(bits)));
    case MatrixType::e5m2:
      return static_cast<float>(f8e5m2::from_bits(static_cast<uint8_t>(bits)));
  }
  return 0;
}

/// Of operands of two fp8 formats: f16 holds both.
const numerics::TensorCoreModel& h100_model(MatrixType a, MatrixType b) {
  static const std::vector<numerics::TensorCoreModel> models = [] {
    std::vector<numerics::TensorCoreModel> models;
    for (const TypeInfo& type : kTypes) {
      models.push_back(numerics::tensor_core_model("h100", type.dtype));
    }
    models.push_back(models.back());
    models.back().input = DType::f16;
    return models;
  }();
  return a == b ? models[static_cast<int>(a)] : models.back();
}

struct OperandTypes {
  MatrixType a, b;
};

enum class Row : uint8_t { zero, finite, special };

/// What each row holds at most.
std::vector<Row> kinds_of_rows(const float* x, int rows, int k) {
  std::vector<Row> kinds(rows, Row::zero);
  for (int i = 0; i < rows * k; ++i) {
    Row& kind = kinds[i / k];
    if (x[i] != 0) kind = std::max(kind, std::isfinite(x[i]) ? Row::finite : Row::special);
  }
  return kinds;
}

/// D [m, n] += A [m, k] B^T, B [n, k]; all row-major. As an H100 does it, each sum by its model but
/// those of a tile's tail, which are zero.
void multiply_exactly(const numerics::TensorCoreModel& model, int m, int n, int k, const float* a,
                      const float* b, float* d) {
  const auto terms = static_cast<size_t>(k);
  const std::vector<Row> kinds_a = kinds_of_rows(a, m, k), kinds_b = kinds_of_rows(b, n, k);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float& sum = d[i * n + j];
      const auto [least, most] = std::minmax(kinds_a[i], kinds_b[j]);
      if (sum == 0 && least == Row::zero && most != Row::special) {
        sum = 0;
      } else {
        sum = numerics::tensor_core_dot(model, {a + i * k, terms}, {b + j * k, terms}, sum);
      }
    }
  }
}

/// The same, as Options::tensor_core says.
void multiply(OperandTypes types, int m, int n, int k, const float* a, const float* b, float* d) {
  const bool is_exact = state().options.tensor_core == TensorCore::h100 || info(types.a).bytes == 1;
  if (is_exact) return multiply_exactly(h100_model(types.a, types.b), m, n, k, a, b, d);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      const float* x = a + i * k;
      const float* y = b + j * k;
      float& sum = d[i * n + j];
      float parts[4] = {};
      for (int l = 0; l < k; l += 4) {
        for (int p = 0; p < 4; ++p) parts[p] += x[l + p] * y[l + p];
      }
      sum += (parts[0] + parts[1]) + (parts[2] + parts[3]);
    }
  }
}

/// Row and column of element i of a lane's A fragment, m16 by kK.
struct Position {
  int row, col;
};
Position a_position(int lane, int i, int bytes, int k) {
  const int g = lane / 4, q = lane % 4;
  const int per_register = 4 / bytes;
  const int in_register = i % per_register, reg = i / per_register;
  const int width = 4 * per_register;  // columns of a half
  if (k == width) return {g + 8 * reg, per_register * q + in_register};
  return {g + 8 * (reg % 2), per_register * q + in_register + width * (reg / 2)};
}
Position b_position(int lane, int i, int bytes) {
  const int per_register = 4 / bytes;
  return {i % per_register + per_register * (lane % 4) + 4 * per_register * (i / per_register),
          lane / 4};
}

template <MatrixType kType, int kK>
void run_mma(Warp& warp, uint32_t) {
  constexpr int kBytes = kTypes[static_cast<int>(kType)].bytes;
  float a[16][kK], b[8][kK], d[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const Thread& thread = warp.lanes[lane];
    const auto* da = static_cast<const float*>(thread.pointers[0]);
    const auto* ra = static_cast<const char*>(thread.pointers[1]);
    const auto* rb = static_cast<const char*>(thread.pointers[2]);
    for (int i = 0; i < 16 * kK / kWarpSize; ++i) {
      const Position p = a_position(lane, i, kBytes, kK);
      a[p.row][p.col] = widen(kType, ra + i * kBytes);
    }
    for (int i = 0; i < 8 * kK / kWarpSize; ++i) {
      const Position p = b_position(lane, i, kBytes);
      b[p.col][p.row] = widen(kType, rb + i * kBytes);
    }
    for (int i = 0; i < 4; ++i) d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = da[i];
  }
  multiply({kType, kType}, 16, 8, kK, a[0], b[0], d[0]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    auto* da = static_cast<float*>(warp.lanes[lane].pointers[0]);
    for (int i = 0; i < 4; ++i) da[i] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
  }
}

void run_mma_f64(Warp& warp, uint32_t) {
  double a[8][4], b[4][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    a[lane / 4][lane % 4] = std::bit_cast<double>(warp.lanes[lane].in);
    b[lane % 4][lane / 4] = std::bit_cast<double>(warp.lanes[lane].out);
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    auto* d = static_cast<double*>(warp.lanes[lane].pointers[0]);
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 4; ++k) d[i] = std::fma(a[lane / 4][k], b[k][2 * (lane % 4) + i], d[i]);
    }
  }
}

struct MatrixMove {
  int count;
  bool transposed;
};

/// Moves element pairs between lanes' registers and rows in shared memory.
template <bool kLoads>
void run_matrix_move(Warp& warp, uint32_t) {
  const MatrixMove move = *static_cast<const MatrixMove*>(warp.lanes[0].pointers[2]);
  for (int j = 0; j < move.count; ++j) {
    char* rows[8];
    for (int r = 0; r < 8; ++r) {
      Thread& thread = warp.lanes[8 * j + r];
      rows[r] = static_cast<char*>(thread.pointers[1]);
      access_memory(thread, rows[r], 16, 16, kLoads ? Access::read : Access::write, thread.site);
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      auto* registers = static_cast<char*>(warp.lanes[lane].pointers[0]) + 4 * j;
      for (int half = 0; half < 2; ++half) {
        int row = lane / 4, col = 2 * (lane % 4) + half;
        if (move.transposed) std::swap(row, col);
        char* const element = rows[row] + 2 * col;
        if (kLoads) {
          std::memcpy(registers + 2 * half, element, 2);
        } else {
          std::memcpy(element, registers + 2 * half, 2);
        }
      }
    }
  }
}

// Warpgroups.

WarpgroupQueue& warpgroup(const char* operation, const Site& site) {
  Block& block = *current->block;
  const size_t index = current->linear / kWarpgroupThreads;
  if (block.threads.size() < (index + 1) * kWarpgroupThreads) {
    fail_kernel(fmt::format("{}: the last {} threads of a block are no warpgroup of {}", operation,
                            block.threads.size() % kWarpgroupThreads, kWarpgroupThreads),
                site);
  }
  block.warpgroups.resize(std::max(block.warpgroups.size(), index + 1));
  if (!block.warpgroups[index]) block.warpgroups[index] = std::make_shared<WarpgroupQueue>();
  return *block.warpgroups[index];
}

/// Waits until all threads of the warpgroup have arrived at the operation; the last one, for which
/// this returns true, acts for all and calls leave().
bool meet_warpgroup(WarpgroupQueue& queue, const char* operation, const Site& site) {
  if (queue.arrived.empty()) {
    queue.operation = operation;
    queue.site = site;
  } else if (std::strcmp(queue.operation, operation) != 0 || queue.site.line() != site.line()) {
    fail_kernel(fmt::format("divergent collective: {} is at {}, {} threads of its warpgroup are at "
                            "{} ({})",
                            describe(*current), operation, queue.arrived.size(), queue.operation,
                            to_string(queue.site)),
                site);
  }
  queue.arrived.push_back(current);
  if (queue.arrived.size() == kWarpgroupThreads) return true;
  wait(operation, site);
  return false;
}

void leave(WarpgroupQueue& queue) {
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
        mn_major(is_mn_major),
        element_bytes(bytes) {
    // 1 is 128 bytes, 3 is 32.
    swizzle = static_cast<Swizzle>((4 - (descriptor >> 62)) & 3);
  }

  /// Where the element (r of M or N, k) lies.
  char* at(int r, int k) const {
    const int es = element_bytes;
    const int per_16 = 16 / es;
    const int kb = k * es;
    const int width = 16 << static_cast<int>(swizzle);
    uint32_t offset = 0;
    if (!mn_major && swizzle == Swizzle::none) {
      offset = r / 8 * stride + r % 8 * 16 + kb / 16 * leading + kb % 16;
    } else if (!mn_major) {
      offset = r / 8 * stride + r % 8 * width + kb;
    } else if (swizzle == Swizzle::none) {
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
        access_memory(agent, at(r, l), 16, 16, Access::read);
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
      fail_kernel("wgmma: the threads of a warpgroup give different descriptors", site);
    }
  }
  if (is_refused(arguments.b_descriptor) ||
      (!has_registers && is_refused(arguments.a_descriptor))) {
    fail_kernel(
        "wgmma: a descriptor with a base offset is not supported: align tiles to the "
        "swizzle's atom of 8 rows",
        site);
  }
  if (op.a_type != op.b_type && (bytes != 1 || info(op.b_type).bytes != 1)) {
    fail_kernel(fmt::format("wgmma: there is none of {} and {}", info(op.a_type).name,
                            info(op.b_type).name),
                site);
  }
  if ((op.a_mn_major || op.b_mn_major) && bytes != 2) {
    fail_kernel("wgmma: only 16-bit elements may be M- or N-major", site);
  }
  if (op.n < 8 || op.n > 256 || op.n % 8 != 0) {
    fail_kernel(fmt::format("wgmma: n = {}, expected a multiple of 8 up to 256", op.n), site);
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
    if (queue.open.agents.empty()) {
      const int slot = s.next_pool_agent++ % kPoolAgents;
      s.pool_clocks[slot] = next_clock(s.pool_clocks[slot]);
      queue.open.agents.emplace_back(2 * s.n_threads + slot, s.pool_clocks[slot]);
    }
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
    for (int i = 0; i < 64 * k / kWarpgroupThreads; ++i) {
      const Position p = a_position(t % kWarpSize, i, bytes, k);
      a_values[(16 * (t / kWarpSize) + p.row) * k + p.col] =
          widen(op.a_type, registers + i * bytes);
    }
  }
  const bool is_eager = s.options.completion == Completion::eager;
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
    multiply({op.a_type, op.b_type}, 64, op.n, k, left.data(), right.data(), sums.data());
    for (int t = 0; t < kWarpgroupThreads; ++t) {
      for (int i = 0; i < floats; ++i) {
        const Position p = accumulator_position(t, i);
        values(t)[i] = sums[p.row * op.n + p.col];
      }
    }
  };
  if (is_eager) {
    operation.run();
    operation.run = nullptr;
  }
  queue.open.operations.push_back(std::move(operation));
}

/// The group's results become visible to its threads.
void finish(WarpgroupQueue& queue, WarpgroupQueue::Group& group,
            const std::vector<WarpgroupQueue::Group>& later) {
  for (WarpgroupQueue::Operation& operation : group.operations) {
    if (operation.run) operation.run();
  }
  const auto is_used_later = [&](float* d) {
    const auto uses = [&](const WarpgroupQueue::Group& other) {
      return std::any_of(other.operations.begin(), other.operations.end(), [&](const auto& o) {
        return o.run &&
               std::find(o.accumulators.begin(), o.accumulators.end(), d) != o.accumulators.end();
      });
    };
    return std::any_of(later.begin(), later.end(), uses) || uses(queue.open);
  };
  for (WarpgroupQueue::Operation& operation : group.operations) {
    operation.run = nullptr;
    for (float* d : operation.accumulators) {
      const auto held = queue.held.find(d);
      if (held == queue.held.end() || is_used_later(d)) continue;
      std::copy(held->second.begin(), held->second.end(), d);
      queue.held.erase(held);
    }
  }
}

}  // namespace

void mma_sync(MatrixType type, int k, float* d, const uint32_t* a, const uint32_t* b,
              const Site& site) {
  struct Kind {
    MatrixType type;
    int k;
    const char* name;
    WarpFunction run;
  };
  static constexpr Kind kKinds[] = {
      {MatrixType::f16, 16, "mma.m16n8k16.f16", run_mma<MatrixType::f16, 16>},
      {MatrixType::f16, 8, "mma.m16n8k8.f16", run_mma<MatrixType::f16, 8>},
      {MatrixType::bf16, 16, "mma.m16n8k16.bf16", run_mma<MatrixType::bf16, 16>},
      {MatrixType::bf16, 8, "mma.m16n8k8.bf16", run_mma<MatrixType::bf16, 8>},
      {MatrixType::tf32, 8, "mma.m16n8k8.tf32", run_mma<MatrixType::tf32, 8>},
      {MatrixType::tf32, 4, "mma.m16n8k4.tf32", run_mma<MatrixType::tf32, 4>},
      {MatrixType::e4m3, 32, "mma.m16n8k32.e4m3", run_mma<MatrixType::e4m3, 32>},
      {MatrixType::e5m2, 32, "mma.m16n8k32.e5m2", run_mma<MatrixType::e5m2, 32>},
  };
  for (const Kind& kind : kKinds) {
    if (kind.type != type || kind.k != k) continue;
    Thread& self = *current;
    self.pointers[0] = d;
    self.pointers[1] = const_cast<uint32_t*>(a);
    self.pointers[2] = const_cast<uint32_t*>(b);
    meet(kFullMask, kind.name, site, kind.run);
    return;
  }
  fail_kernel(fmt::format("mma.sync: there is no m16n8k{} of {}", k, info(type).name), site);
}

void mma_sync_f64(double* d, double a, double b, const Site& site) {
  current->pointers[0] = d;
  current->in = std::bit_cast<uint64_t>(a);
  current->out = std::bit_cast<uint64_t>(b);
  meet(kFullMask, "mma.m8n8k4.f64", site, run_mma_f64);
}

void ldmatrix(int count, bool transposed, uint32_t* registers, const void* row, const Site& site) {
  const MatrixMove move{count, transposed};
  current->pointers[0] = registers;
  current->pointers[1] = const_cast<void*>(row);
  current->pointers[2] = const_cast<MatrixMove*>(&move);
  current->site = site;
  meet(kFullMask, "ldmatrix", site, run_matrix_move<true>);
}

void stmatrix(int count, bool transposed, const uint32_t* registers, void* row, const Site& site) {
  const MatrixMove move{count, transposed};
  current->pointers[0] = const_cast<uint32_t*>(registers);
  current->pointers[1] = row;
  current->pointers[2] = const_cast<MatrixMove*>(&move);
  current->site = site;
  meet(kFullMask, "stmatrix", site, run_matrix_move<false>);
}

void wgmma(const Wgmma& operation, float* d, const uint32_t* a, uint64_t a_descriptor,
           uint64_t b_descriptor, const Site& site) {
  WarpgroupQueue& queue = warpgroup("wgmma", site);
  const WgmmaArguments arguments{&operation, a_descriptor, b_descriptor};
  current->pointers[0] = d;
  current->pointers[1] = const_cast<uint32_t*>(a);
  current->pointers[2] = const_cast<WgmmaArguments*>(&arguments);
  if (!meet_warpgroup(queue, "wgmma", site)) return;
  issue_wgmma(queue, site);
  leave(queue);
}

void wgmma_fence(const Site& site) {
  WarpgroupQueue& queue = warpgroup("wgmma.fence", site);
  if (!meet_warpgroup(queue, "wgmma.fence", site)) return;
  queue.is_fenced = true;
  leave(queue);
}

void wgmma_commit(const Site& site) {
  WarpgroupQueue& queue = warpgroup("wgmma.commit_group", site);
  if (!meet_warpgroup(queue, "wgmma.commit_group", site)) return;
  queue.committed.push_back(std::exchange(queue.open, {}));
  leave(queue);
}

void wgmma_wait(int pending, const Site& site) {
  WarpgroupQueue& queue = warpgroup("wgmma.wait_group", site);
  if (!meet_warpgroup(queue, "wgmma.wait_group", site)) return;
  while (queue.committed.size() > static_cast<size_t>(pending)) {
    WarpgroupQueue::Group group = std::move(queue.committed.front());
    queue.committed.erase(queue.committed.begin());
    finish(queue, group, queue.committed);
    for (int t = 0; state().watches() && t < kWarpgroupThreads; ++t) {
      for (const auto& [agent, clock] : group.agents) {
        learn(member(t), with_event(member(t).known, agent, clock));
      }
    }
  }
  // Accumulators that a later group still works on stay out of bounds.
  for (int t = 0; t < kWarpgroupThreads; ++t) {
    Thread& thread = member(t);
    thread.in_flight.clear();
    for (const WarpgroupQueue::Group& group : queue.committed) {
      for (const auto& operation : group.operations) {
        thread.in_flight.emplace_back(operation.accumulators[t],
                                      operation.accumulators[t] + operation.floats);
      }
    }
  }
  queue.is_fenced = false;
  leave(queue);
}

void set_max_registers(int count, bool increases, const Site& site) {
  if (count % 8 != 0 || count < 24 || count > 256) {
    fail_kernel(fmt::format("setmaxnreg {}: expected a multiple of 8 from 24 to 256", count), site);
  }
  WarpgroupQueue& queue = warpgroup("setmaxnreg", site);
  if (!meet_warpgroup(queue, increases ? "setmaxnreg.inc" : "setmaxnreg.dec", site)) return;
  queue.registers = count;
  int total = 0;
  for (const auto& other : current->block->warpgroups) {
    if (other) total += other->registers * kWarpgroupThreads;
  }
  if (total > kRegistersPerMultiprocessor) {
    fail_kernel(fmt::format("setmaxnreg {}: the block's warpgroups would hold {} registers, a "
                            "multiprocessor has {}",
                            count, total, kRegistersPerMultiprocessor),
                site);
  }
  leave(queue);
}

void check_registers(const Thread& thread, const void* address, size_t bytes, Place place) {
  for (const auto& [begin, end] : thread.in_flight) {
    if (static_cast<const char*>(address) + bytes <= reinterpret_cast<const char*>(begin) ||
        static_cast<const char*>(address) >= reinterpret_cast<const char*>(end)) {
      continue;
    }
    report(fmt::format("wgmma_wait {}", place),
           fmt::format("missing wgmma_wait: {} touches at {} an accumulator that a wgmma in flight "
                       "works on",
                       describe(thread), to_string(place)));
    return;
  }
}

uint32_t shared_address(const void* address) {
  return static_cast<uint32_t>(state().workspace.offset_of(address) % kArenaBytes);
}

}  // namespace weft::simt
