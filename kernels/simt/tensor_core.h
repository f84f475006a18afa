// Matrix instructions: mma.sync, ldmatrix and stmatrix of a warp, wgmma of a warpgroup.
//
// Fragment layouts are those of the PTX ISA ("Matrix Fragments for mma", "Register Fragments and
// Shared Memory Matrix Layouts for wgmma"). Sums are in f32: in the order of K with four partial
// sums, or as a GPU's tensor cores make them (Options::tensor_core, numerics/tensor_core.h). fp8 is
// never summed in f32: an H100 keeps 13 bits of such sums, and kernels must cope.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "kernels/simt/async.h"
#include "kernels/simt/emulator.h"

namespace weft::simt {

enum class MatrixType : uint8_t { f16, bf16, tf32, e4m3, e5m2 };

/// d += a b for m16n8kK, K elements of `type`; d has 4 floats, a 4 or 2 and b 2 or 1 registers.
void mma_sync(MatrixType type, int k, float* d, const uint32_t* a, const uint32_t* b,
              const Site& site);

/// `count` (1, 2, 4) 8x8 matrices of 16-bit elements; lanes 8j..8j+7 give the rows of matrix j.
void ldmatrix(int count, bool transposed, uint32_t* registers, const void* row, const Site& site);
void stmatrix(int count, bool transposed, const uint32_t* registers, void* row, const Site& site);

/// wgmma.mma_async.m64nNkK. A's register form has `a`, the other a descriptor. The types are equal,
/// or both fp8.
struct Wgmma {
  MatrixType a_type = MatrixType::bf16, b_type = MatrixType::bf16;
  int n = 0;
  bool accumulate = true;  // scale-d
  bool a_mn_major = false, b_mn_major = false;
};
void wgmma(const Wgmma& operation, float* d, const uint32_t* a, uint64_t a_descriptor,
           uint64_t b_descriptor, const Site& site);
void wgmma_fence(const Site& site);
void wgmma_commit(const Site& site);
void wgmma_wait(int pending, const Site& site);
/// setmaxnreg: the whole warpgroup takes or gives back registers.
void set_max_registers(int count, bool increases, const Site& site);

/// The shared address of a generic one, as descriptors hold it.
uint32_t shared_address(const void* address);

/// A warpgroup's matrix products in flight.
struct WarpgroupQueue {
  struct Operation {
    std::function<void()> run;
    std::vector<float*> accumulators;                 // one array per thread
    size_t floats = 0;                                // in each
    std::vector<std::pair<float*, float*>> operands;  // a in registers: of each thread
  };
  struct Group {
    std::vector<Operation> operations;
    std::vector<std::pair<int, Clock>> agents;
  };
  // The threads that have reached a warpgroup's operation.
  const char* operation = nullptr;
  Site site;
  std::vector<Thread*> arrived;

  Group open;
  std::vector<Group> committed;
  /// Accumulators of operations that have not taken effect: their values, by where they belong.
  std::map<float*, std::vector<float>> held;
  int registers = 0;  // per thread, once setmaxnreg has said
  bool is_fenced = false;
};

}  // namespace weft::simt
