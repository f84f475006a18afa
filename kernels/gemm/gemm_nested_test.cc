// gemm called from inside a parallel region gives the bits it gives outside.
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "core/view.h"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

Tensor sequence(const Shape& shape, DType dtype) {
  std::vector<float> values(numel(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 2654435761u) % 1000) / 500.0f - 1.0f;
  }
  if (dtype == DType::f32) return Tensor::from(values, shape);
  Tensor result = Tensor::empty(shape, dtype);
  for (size_t i = 0; i < values.size(); ++i) result.data<bf16>()[i] = bf16(values[i]);
  return result;
}

void check_nested(const Tensor& a, const Tensor& b, const Shape& c_shape) {
  constexpr int kCalls = 4;
  std::vector<Tensor> results;
  for (int i = 0; i <= kCalls; ++i) results.push_back(Tensor::zeros(c_shape, a.dtype()));
  gemm({.a = a, .b = b, .c = results[kCalls]});
  const int threads = num_threads();
  set_num_threads(3);
  parallel_for(kCalls, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) gemm({.a = a, .b = b, .c = results[i]});
  });
  set_num_threads(threads);
  for (int i = 0; i < kCalls; ++i) {
    CHECK(std::memcmp(results[i].raw(), results[kCalls].raw(), results[i].nbytes()) == 0);
  }
}

}  // namespace

TEST_CASE("gemm inside a parallel region") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(name(dtype));
    // Enough rows for the blocked layout of B; a long K of a transposed A; a batch.
    check_nested(sequence({600, 96}, dtype), sequence({96, 64}, dtype), {600, 64});
    check_nested(view::transpose(sequence({2500, 48}, dtype), 0, 1), sequence({2500, 32}, dtype),
                 {48, 32});
    check_nested(sequence({12, 65, 32}, dtype),
                 view::transpose(sequence({12, 65, 32}, dtype), 1, 2), {12, 65, 65});
  }
}

}  // namespace weft::kernels
