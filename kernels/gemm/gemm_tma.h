// Which operands the tensor-core kernels of gemm take, and cuBLASLt.
#pragma once

#include <optional>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tiling.h"

namespace weft::kernels {

/// A matrix [..., rows, columns] as TMA addresses it: `lines` of `length` elements without gaps,
/// rows, or columns when is_transposed; and one batch dimension.
struct TmaMatrix {
  const void* base = nullptr;
  int64_t length = 0, lines = 0, batches = 1;
  int64_t line_bytes = 0, batch_bytes = 0;
  bool is_transposed = false;
};

/// Nothing when TMA cannot: no dimension of unit stride, addresses or strides that are not
/// multiples of 16 bytes, batch dimensions that are not one. batches is 1 for a matrix repeated
/// over its batch.
std::optional<TmaMatrix> tma_matrix(const Tensor& t);

/// x [..., lines, K] with each line in one piece, at multiples of 16 bytes: x itself or a copy,
/// that the log tells of; of a matrix that is repeated over the batch, of that one. What wgmma
/// takes of fp8 and tf32.
Tensor k_major(const Tensor& x, const char* variant, const char* operand);

/// Whether lines, of rows or of columns, are dense and begin at multiples of 16 bytes.
bool fits_16_byte_copies(const Tensor& t);
/// Whether the lines that it speaks of run along the last dimension but one.
bool has_transposed_lines(const Tensor& t);
/// Have a and b a dense dimension each? The condition of gemm_cuda_mma.
bool gemm_fits_mma(const GemmProblem& problem);
/// The condition of gemm_cuda_wgmma, on a device of capability 9.0: 16-bit operands that TMA can
/// address; f32 ones that TF32 stands for, truncated, where copies that bring them along K, in
/// lines that TMA can address, pay.
bool gemm_fits_wgmma(const GemmProblem& problem);
/// The tile that gemm_cuda_wgmma takes in this thread, at first what costs least. For tests of
/// each, and tuning.
ForcedTile& forced_wgmma_tile();
inline constexpr int kWgmmaTileColumns[] = {768, 384, 256, 192, 128};
/// The condition of gemm_cuda_wgmma_fp8, which copies what TMA cannot address: capability 9.0;
/// ieee, or operands of one format under h100, whose bits that device's tensor cores give.
bool gemm_fits_wgmma_fp8(const GemmProblem& problem);
/// The condition of gemm_cublas: no GELU, a dense dimension in every matrix, one stride for the
/// batch, a bias of C's dtype, a result that is rounded once; and the library was found.
bool gemm_fits_cublas(const GemmProblem& problem);

}  // namespace weft::kernels
