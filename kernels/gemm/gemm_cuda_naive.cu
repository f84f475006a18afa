// The definition: a thread for each element of C walks along its row of A and column of B. Any
// strides, shapes and dtypes, every epilogue; the other rungs are measured against it. Bound by the
// loads: two for each multiply-add, which the caches answer.
#include "core/stream.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

constexpr int kTile = 16;

struct Operand {
  Elements elements;
  int64_t row = 0, column = 0;
  int64_t batch[kMaxDims] = {};

  Operand() = default;
  explicit Operand(const Tensor& t) : elements(t) {
    if (!t.defined()) return;
    const int dims = t.dim();
    if (dims == 1) {  // a bias
      column = t.strides()[0];
      return;
    }
    row = t.strides()[dims - 2];
    column = t.strides()[dims - 1];
    for (int d = 0; d + 2 < dims; ++d) batch[d] = t.strides()[d];
  }
};

struct NaiveGemm {
  Operand a, b, c, aux, bias;
  int64_t m, n, k, batches;
  int batch_dims;
  int64_t batch_sizes[kMaxDims];
  Epilogue epilogue;
  bool accumulate;

  __device__ int64_t base(const Operand& t, int64_t batch) const {
    int64_t offset = 0;
    for (int d = batch_dims - 1; d >= 0; --d) {
      offset += batch % batch_sizes[d] * t.batch[d];
      batch /= batch_sizes[d];
    }
    return offset;
  }
};

/// x as it reads after being stored in the elements' dtype at i.
template <class Acc>
__device__ Acc stored(const Elements& to, int64_t i, Acc x) {
  store_one(to, i, x);
  return load_one<Acc>(to, i);
}

template <class Acc>
__global__ void __launch_bounds__(kTile* kTile) gemm_naive_kernel(NaiveGemm p) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile + threadIdx.y;
  if (row >= p.m || column >= p.n) return;
  for (int64_t batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
    const int64_t a = p.base(p.a, batch) + row * p.a.row;
    const int64_t b = p.base(p.b, batch) + column * p.b.column;
    const int64_t c = p.base(p.c, batch) + row * p.c.row + column * p.c.column;
    Acc sum = 0;
    for (int64_t l = 0; l < p.k; ++l) {
      sum = std::fma(load_one<Acc>(p.a.elements, a + l * p.a.column),
                     load_one<Acc>(p.b.elements, b + l * p.b.row), sum);
    }
    if (p.bias.elements) sum += load_one<Acc>(p.bias.elements, column * p.bias.column);
    if (p.accumulate) sum += load_one<Acc>(p.c.elements, c);
    if (p.epilogue != Epilogue::none) {
      const int64_t x = p.base(p.aux, batch) + row * p.aux.row + column * p.aux.column;
      if (p.epilogue == Epilogue::gelu) {
        sum = gelu_erf(stored(p.aux.elements, x, sum));
      } else {
        // The product is rounded before the multiplication.
        sum = stored(p.c.elements, c, sum) * gelu_erf_derivative(load_one<Acc>(p.aux.elements, x));
      }
    }
    store_one(p.c.elements, c, sum);
  }
}

}  // namespace

void gemm_cuda_naive(const GemmProblem& problem) {
  if (problem.c.numel() == 0) return;
  NaiveGemm p = {};
  p.a = Operand(problem.a);
  p.b = Operand(problem.b);
  p.c = Operand(problem.c);
  p.aux = Operand(problem.aux);
  p.bias = Operand(problem.bias);
  p.m = problem.m();
  p.n = problem.n();
  p.k = problem.k();
  p.batch_dims = problem.c.dim() - 2;
  p.batches = 1;
  for (int d = 0; d < p.batch_dims; ++d) {
    p.batch_sizes[d] = problem.c.shape()[d];
    p.batches *= p.batch_sizes[d];
  }
  p.epilogue = problem.epilogue;
  p.accumulate = problem.accumulate;
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  const dim3 grid(tiles(p.n), tiles(p.m),
                  static_cast<unsigned>(std::min<int64_t>(p.batches, 65535)));
  const dim3 block(kTile, kTile);
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  if (problem.dtype() == DType::f64) {
    WEFT_LAUNCH(gemm_naive_kernel<double>, grid, block, 0, stream, p);
  } else {
    WEFT_LAUNCH(gemm_naive_kernel<float>, grid, block, 0, stream, p);
  }
}

}  // namespace weft::kernels
