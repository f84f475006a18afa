// One step of stochastic gradient descent on a list of parameters, in one pass over memory.
//
// For every element, in PyTorch's order, each operation rounded to f32 (f64 for f64):
//
//   g = g * gradient_scale                     only where gradient_scale is not 1
//   g = g + weight_decay * p                   only where weight_decay is not 0
//   b = first_step ? g : b * momentum + (1 - dampening) * g       only where momentum is not 0
//   g = nesterov ? g + momentum * b : b                           only where momentum is not 0
//   p = p - lr * g
//
// A layer's rate multiplies gradient_scale and weight_decay where `layer_norms` are given (LARS; of
// LAMB and its kin the last step):
//
//   rate = trust_coefficient |p| / (gradient_scale |g| + weight_decay |p|)     1 where a norm is 0
//
// The result equals a scalar loop's bit for bit on every instruction set.
//
// Parameters and momentum buffers are contiguous and of one dtype (f64 f32 bf16 f16), and updated
// in place; a narrow one is widened when read and rounded once when written, as PyTorch's fused SGD
// does. Element i of the lists belongs together and has one shape. Gradients are f32, bf16 or f16
// (f64 for f64), of any strides, and only read. Beside an f32 parameter `narrow` may have a
// contiguous tensor of bf16 or f16, which is assigned (=) the parameter's new values, rounded. A
// gate decides when the step runs whether it changes anything, and multiplies gradient_scale,
// rounded, by its coefficient.
#pragma once

#include "kernels/multi_tensor/step_gate.h"
#include "kernels/op.h"

namespace weft::kernels {

struct SgdProblem {
  std::vector<Tensor> parameters;
  std::vector<Tensor> gradients;
  std::vector<Tensor> buffers;  // b; empty where momentum is 0
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first_step = false;    // the buffers hold nothing yet
  double gradient_scale = 1;  // clipping's coefficient, or the inverse of the loss scale
  StepGate gate = {};
  // f64 [2, parameters], optional, on their device: |p| and |g| of each.
  Tensor layer_norms = {};
  double trust_coefficient = 1;
  std::vector<Tensor> narrow = {};  // optional, and so is each of them

  DType dtype() const { return parameters.empty() ? DType::f32 : parameters[0].dtype(); }
  Device device() const { return parameters.empty() ? Device{} : parameters[0].device(); }
  std::string describe() const {
    return fmt::format("sgd({} parameters of {}, lr={}, momentum={}, nesterov={})",
                       parameters.size(), dtype(), lr, momentum, nesterov);
  }
};

WEFT_DECLARE_OP(sgd, SgdProblem);

}  // namespace weft::kernels
