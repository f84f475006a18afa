#include "nn/loss.h"

#include "autograd/autocast.h"

namespace weft::nn {
namespace {

void check_shapes(std::string_view loss, const Tensor& x, const Tensor& y) {
  WEFT_CHECK(x.shape() == y.shape(), "{}: {} and target {} differ in shape", loss, x, y);
}

Tensor reduce(const Tensor& x, Reduction reduction) {
  WEFT_CHECK(reduction != Reduction::kBatchMean, "a sum over the batch's size is kl_div's alone");
  if (reduction == Reduction::kMean) return ops::mean(x);
  return reduction == Reduction::kSum ? ops::sum(x) : x;
}

/// log(1 + exp(-|x|)), in f64 and rounded once.
Tensor log1p_exp(const Tensor& x) {
  const NoGrad guard;
  const Tensor e = ops::exp(-ops::abs(ops::cast(x, DType::f64)));
  return ops::cast(ops::log1p(e), x.dtype());
}

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction) {
  check_shapes("mse_loss", x, y);
  return reduce(ops::square(autocast_f32(x) - autocast_f32(y)), reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& y, Reduction reduction) {
  check_shapes("l1_loss", x, y);
  return reduce(ops::abs(autocast_f32(x) - autocast_f32(y)), reduction);
}

Tensor bce_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction) {
  check_shapes("bce_with_logits", logits, target);
  const Tensor x = autocast_f32(logits), y = autocast_f32(target);
  Tensor loss;
  {
    const NoGrad guard;
    loss = ops::relu(x) - x * y + log1p_exp(x);
  }
  loss = record("bce_with_logits", {x, y}, loss, {x, y}, [](const Backward& b) -> Tensors {
    const Tensor x = b.saved(0), y = b.saved(1);
    return {b.needs(0) ? b.dy() * (ops::sigmoid(x) - y) : Tensor(),
            b.needs(1) ? -(b.dy() * x) : Tensor()};
  });
  return reduce(loss, reduction);
}

}  // namespace weft::nn
