// One step of Adam or AdamW on a list of parameters, in one pass over memory.
//
// For every element, in PyTorch's order, each operation rounded to f32 (f64 for f64):
//
//   g = g * gradient_scale                              only where gradient_scale is not 1
//   AdamW:  p = p * (1 - lr * weight_decay)             Adam:  g = g + weight_decay * p
//           (either only where weight_decay is not 0)
//   m = m + (1 - beta1) * (g - m)                       or, for beta1 <= 1/2, g - (g - m) * beta1
//   v = v * beta2 + ((1 - beta2) * g) * g
//   p = p - ((lr / (1 - beta1^step)) * m) / (sqrt(v) / sqrt(1 - beta2^step) + eps)
//
// Scalars such as 1 - lr * weight_decay are computed in double and rounded once. Without parameters
// it does nothing. The result equals
// a scalar loop's bit for bit on every instruction set. Kingma, Ba: "Adam", arXiv:1412.6980;
// Loshchilov, Hutter: "Decoupled Weight Decay Regularization", arXiv:1711.05101.
//
// Parameters, m and v are contiguous and of one dtype (f64 f32 bf16 f16), and updated in place; a
// narrow one is widened when read and rounded once when written, as PyTorch's fused Adam does.
// Element i of the lists belongs together and has one shape. Gradients are f32, bf16 or f16
// (f64 for f64), of any strides, and only read. Beside an f32 parameter `narrow` may have a
// contiguous tensor of bf16 or f16, which is assigned (=) the parameter's new values, rounded.
//
// A captured step (core/graph.h) runs many times, with other scalars each time: it reads them from
// `constants` when it runs, and whoever launches the graph writes there what adam_constants()
// gives. A gate decides when the step runs whether it changes anything, and multiplies
// gradient_scale, rounded, by its coefficient (kernels/multi_tensor/step_gate.h).
#pragma once

#include "kernels/multi_tensor/step_gate.h"
#include "kernels/op.h"

namespace weft::kernels {

struct AdamProblem {
  std::vector<Tensor> parameters;
  std::vector<Tensor> gradients;
  std::vector<Tensor> m;  // first moment: PyTorch's exp_avg
  std::vector<Tensor> v;  // second moment: exp_avg_sq
  int64_t step = 1;       // this step's number, from 1
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;      // AdamW; false is Adam with L2 regularisation
  double gradient_scale = 1;  // clipping's coefficient, or the inverse of the loss scale
  Tensor constants;           // CUDA: what takes the place of the scalars above, if defined
  StepGate gate = {};
  std::vector<Tensor> narrow = {};  // optional, and so is each of them

  DType dtype() const { return parameters.empty() ? DType::f32 : parameters[0].dtype(); }
  Device device() const { return parameters.empty() ? Device{} : parameters[0].device(); }
  std::string describe() const;
};

WEFT_DECLARE_OP(adam, AdamProblem);
/// The problem's scalars, step and all, as its kernel on a CUDA device reads them: u8 on the CPU,
/// of a size that depends on the dtype alone.
Tensor adam_constants(const AdamProblem& problem);

}  // namespace weft::kernels
