#include "kernels/simt/tensor_core.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/simt/matrix_unit.h"
#include "kernels/simt/watch.h"
#include "numerics/tensor_core.h"

namespace weft::simt {
namespace {

/// How a GPU, or an H100 in its place, multiplies operands of these types.
numerics::TensorCoreModel model_of(std::string_view gpu, Instruction instruction,
                                   OperandTypes types) {
  const DType input = info(types.a).dtype;
  const bool has_it =
      instruction == Instruction::kMma && !gpu.empty() && numerics::tensor_core_takes(gpu, input);
  numerics::TensorCoreModel model = numerics::tensor_core_model(has_it ? gpu : "h100", input);
  if (types.a != types.b) model.input = DType::f16;  // of two fp8 formats: f16 holds both
  return model;
}

enum class Row : uint8_t { kZero, kFinite, kSpecial };

/// What each row holds at most.
std::vector<Row> kinds_of_rows(const float* x, int rows, int k) {
  std::vector<Row> kinds(rows, Row::kZero);
  for (int i = 0; i < rows * k; ++i) {
    Row& kind = kinds[i / k];
    if (x[i] != 0) kind = std::max(kind, std::isfinite(x[i]) ? Row::kFinite : Row::kSpecial);
  }
  return kinds;
}

/// Each sum by the model but those of a tile's tail, which are zero.
void multiply_exactly(const numerics::TensorCoreModel& model, int m, int n, int k, const float* a,
                      const float* b, float* d) {
  const auto terms = static_cast<size_t>(k);
  const std::vector<Row> kinds_a = kinds_of_rows(a, m, k), kinds_b = kinds_of_rows(b, n, k);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float& sum = d[i * n + j];
      const auto [least, most] = std::minmax(kinds_a[i], kinds_b[j]);
      if (sum == 0 && least == Row::kZero && most != Row::kSpecial) {
        sum = 0;
      } else {
        sum = numerics::tensor_core_dot(model, {a + i * k, terms}, {b + j * k, terms}, sum);
      }
    }
  }
}

template <MatrixType kType, int kK>
void run_mma(Warp& warp, uint32_t) {
  constexpr int kBytes = info(kType).bytes;
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
  multiply(Instruction::kMma, {kType, kType}, 16, 8, kK, a[0], b[0], d[0]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    auto* da = static_cast<float*>(warp.lanes[lane].pointers[0]);
    for (int i = 0; i < 4; ++i) da[i] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
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
      access_memory(thread, rows[r], 16, 16, kLoads ? Access::kRead : Access::kWrite, thread.site);
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

}  // namespace

void multiply(Instruction instruction, OperandTypes types, int m, int n, int k, const float* a,
              const float* b, float* d) {
  const std::string_view gpu = state().options.tensor_core;
  if (!gpu.empty() || info(types.a).bytes == 1) {
    return multiply_exactly(model_of(gpu, instruction, types), m, n, k, a, b, d);
  }
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
  fail_kernel(site, "mma.sync: there is no m16n8k{} of {}", k, info(type).name);
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

uint32_t shared_address(const void* address) {
  return static_cast<uint32_t>(state().workspace.offset_of(address) % kArenaBytes);
}

}  // namespace weft::simt
