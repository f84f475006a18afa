// Gradients checked against central differences, in f64.
#pragma once

#include <functional>

#include "autograd/tape.h"

namespace weft {

using DifferentiableFunction = std::function<Tensor(const Tensors&)>;

/// A derivative passes when |analytic - numeric| <= atol + rtol |numeric|. With a step of 1e-6 the
/// central difference is off by about step^2 |f'''| / 6 + 1e-16 |f| / step, that is some 1e-10; the
/// tolerances leave room for functions of large curvature.
struct GradcheckOptions {
  double step = 1e-6;
  double atol = 1e-6;
  double rtol = 1e-5;
};

/// Compares the gradients of <function(inputs), w>, w random and fixed, with central differences,
/// for every element of every input that requires a gradient. Inputs are f64. Throws Error naming
/// the input, the element and both values.
void gradcheck(const DifferentiableFunction& function, const Tensors& inputs,
               const GradcheckOptions& options = {});

/// The same for the gradient itself as a function of the inputs and of the incoming gradient:
/// second derivatives.
void gradgradcheck(const DifferentiableFunction& function, const Tensors& inputs,
                   const GradcheckOptions& options = {});

}  // namespace weft
