// Gradient clipping. Parameters without a gradient are skipped; gradients change in place. Of
// parameters that were set up to train on several devices or with a loss scale (train/fabric.h) the
// gradients of the whole model are meant, unscaled: every rank calls, with the model's parameters
// or with its optimizer's. While batches add up to a step (Fabric::accumulate) clipping waits, and
// the norm is 0.
#pragma once

#include "autograd/tape.h"

namespace weft::optim {

/// The gradients, replaced by contiguous ones where they are not.
Tensors contiguous_gradients(const Tensors& parameters);
/// The 2-norm of all gradients together; 0 when there are none.
double grad_norm(const Tensors& parameters);
/// The same, f64 [], where it was computed: nobody waits for it.
Tensor unread_norm(const Tensors& parameters);
/// Those of the gradients that these very tensors have here, whoever answers for them.
double grad_norm_here(const Tensors& parameters);
Tensor unread_norm_here(const Tensors& parameters);
/// min(1, max_norm / (norm + 1e-6)): what clip_grad_norm multiplies by. Handing it to
/// Optimizer::step instead, or an unread norm in its gate, saves a pass over the gradients.
double clip_coefficient(double norm, double max_norm);
/// Scales all gradients so that their common norm is at most max_norm, and returns the norm they
/// had. Throws Error, changing nothing, when that is not finite and error_if_nonfinite is set.
double clip_grad_norm(const Tensors& parameters, double max_norm, bool error_if_nonfinite = false);
/// Clamps every element of every gradient to [-limit, limit].
void clip_grad_value(const Tensors& parameters, double limit);

}  // namespace weft::optim
