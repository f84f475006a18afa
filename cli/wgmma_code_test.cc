// What Hopper's matrix product must be compiled to: all its 24 kernels without spills, four wgmma a
// step of K, registers moved to the consumers, and a GELU of at most 40 instructions an element.
#include <catch2/catch.hpp>

#include "cli/kernel_sass.h"
#include "tests/skip.h"

using namespace weft::cli;

namespace {

int in_pipe(const CodeLoop& loop, Pipe pipe) { return loop.mix[static_cast<size_t>(pipe)]; }

}  // namespace

TEST_CASE("gemm_cuda_wgmma's machine code keeps its promises") {
  if (find_cuda_tool("nvcc").empty()) WEFT_SKIP("nvcc is not installed");
  if (find_cuda_tool("nvdisasm").empty()) WEFT_SKIP("nvdisasm is not installed");
  constexpr double kMostPerGelu = 40;
  int kernels = 0;
  for (const KernelCode& kernel : compile_kernels("kernels/gemm/gemm_cuda_wgmma.cu", "h100", ".")) {
    if (!kernel.name.starts_with("gemm_wgmma_kernel")) continue;
    ++kernels;
    INFO(kernel.name);
    CHECK(kernel.spilled_bytes == 0);
    CHECK(kernel.registers == 168);
    CHECK(kernel.most_registers == 232);
    int of_products = 0, of_gelus = 0;
    for (const CodeLoop& loop : kernel.loops) {
      INFO("loop at " << loop.begin);
      CHECK(in_pipe(loop, Pipe::kLocal) == 0);
      if (in_pipe(loop, Pipe::kTensor) > 0 && loop.depth > 0) {
        ++of_products;
        CHECK(in_pipe(loop, Pipe::kTensor) == 4);
        CHECK(loop.calls == 0);
      }
      // Eights of 16-bit elements; the others are those of f32.
      if (loop.exponentials < 16 || loop.per_exponential() > 100) continue;
      ++of_gelus;
      CHECK(loop.per_exponential() <= kMostPerGelu);
      CHECK(loop.calls == 0);
      CHECK(in_pipe(loop, Pipe::kDouble) == 0);
    }
    CHECK(of_products == 1);
    CHECK(of_gelus == 2);
  }
  CHECK(kernels == 24);
}
