// One pass over parameters, gradients and momentum, cut into chunks over the whole list. Separate
// multiplications and additions, never fused, so that every instruction set gives the bits that
// sgd.h states. The limiter is memory: 20 bytes per f32 element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sgd/sgd_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include "kernels/multi_tensor/chunks.h"
#include "kernels/sgd/sgd.h"
#include "kernels/sgd/sgd_constants.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

template <class T>
void run(const SgdProblem& s) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  SgdConstants<T> all(s);
  all.scale_by(OpenedGate(s.gate).coefficient());
  const std::vector<Tensor> gradients = contiguous_list(s.gradients);
  const auto update = [&](int64_t, const TensorChunk& chunk) HWY_ATTR {
    SgdConstants<T> c = all;
    if (s.layer_norms.defined()) {
      const double* const norms = s.layer_norms.data<double>() + chunk.tensor;
      c.take_rate_of(norms[0], norms[s.parameters.size()]);
    }
    const V scale = hn::Set(d, c.gradient_scale), decay = hn::Set(d, c.weight_decay);
    const V momentum = hn::Set(d, c.momentum), share = hn::Set(d, c.one_minus_dampening);
    const V lr = hn::Set(d, c.lr);
    const Tensor& gradient = gradients[chunk.tensor];
    const Tensor& p_all = s.parameters[chunk.tensor];
    const Tensor b_all = c.has_momentum ? s.buffers[chunk.tensor] : Tensor();
    const Tensor narrow = s.narrow.empty() ? Tensor() : s.narrow[chunk.tensor];
    constexpr int64_t kBlock = 1024;  // what is narrower than T is widened in L1
    HWY_ALIGN T g_block[kBlock], p_block[kBlock], b_block[kBlock];
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
      const int64_t n = std::min(kBlock, chunk.end - begin);
      const T* const g = read_row(gradient.dtype(), gradient.raw(), begin, 1, n, g_block);
      T* const p = open_row(p_all.dtype(), p_all.raw(), begin, n, p_block);
      T* const b =
          c.has_momentum ? open_row(b_all.dtype(), b_all.raw(), begin, n, b_block) : nullptr;
      for_each_vector(d, n, [&](size_t i, size_t count) HWY_ATTR {
        V pi = load_part(d, p + i, count), gi = load_part(d, g + i, count);
        if (c.scales) gi = hn::Mul(gi, scale);
        if (c.decays) gi = hn::Add(gi, hn::Mul(decay, pi));
        if (c.has_momentum) {
          V bi = gi;
          if (!c.first_step) {
            bi = hn::Add(hn::Mul(load_part(d, b + i, count), momentum), hn::Mul(share, gi));
          }
          store_part(d, bi, b + i, count);
          gi = c.nesterov ? hn::Add(gi, hn::Mul(momentum, bi)) : bi;
        }
        store_part(d, hn::Sub(pi, hn::Mul(lr, gi)), p + i, count);
      });
      write_row(p, n, p_all.dtype(), p_all.raw(), begin, 1);
      if (narrow.defined()) write_row(p, n, narrow.dtype(), narrow.raw(), begin, 1);
      if (c.has_momentum) write_row(b, n, b_all.dtype(), b_all.raw(), begin, 1);
    }
  };
  ChunkTasks(s.parameters).for_each(update);
}

void sgd_chunks(const SgdProblem& s) {
  assert_matching(s.parameters, s.parameters);
  if (s.momentum != 0) assert_matching(s.parameters, s.buffers);
  assert_narrow(s.parameters, s.narrow);
  WEFT_ASSERT(!s.layer_norms.defined() ||
              s.layer_norms.numel() == 2 * static_cast<int64_t>(s.parameters.size()));
  WEFT_ASSERT(s.gradients.size() == s.parameters.size());
  if (OpenedGate(s.gate).is_closed()) return;
  s.dtype() == DType::f64 ? run<double>(s) : run<float>(s);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(sgd_cpu_highway, SgdProblem, sgd_chunks)
#endif
