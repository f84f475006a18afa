// What Hopper's matrix product and attention must be compiled to: kernels without spills, as many
// wgmma a step as the tile has, registers moved to the consumers; a GELU of at most 28 instructions
// an element, a softmax of at most 12 a score of heads of up to 128 columns, 30 under a mask.
#include <catch2/catch.hpp>

#include "cli/kernels/kernel_sass.h"
#include "tests/skip.h"

using namespace weft::cli;

namespace {

int in_pipe(const CodeLoop& loop, Pipe pipe) { return loop.mix[static_cast<size_t>(pipe)]; }

}  // namespace

TEST_CASE("gemm_cuda_wgmma's machine code keeps its promises") {
  if (find_cuda_tool("nvcc").empty()) WEFT_SKIP("nvcc is not installed");
  if (find_cuda_tool("nvdisasm").empty()) WEFT_SKIP("nvdisasm is not installed");
  constexpr double kMostPerGelu = 28;
  int kernels = 0;
  for (const KernelCode& kernel : compile_kernels("kernels/gemm/gemm_cuda_wgmma.cu", "h100", ".")) {
    if (!kernel.name.starts_with("gemm_wgmma_kernel")) continue;
    ++kernels;
    INFO(kernel.name);
    CHECK(kernel.spilled_bytes == 0);
    CHECK(kernel.registers == 168);
    CHECK(kernel.most_registers == 232);
    // Its last argument: how consumers share tiles; else than by halves each has two blocks of 64
    // rows. A GELU is written out for each block, and for both halves of 256 columns.
    const int row_blocks = kernel.name.ends_with("(Sharing)0>") ? 1 : 2;
    const int parts = kernel.name.find(", 256, ") != std::string::npos ? 2 : row_blocks;
    const bool is_tf32 = kernel.name.find("Tf32") != std::string::npos;
    int of_products = 0, of_gelus = 0;
    for (const CodeLoop& loop : kernel.loops) {
      INFO("loop at " << loop.begin);
      CHECK(in_pipe(loop, Pipe::kLocal) == 0);
      if (in_pipe(loop, Pipe::kTensor) > 0 && loop.depth > 0) {
        ++of_products;
        CHECK(in_pipe(loop, Pipe::kTensor) == 4 * row_blocks);
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
    CHECK(of_gelus == (is_tf32 ? 0 : 2 * parts));
  }
  // Of bf16, f16 and tf32, the last K-major and by halves alone.
  CHECK(kernels == 2 * 4 * 5 + 3);
}

namespace {

/// What a file's kernels of one name promise. Instructions for each score of a step along the
/// tokens are those of its loop, masks of the last tile included; heads of more than widest_narrow
/// columns have more of them for their sums. Those of masks count the code of both kinds.
struct AttentionPromise {
  const char *file, *kernel;
  int kernels, most_registers;
  int widest_narrow;
  double most_per_score, most_per_wide_score;
  double most_per_masked_score, most_per_wide_masked_score;  // or with dropout
  // Under a mask with dropout, whose lanes tell one another what they have drawn.
  double most_per_masked_dropped_score, most_per_wide_masked_dropped_score;
  // With dropout alone, and all that is drawn for it: of 32 scores in nine rounds at most.
  double most_per_dropped_score, most_per_wide_dropped_score;
};
constexpr int kMostDraws = 9;

}  // namespace

TEST_CASE("Hopper's attention's machine code keeps its promises") {
  if (find_cuda_tool("nvcc").empty()) WEFT_SKIP("nvcc is not installed");
  if (find_cuda_tool("nvdisasm").empty()) WEFT_SKIP("nvdisasm is not installed");
  const AttentionPromise promise = GENERATE(
      AttentionPromise{"kernels/attention/attention_cuda_wgmma.cu", "attention_wgmma_kernel<", 42,
                       240, 128, 12, 17, 30, 34, 32, 36, 50, 55},
      AttentionPromise{"kernels/attention/attention_cuda_wgmma_backward.cu",
                       "attention_wgmma_backward_kernel<", 24, 240, 64, 17, 26, 40, 50, 43, 53, 80,
                       100});
  int kernels = 0;
  for (const KernelCode& kernel : compile_kernels(promise.file, "h100", ".")) {
    if (!kernel.name.starts_with(promise.kernel)) continue;
    ++kernels;
    INFO(kernel.name);
    CHECK(kernel.spilled_bytes == 0);
    CHECK(kernel.registers == 168);
    CHECK(kernel.most_registers == promise.most_registers);
    const CodeLoop* step = nullptr;  // the loop along the tokens; around it is one along tiles
    for (const CodeLoop& loop : kernel.loops) {
      INFO("loop at " << loop.begin);
      CHECK(in_pipe(loop, Pipe::kLocal) == 0);
      CHECK(in_pipe(loop, Pipe::kDouble) == 0);
      if (in_pipe(loop, Pipe::kTensor) == 0 || loop.exponentials == 0) continue;
      if (!step || loop.per_exponential() < step->per_exponential()) step = &loop;
    }
    REQUIRE(step);
    CHECK(step->calls == 0);
    const bool is_masked = kernel.name.find("true") != std::string::npos;
    const int width = std::stoi(kernel.name.substr(kernel.name.find(", ") + 2));
    const bool is_wide = width > promise.widest_narrow;
    const bool is_both = kernel.name.ends_with("true, true>");
    const double most = is_both     ? promise.most_per_masked_dropped_score
                        : is_masked ? promise.most_per_masked_score
                                    : promise.most_per_score;
    const double most_of_wide = is_both     ? promise.most_per_wide_masked_dropped_score
                                : is_masked ? promise.most_per_wide_masked_score
                                            : promise.most_per_wide_score;
    CHECK(step->per_exponential() <= (is_wide ? most_of_wide : most));
    if (!kernel.name.ends_with("false, true>")) continue;
    int with_draws = step->instructions;
    for (const CodeLoop& loop : kernel.loops) {
      if (loop.begin <= step->begin || loop.end >= step->end) continue;
      if (in_pipe(loop, Pipe::kTensor) > 0) continue;  // of the gradient of queries
      with_draws += kMostDraws * loop.instructions;
    }
    CHECK(static_cast<double>(with_draws) / step->exponentials <=
          (is_wide ? promise.most_per_wide_dropped_score : promise.most_per_dropped_score));
  }
  CHECK(kernels == promise.kernels);
}
