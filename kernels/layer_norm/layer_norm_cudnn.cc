// cuDNN's layer normalisation, opened when first asked for: the yardstick of our own rows kernel,
// and a choice. Its tensors have four dimensions: [rows, N, 1, 1], normalised over all but the
// first.
#include "kernels/layer_norm/layer_norm_cudnn_graph.h"

#if __has_include(<cudnn.h>)

namespace weft::kernels {
namespace {

const CudnnPlan* plan_of(const LayerNormProblem& p) {
  thread_local CudnnPlans plans("layer_norm_cudnn");
  const std::string key =
      fmt::format("{} eps {}: {}", to_string(p.device()), p.eps,
                  cudnn_layout({p.x, p.gamma, p.beta, p.y, p.dy, p.dx, p.dgamma, p.dbeta}));
  return plans.find(key, p, layer_norm_cudnn_graph);
}

/// As memory of its own is. cuDNN 9 has plans for tensors that are said to be aligned to 16 bytes,
/// and refuses to run some of them on such as are aligned to 64.
bool is_aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()) % 256 == 0; }

}  // namespace

CudnnGraph layer_norm_cudnn_graph(const LayerNormProblem& p) {
  CudnnGraph graph;
  const int64_t n = p.x.size(-1), rows = p.x.numel() / n;
  const auto of_rows = [&](int64_t id, const Tensor& t) {
    return graph.memory(id, t.dtype(), {rows, n, 1, 1}, {n, 1, n, n});
  };
  const auto of_columns = [&](int64_t id, const Tensor& t) {
    return graph.memory(id, t.dtype(), {1, n, 1, 1}, {n, 1, n, n});
  };
  const auto statistic = [&](int64_t id) {
    return graph.memory(id, DType::f32, {rows, 1, 1, 1}, {1, 1, 1, 1});
  };
  const auto x = of_rows(kCudnnX, p.x), gamma = of_columns(kCudnnGamma, p.gamma);
  const auto mean = statistic(kCudnnMean), rstd = statistic(kCudnnRstd);
  if (p.backward()) {
    graph.layer_norm_backward(x, mean, rstd, of_rows(kCudnnDy, p.dy), gamma,
                              of_rows(kCudnnDx, p.dx), of_columns(kCudnnDgamma, p.dgamma),
                              of_columns(kCudnnDbeta, p.dbeta));
  } else {
    graph.layer_norm(x, gamma, of_columns(kCudnnBeta, p.beta),
                     graph.number(static_cast<float>(p.eps), 4), of_rows(kCudnnY, p.y), mean, rstd);
  }
  return graph;
}

bool layer_norm_fits_cudnn(const LayerNormProblem& p) {
  if (p.device().type != DeviceType::cuda || p.dtype() == DType::f64 || p.x.numel() == 0) {
    return false;
  }
  if (p.residual.defined() || p.ds.defined() || p.dresidual.defined() || !p.gamma.defined() ||
      !p.mean.defined()) {
    return false;
  }
  const bool has_all =
      p.backward() ? p.dx.defined() && p.dgamma.defined() && p.dbeta.defined() : p.beta.defined();
  if (!has_all || (p.beta.defined() && p.beta.dtype() != p.gamma.dtype())) return false;
  for (const Tensor* t :
       {&p.x, &p.gamma, &p.beta, &p.y, &p.mean, &p.rstd, &p.dy, &p.dx, &p.dgamma, &p.dbeta}) {
    if (t->defined() && (!t->is_contiguous() || !is_aligned(*t))) return false;
  }
  return cudnn().library.is_open() && plan_of(p) != nullptr;
}

void layer_norm_cudnn(const LayerNormProblem& p) {
  const CudnnPlan* const plan = plan_of(p);
  WEFT_ASSERT(plan != nullptr);
  std::map<int64_t, void*> memory = {{kCudnnX, p.x.raw()},
                                     {kCudnnGamma, p.gamma.raw()},
                                     {kCudnnMean, p.mean.raw()},
                                     {kCudnnRstd, p.rstd.raw()}};
  if (p.backward()) {
    memory.insert({{kCudnnDy, p.dy.raw()},
                   {kCudnnDx, p.dx.raw()},
                   {kCudnnDgamma, p.dgamma.raw()},
                   {kCudnnDbeta, p.dbeta.raw()}});
  } else {
    memory.insert({{kCudnnBeta, p.beta.raw()}, {kCudnnY, p.y.raw()}});
  }
  plan->run(p.device(), std::move(memory));
}

}  // namespace weft::kernels

#else
WEFT_WITHOUT_CUDNN(layer_norm, LayerNormProblem)
#endif
