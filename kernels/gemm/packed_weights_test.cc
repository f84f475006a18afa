// Products that read B from a kept copy have the bits of those that do not.
#include "kernels/gemm/packed_weights.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "core/allocator.h"
#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/onednn_matmul.h"

namespace weft::kernels {
namespace {

Tensor sequence(const Shape& shape, DType dtype, int64_t seed) {
  Tensor result = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < result.numel(); ++i) {
    const float value = static_cast<float>((i + seed) * 2654435761u % 1000) / 500.0f - 1.0f;
    if (dtype == DType::f32) {
      result.data<float>()[i] = value;
    } else {
      result.data<bf16>()[i] = bf16(value);
    }
  }
  return result;
}

Tensor product(const Tensor& x, const Tensor& weight, bool is_transposed) {
  const Tensor y =
      Tensor::empty({x.size(0), is_transposed ? weight.size(0) : weight.size(1)}, x.dtype());
  gemm({.a = x, .b = is_transposed ? view::transpose(weight, 0, 1) : weight, .c = y});
  return y;
}

bool is_same(const Tensor& x, const Tensor& y) {
  return std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

bool multiplies_bf16() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

int64_t live_bytes() { return static_cast<int64_t>(allocator(Device{}).stats().live); }

}  // namespace

TEST_CASE("packed weights: the same bits, and one copy") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t rows : {1, 5, 197, 700, 1600}) {
      for (const bool is_transposed : {false, true}) {
        CAPTURE(name(dtype), rows, is_transposed);
        const Tensor x = sequence({rows, 192}, dtype, 1), weight = sequence({192, 192}, dtype, 5);
        const Tensor expected = product(x, weight, is_transposed);
        const int64_t before = live_bytes();
        const auto weight_bytes = static_cast<int64_t>(weight.nbytes());
        {
          const PackedWeights packed;
          for (int i = 0; i < 3; ++i) CHECK(is_same(product(x, weight, is_transposed), expected));
          const int64_t kept = live_bytes() - before;
          CHECK(kept <= 2 * weight_bytes);
          // bf16 has a layout of its own only where the processor multiplies it.
          const bool has_layout = onednn_has_bf16() && (dtype == DType::f32 || multiplies_bf16());
          if (rows == 197 && has_layout) CHECK(kept >= weight_bytes);
        }
        CHECK(live_bytes() == before);
      }
    }
  }
}

TEST_CASE("packed weights: a changed weight is packed anew, a lost one let go") {
  const PackedWeights packed;
  const Tensor x = sequence({197, 192}, DType::f32, 1);
  Tensor weight = sequence({192, 192}, DType::f32, 5);
  const auto check = [&] {
    const Tensor fresh = Tensor::empty(weight.shape(), weight.dtype());
    std::memcpy(fresh.raw(), weight.raw(), weight.nbytes());
    const Tensor expected = product(x, fresh, true);
    for (int i = 0; i < 3; ++i) CHECK(is_same(product(x, weight, true), expected));
  };
  check();
  weight.data<float>()[7] = 100;
  weight.bump_version();
  check();
  const int64_t before = live_bytes();
  weight = {};
  product(x, sequence({192, 192}, DType::f32, 9), true);
  CHECK(live_bytes() < before);
}

}  // namespace weft::kernels
