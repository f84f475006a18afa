// One pass over parameters, gradients and moments, cut into chunks over the whole list. Separate
// multiplications and additions, never fused, so that every instruction set gives the bits that
// adam.h states. The limiter is memory: 28 bytes per f32 element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adam/adam_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include "kernels/adam/adam_constants.h"
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
  AdamConstants<T> c(a);
  c.scale_by(OpenedGate(a.gate).coefficient());
  const std::vector<Tensor> gradients = contiguous_list(a.gradients);
  const auto update = [&](int64_t, const TensorChunk& chunk) HWY_ATTR {
    const V scale = hn::Set(d, c.gradient_scale), l2 = hn::Set(d, c.l2);
    const V decay = hn::Set(d, c.decay), eps = hn::Set(d, c.eps);
    const V beta1 = hn::Set(d, c.beta1), weight1 = hn::Set(d, c.one_minus_beta1);
    const V beta2 = hn::Set(d, c.beta2), weight2 = hn::Set(d, c.one_minus_beta2);
    const V step_size = hn::Set(d, c.step_size), root_correction = hn::Set(d, c.root_correction);
    const Tensor& gradient = gradients[chunk.tensor];
    const Tensor &p_all = a.parameters[chunk.tensor], &m_all = a.m[chunk.tensor],
                 &v_all = a.v[chunk.tensor];
    const Tensor narrow = a.narrow.empty() ? Tensor() : a.narrow[chunk.tensor];
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
        if (c.scales) gi = hn::Mul(gi, scale);
        if (c.decays) pi = hn::Mul(pi, decay);
        if (c.adds_l2) gi = hn::Add(gi, hn::Mul(l2, pi));
        const V difference = hn::Sub(gi, mi);
        mi = c.small_beta1 ? hn::Sub(gi, hn::Mul(difference, beta1))
                           : hn::Add(mi, hn::Mul(weight1, difference));
        vi = hn::Add(hn::Mul(vi, beta2), hn::Mul(hn::Mul(weight2, gi), gi));
        const V denominator = hn::Add(hn::Div(hn::Sqrt(vi), root_correction), eps);
        pi = hn::Sub(pi, hn::Div(hn::Mul(step_size, mi), denominator));
        store_part(d, pi, p + i, count);
        store_part(d, mi, m + i, count);
        store_part(d, vi, v + i, count);
      });
      write_row(p, n, p_all.dtype(), p_all.raw(), begin, 1);
      if (narrow.defined()) write_row(p, n, narrow.dtype(), narrow.raw(), begin, 1);
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
  assert_narrow(a.parameters, a.narrow);
  WEFT_ASSERT(a.gradients.size() == a.parameters.size() && a.step > 0 && !a.constants.defined());
  if (OpenedGate(a.gate).is_closed()) return;
  a.dtype() == DType::f64 ? run<double>(a) : run<float>(a);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(adam_cpu_highway, AdamProblem, adam_chunks)
#endif
