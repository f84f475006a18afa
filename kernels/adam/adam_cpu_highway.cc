// One pass over parameters, gradients and moments, cut into chunks over the whole list. Separate
// multiplications and additions, never fused, so that every instruction set gives the bits that
// adam.h states. The limiter is memory: 28 bytes per f32 element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adam/adam_cpu_highway.cc"
#include "core/simd/targets.h"

#include <cmath>

#include "kernels/adam/adam.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

template <class T>
void run(const AdamProblem& a) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto constant = [&](double x) HWY_ATTR { return hn::Set(d, static_cast<T>(x)); };
  const double step = static_cast<double>(a.step);
  const double correction1 = 1 - std::pow(a.beta1, step);
  const double correction2 = 1 - std::pow(a.beta2, step);
  const bool scales = a.gradient_scale != 1, decays = a.weight_decay != 0;
  const bool lerps_from_m = a.beta1 > 0.5;
  const std::vector<Tensor> gradients = contiguous_list(a.gradients);
  const auto update = [&](int64_t, const TensorChunk& chunk) HWY_ATTR {
    const V scale = constant(a.gradient_scale), l2 = constant(a.weight_decay);
    const V decay = constant(1 - a.lr * a.weight_decay);
    const V beta1 = constant(a.beta1), beta2 = constant(a.beta2);
    const V weight1 = constant(1 - a.beta1), weight2 = constant(1 - a.beta2);
    const V step_size = constant(a.lr / correction1);
    const V root_correction2 = constant(std::sqrt(correction2)), eps = constant(a.eps);
    const Tensor& gradient = gradients[chunk.tensor];
    const Tensor &p_all = a.parameters[chunk.tensor], &m_all = a.m[chunk.tensor],
                 &v_all = a.v[chunk.tensor];
    constexpr int64_t kBlock = 1024;  // what is narrower than T is widened in L1
    HWY_ALIGN T g_block[kBlock], p_block[kBlock], m_block[kBlock], v_block[kBlock];
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
      const int64_t n = std::min(kBlock, chunk.end - begin);
      const T* const g = read_row(gradient.dtype(), gradient.raw(), begin, 1, n, g_block);
      T* const p = open_row(p_all.dtype(), p_all.raw(), begin, n, p_block);
      T* const m = open_row(m_all.dtype(), m_all.raw(), begin, n, m_block);
      T* const v = open_row(v_all.dtype(), v_all.raw(), begin, n, v_block);
      for_each_vector(d, n, [&](size_t i, size_t count) HWY_ATTR {
        V pi = load_part(d, p + i, count), gi = load_part(d, g + i, count);
        V mi = load_part(d, m + i, count), vi = load_part(d, v + i, count);
        if (scales) gi = hn::Mul(gi, scale);
        if (decays && a.decoupled) pi = hn::Mul(pi, decay);
        if (decays && !a.decoupled) gi = hn::Add(gi, hn::Mul(l2, pi));
        const V difference = hn::Sub(gi, mi);
        mi = lerps_from_m ? hn::Add(mi, hn::Mul(weight1, difference))
                          : hn::Sub(gi, hn::Mul(difference, beta1));
        vi = hn::Add(hn::Mul(vi, beta2), hn::Mul(hn::Mul(weight2, gi), gi));
        const V denominator = hn::Add(hn::Div(hn::Sqrt(vi), root_correction2), eps);
        pi = hn::Sub(pi, hn::Div(hn::Mul(step_size, mi), denominator));
        store_part(d, pi, p + i, count);
        store_part(d, mi, m + i, count);
        store_part(d, vi, v + i, count);
      });
      write_row(p, n, p_all.dtype(), p_all.raw(), begin, 1);
      write_row(m, n, m_all.dtype(), m_all.raw(), begin, 1);
      write_row(v, n, v_all.dtype(), v_all.raw(), begin, 1);
    }
  };
  ChunkTasks(a.parameters).for_each(update);
}

void adam_chunks(const AdamProblem& a) {
  assert_matching(a.parameters, a.parameters);
  assert_matching(a.parameters, a.m);
  assert_matching(a.parameters, a.v);
  WEFT_ASSERT(a.gradients.size() == a.parameters.size() && a.step > 0 && !a.constants.defined());
  if (a.skip.defined() && *a.skip.data<float>() != 0) return;
  a.dtype() == DType::f64 ? run<double>(a) : run<float>(a);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(adam_cpu_highway, AdamProblem, adam_chunks)
#endif
