#include "autograd/gradcheck.h"

#include <cmath>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/philox.h"

namespace weft {
namespace {

Tensor random_like(const Tensor& x, uint64_t stream) {
  Philox random(20, stream);
  std::vector<double> values(x.numel());
  for (double& value : values) value = random.normal();
  return Tensor::from(values, x.shape());
}

double project(const DifferentiableFunction& function, const Tensors& inputs,
               const Tensor& weights) {
  NoGrad guard;
  return ops::sum(ops::mul(function(inputs), weights)).item();
}

}  // namespace

void gradcheck(const DifferentiableFunction& function, const Tensors& inputs,
               const GradcheckOptions& options) {
  Tensors wanted;
  for (const Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    WEFT_CHECK(input.dtype() == DType::f64, "gradcheck: expected f64 inputs, got {}", input);
    wanted.push_back(input);
  }
  WEFT_CHECK(!wanted.empty(), "gradcheck: no input requires a gradient");
  const Tensor output = function(inputs);
  const Tensor weights = random_like(output, 1);
  const Tensors analytic = grad({output}, wanted, {weights}, {.allow_unused = true});
  for (size_t k = 0; k < wanted.size(); ++k) {
    const std::vector<double> got =
        analytic[k].defined() ? analytic[k].to_vector() : std::vector<double>(wanted[k].numel());
    std::vector<int64_t> offsets;
    for_each_offset(wanted[k].shape(), wanted[k].strides(),
                    [&](int64_t i) { offsets.push_back(i); });
    for (size_t i = 0; i < offsets.size(); ++i) {
      double& element = wanted[k].data<double>()[offsets[i]];
      const double value = element;
      element = value + options.step;
      const double above = project(function, inputs, weights);
      element = value - options.step;
      const double below = project(function, inputs, weights);
      element = value;
      const double numeric = (above - below) / (2 * options.step);
      WEFT_CHECK(std::abs(got[i] - numeric) <= options.atol + options.rtol * std::abs(numeric),
                 "gradcheck: input {} {}, element {}: the gradient is {:.10g}, central differences "
                 "give {:.10g}",
                 k, wanted[k], i, got[i], numeric);
    }
  }
}

void gradgradcheck(const DifferentiableFunction& function, const Tensors& inputs,
                   const GradcheckOptions& options) {
  Tensor incoming;
  {
    NoGrad guard;
    incoming = random_like(function(inputs), 2);
  }
  incoming.set_requires_grad(true);
  Tensors all = inputs;
  all.push_back(incoming);
  const DifferentiableFunction gradient = [&](const Tensors& arguments) {
    const GradMode recording(true);
    Tensors leaves(arguments.begin(), arguments.end() - 1), wanted;
    for (const Tensor& leaf : leaves) {
      if (leaf.defined() && leaf.requires_grad()) wanted.push_back(leaf);
    }
    const Tensors gradients = grad({function(leaves)}, wanted, {arguments.back()},
                                   {.create_graph = true, .allow_unused = true});
    Tensor total;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const Tensor part = ops::sum(ops::mul(gradients[i], random_like(gradients[i], 3 + i)));
      total = total.defined() ? total + part : part;
    }
    return total;
  };
  gradcheck(gradient, all, options);
}

}  // namespace weft
