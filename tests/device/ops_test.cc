// Ops of several kernels, or with work on the host, on a CUDA device, real or emulated: values and
// gradients are the CPU's.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "tests/skip.h"

namespace weft {
namespace {

using namespace ops;

const Device kCuda{DeviceType::cuda, 0};

struct OpOnDevice {
  const char* name;
  std::function<Tensor(const Tensor&)> run;  // of x [4, 6]
};

Tensor there(const std::vector<int64_t>& values, const Tensor& x) {
  return to(Tensor::from(values, {static_cast<int64_t>(values.size())}), x.device());
}
Tensor image(const Tensor& x) { return ops::view(x, {1, 2, 3, 4}); }

const std::vector<OpOnDevice>& ops_on_device() {
  using T = const Tensor&;
  static const std::vector<OpOnDevice> all = {
      {"elementwise",
       [](T x) {
         return softplus(x, 2, 1) + elu(x) + leaky_relu(x) + hardswish(x) + ops::atan2(x, x + 3.0) +
                asinh(x) + log1p(square(x)) + ops::remainder(x, full_like(x, 0.75));
       }},
      {"masked_fill", [](T x) { return masked_fill(x, gt(x, zeros_like(x)), 2) * x; }},
      {"norm", [](T x) { return norm(x, 2, {0}) + ops::std(x, {0}) + logsumexp(x, {0}); }},
      {"diagonal", [](T x) { return diagonal(x, 1) * trace(x); }},
      {"flip",
       [](T x) {
         return flip(x, {0, 1}) * roll(x, {1, 2}, {0, 1});
       }},
      {"tril",
       [](T x) {
         return repeat(tril(x) - triu(x, 2), {2, 1});
       }},
      {"pad",
       [](T x) {
         return pad(x, {1, 2, -1, 1}, Padding::kConstant, 3);
       }},
      {"pad around",
       [](T x) {
         return pad(x, {1, 2}, Padding::kCircular);
       }},
      {"einsum",
       [](T x) {
         return einsum("ij,kj->ik", {x, x});
       }},
      {"sort", [](T x) { return sort(x, 1, true).first * topk(x, 6, 1, false).first; }},
      {"argsort", [](T x) { return cast(argsort(x, 0), DType::f32); }},
      {"cumsum", [](T x) { return cumsum(x, 0) * cumsum(x, 1); }},
      {"unique", [](T x) { return cast(unique(ops::round(x), true, true)[1], DType::f32); }},
      {"counts", [](T x) { return cast(unique(ops::round(x), false, true)[1], DType::f32); }},
      {"unique rows", [](T x) { return unique(ops::round(x), false, false, 0)[0]; }},
      {"nonzero", [](T x) { return cast(nonzero(relu(x)), DType::f32); }},
      {"index",
       [](T x) {
         return index(x, {there({2, -1, 0}, x), there({1, 5, 1}, x)});
       }},
      {"index by a mask", [](T x) { return index(x, {gt(x, zeros_like(x))}); }},
      {"index_put",
       [](T x) {
         return index_put(x, {there({2, 0, 2}, x)}, narrow(x, 0, 0, 3), false);
       }},
      {"index_put adds",
       [](T x) {
         return index_put(x, {there({2, 0, 2}, x)}, narrow(x, 0, 0, 3), true);
       }},
      {"rms_norm", [](T x) { return rms_norm(x, select(x, 0, 1)); }},
      {"group_norm", [](T x) { return group_norm(image(x), 2) + instance_norm(image(x)); }},
      {"conv1d",
       [](T x) {
         return conv1d(unsqueeze(x, 0), ops::view(x, {3, 4, 2}));
       }},
      {"conv_transpose2d",
       [](T x) {
         return conv_transpose2d(image(x), ops::view(x, {2, 3, 2, 2}), {}, {.stride = 2});
       }},
      {"max_pool2d_with_indices",
       [](T x) {
         const auto [y, places] =
             max_pool2d_with_indices(image(x), {.kernel = 2, .stride = 1, .ceil_mode = true});
         return add(y, cast(places, DType::f32));
       }},
      {"adaptive_avg_pool2d",
       [](T x) {
         return adaptive_avg_pool2d(image(x), {2, 3});
       }},
      {"interpolate",
       [](T x) {
         return interpolate(image(x), {.size = Size2d(4, 5), .mode = Interpolation::kBilinear});
       }},
      {"nll_loss",
       [](T x) {
         return nll_loss(log_softmax(x, 1), there({1, 5, -100, 0}, x));
       }},
      {"kl_div", [](T x) { return kl_div(x, softmax(x, 1)); }},
      {"smooth_l1_loss", [](T x) { return smooth_l1_loss(x, flip(x, {0})); }},
      {"cosine_similarity", [](T x) { return cosine_similarity(x, flip(x, {1})); }},
      {"attention",
       [](T x) {
         const Tensor q = ops::view(x, {1, 2, 3, 4}), k = narrow(q, 1, 0, 1);
         return attention(q, k, k, {.mask = tril(full({3, 3}, 1, DType::boolean, x.device()))});
       }},
      {"attention with an added mask",
       [](T x) {
         const Tensor q = ops::view(x, {1, 2, 3, 4}), k = narrow(q, 1, 0, 1);
         return attention(q, k, k, {.mask = narrow(k, 3, 1, 3)});
       }},
  };
  return all;
}

TEST_CASE("values and gradients on a device are the CPU's") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  manual_seed(4);
  const Tensor numbers = randn({4, 6});
  for (const OpOnDevice& op : ops_on_device()) {
    INFO(op.name);
    std::vector<double> values[2], gradients[2];
    for (int k = 0; k < 2; ++k) {
      Tensor x = to(numbers, k == 0 ? Device{} : kCuda);
      x = clone(x).set_requires_grad(true);
      const Tensor y = op.run(x);
      CHECK(y.device() == x.device());
      values[k] = y.to_vector();
      if (!y.requires_grad()) continue;
      backward(sum(y * y));
      gradients[k] = x.grad().to_vector();
    }
    for (auto* list : {&values, &gradients}) {
      const std::vector<double>&cpu = (*list)[0], &device = (*list)[1];
      REQUIRE(cpu.size() == device.size());
      for (size_t i = 0; i < cpu.size(); ++i) {
        INFO("element " << i << ": " << cpu[i] << " and " << device[i]);
        // Sums of some ten terms in f32, in two orders.
        CHECK(std::abs(cpu[i] - device[i]) <= 1e-4 * (1 + std::abs(cpu[i])));
      }
    }
  }
}

}  // namespace
}  // namespace weft
