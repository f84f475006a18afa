// Squares in f64, where those of f32 are exact, added in 4 vectors of 8 parts for each chunk of the
// list; the chunks are added in order. The parts are 8 whatever the instruction set, so all give
// the same bits. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multi_tensor_norm/multi_tensor_norm_cpu_highway.cc"
#include "kernels/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "core/parallel.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kParts = 32;

/// Adds the squares of x to the parts, element i to part i mod kParts.
template <class T>
void add_squares(const T* x, int64_t n, double* parts) {
  const int64_t whole = n / kParts * kParts;
  const hn::CappedTag<double, 8> d;
  const size_t lanes = hn::Lanes(d);
  const auto load = [&](const T* p) HWY_ATTR {
    if constexpr (std::is_same_v<T, double>) {
      return hn::LoadU(d, p);
    } else {
      return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, decltype(d)>(), p));
    }
  };
  for (size_t part = 0; part < kParts; part += 4 * lanes) {
    auto a0 = hn::Load(d, parts + part), a1 = hn::Load(d, parts + part + lanes);
    auto a2 = hn::Load(d, parts + part + 2 * lanes), a3 = hn::Load(d, parts + part + 3 * lanes);
    for (int64_t i = part; i < whole; i += kParts) {
      const auto v0 = load(x + i), v1 = load(x + i + lanes);
      const auto v2 = load(x + i + 2 * lanes), v3 = load(x + i + 3 * lanes);
      a0 = hn::Add(a0, hn::Mul(v0, v0));
      a1 = hn::Add(a1, hn::Mul(v1, v1));
      a2 = hn::Add(a2, hn::Mul(v2, v2));
      a3 = hn::Add(a3, hn::Mul(v3, v3));
    }
    hn::Store(a0, d, parts + part);
    hn::Store(a1, d, parts + part + lanes);
    hn::Store(a2, d, parts + part + 2 * lanes);
    hn::Store(a3, d, parts + part + 3 * lanes);
  }
  for (int64_t i = whole; i < n; ++i) {
    const double v = static_cast<double>(x[i]);
    parts[i - whole] += v * v;
  }
}

template <class Acc>
double sum_of_squares(const Tensor& tensor, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 1024;
  HWY_ALIGN Acc buffer[kBlock];
  HWY_ALIGN double parts[kParts] = {};
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    add_squares(read_row(tensor.dtype(), tensor.raw(), first, 1, n, buffer), n, parts);
  }
  for (size_t width = kParts / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) parts[i] += parts[i + width];
  }
  return parts[0];
}

void multi_tensor_norm_chunks(const MultiTensorNormProblem& p) {
  const std::vector<Tensor> tensors = contiguous_list(p.tensors);
  const std::vector<TensorChunk> chunks = tensor_chunks(tensors);
  const std::vector<int64_t> tasks = chunk_tasks(chunks);
  const int64_t count = static_cast<int64_t>(tasks.size()) - 1;
  std::vector<double> sums(count);
  parallel_for(count, 1, [&](int64_t task, int64_t) {
    for (int64_t c = tasks[task]; c < tasks[task + 1]; ++c) {
      const Tensor& tensor = tensors[chunks[c].tensor];
      const auto sum =
          tensor.dtype() == DType::f64 ? sum_of_squares<double> : sum_of_squares<float>;
      sums[task] += sum(tensor, chunks[c].begin, chunks[c].end);
    }
  });
  double total = 0;
  for (double sum : sums) total += sum;
  const double norm = std::sqrt(total);
  if (p.norm.dtype() == DType::f64) {
    *p.norm.data<double>() = norm;
  } else {
    *p.norm.data<float>() = static_cast<float>(norm);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(multi_tensor_norm_chunks);

void multi_tensor_norm_cpu_highway(const MultiTensorNormProblem& problem) {
  HWY_DYNAMIC_DISPATCH(multi_tensor_norm_chunks)(problem);
}

}  // namespace weft::kernels
#endif
