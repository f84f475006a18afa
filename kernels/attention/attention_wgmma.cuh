// What Hopper's kernels of attention share: the problem, its tensor maps, and scores as left
// operands.
#pragma once

#include "kernels/attention/attention_mma.cuh"
#include "kernels/device/copy_async.h"
#include "kernels/device/warpgroup.cuh"
#include "kernels/device/wgmma.h"

namespace weft::kernels::wgmma_attention {

inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroupThreads;
inline constexpr int kRows = 64;                                     // of a consumer
inline constexpr int kBothThreads = kConsumers * kWarpgroupThreads;  // of the consumers
inline constexpr int kBoxColumns = kLine / 2;                        // 16-bit elements

/// Boxes of a tile of tokens, which lie one after the other.
constexpr int boxes_of(int width) { return (width + kBoxColumns - 1) / kBoxColumns; }

/// A mask as the kernels address it: bytes from one to the next, between queries and keys in 32
/// bits (attention_fits_wgmma).
struct MaskBytes {
  const char* elements = nullptr;
  bool is_added = false;
  int64_t batch = 0, head = 0;
  int query = 0, key = 0;

  explicit MaskBytes(const AttentionProblem& p) {
    if (!p.mask.defined()) return;
    const auto bytes = [&](int d) {
      return p.mask.stride(d) * static_cast<int64_t>(p.mask.itemsize());
    };
    elements = static_cast<const char*>(p.mask.raw());
    is_added = p.mask.dtype() != DType::boolean;
    batch = bytes(0);
    head = bytes(1);
    query = static_cast<int>(bytes(2));
    key = static_cast<int>(bytes(3));
  }
  __device__ __forceinline__ const char* of(const Pair& pair) const {
    return elements + reread_number(pair.b) * batch + reread_number(pair.h) * head;
  }
  /// Calls f with an element: its type decides what becomes of a score.
  template <class F>
  __device__ __forceinline__ void with_element(F f) const {
    is_added ? f(float()) : f(uint8_t());
  }
};

/// The score of a product before scale and mask, both of which are in powers of 2 then.
__device__ __forceinline__ float masked(float product, float scale, float added) {
  // The operands are replaced, not the sum: that takes a register more than there is.
  if (added <= static_cast<float>(kLeastAdded) && added != -INFINITY) {
    product = 0;
    added = static_cast<float>(kMaskedScore);
  }
  return std::fma(product, scale, added * kLog2E);
}
__device__ __forceinline__ float masked(float product, float scale, uint8_t sees) {
  return sees ? product * scale : -INFINITY;
}

struct Arguments : MmaAttention {
  MaskBytes mask;

  Arguments(const AttentionProblem& p, const Tensor& delta) : MmaAttention(p, delta), mask(p) {}
};

template <class Type>
using Narrow = std::conditional_t<std::is_same_v<Type, ptx::Bf16>, bf16, f16>;

/// A consumer's scores, 64 rows by 16 kSteps columns, as left operands of kSteps products.
template <class Type, int kSteps>
__device__ __forceinline__ void round_scores(uint32_t (&operands)[kSteps][4],
                                             const float (&scores)[8 * kSteps]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) {
    const float x = scores[2 * i], y = scores[2 * i + 1];
    operands[i / 4][i % 4] =
        std::is_same_v<Type, ptx::Bf16> ? ptx::cvt_rn_bf16x2(x, y) : ptx::cvt_rn_f16x2(x, y);
  }
}

/// A map of [B, H, T, D] with boxes of 64 columns of `rows` tokens.
inline TensorMap heads_map(const Tensor& t, int rows) {
  TensorMapSpec spec{.base = t.raw(),
                     .dtype = t.dtype(),
                     .rank = 4,
                     .box = {kBoxColumns, static_cast<uint32_t>(rows), 1, 1},
                     .swizzle = TmaSwizzle::kBytes128};
  for (int d = 0; d < 4; ++d) spec.dims[d] = static_cast<uint64_t>(t.size(3 - d));
  for (int d = 0; d < 3; ++d) {
    // The stride of a dimension of one element is never used.
    spec.strides[d] =
        t.size(2 - d) == 1 ? 16 : static_cast<uint64_t>(t.stride(2 - d)) * t.itemsize();
  }
  return make_tensor_map(spec);
}

/// Starts the copies of the boxes of a tile of tokens first.. of a head, `box_bytes` each.
template <int kBoxes>
__device__ __forceinline__ void load_boxes(char* tile, int box_bytes, const TensorMap& map,
                                           uint64_t* full, int first, int head, int batch) {
  for (int box = 0; box < kBoxes; ++box) {
    ptx::tma_load_4d(tile + box * box_bytes, &map, full, box * kBoxColumns, first, head, batch);
  }
}

/// Starts the stores of 64 rows of boxes of a tile, to the tensor's from first_box on.
template <int kBoxes>
__device__ __forceinline__ void store_boxes(const TensorMap& map, const char* rows, int box_bytes,
                                            int first, int head, int batch, int first_box = 0) {
  for (int box = 0; box < kBoxes; ++box) {
    ptx::tma_store_4d(&map, rows + box * box_bytes, (first_box + box) * kBoxColumns, first, head,
                      batch);
  }
}

/// The grid of a persistent kernel.
inline unsigned blocks_for(int64_t tiles, Device device) {
  return static_cast<unsigned>(
      std::min<int64_t>(runtime::limits(device.index).multiprocessors, tiles));
}

}  // namespace weft::kernels::wgmma_attention
