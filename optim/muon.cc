#include "optim/muon.h"

#include <cmath>

#include "autograd/ops.h"
#include "kernels/sgd/sgd.h"
#include "optim/registry.h"

namespace weft::optim {
namespace {

/// Of an update, as AdamW's have it.
constexpr double kRootMeanSquare = 0.2;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

}  // namespace

Tensor orthogonalized(const Tensor& x, int steps, double eps) {
  WEFT_CHECK(x.dim() == 2, "orthogonalized: expected a matrix, got {}", x);
  const NoGrad guard;
  // x x^T is the smaller one of the two products.
  const bool is_tall = x.size(0) > x.size(1);
  const Tensor wide = is_tall ? ops::transpose(x, 0, 1) : x;
  Tensor y = ops::cast(detach(wide), x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  y = y / (ops::sqrt(ops::sum(ops::square(y))) + eps);
  for (int i = 0; i < steps; ++i) {
    const Tensor squares = ops::matmul(y, ops::transpose(y, 0, 1));
    const Tensor polynomial = kB * squares + kC * ops::matmul(squares, squares);
    y = kA * y + ops::matmul(polynomial, y);
  }
  return is_tall ? ops::transpose(y, 0, 1) : y;
}

Muon::Muon(const ParameterGroups& groups, const MuonOptions& options)
    : Optimizer("Muon", {{"lr", options.lr},
                         {"momentum", options.momentum},
                         {"weight_decay", options.weight_decay},
                         {"nesterov", options.nesterov ? 1 : 0},
                         {"steps", options.steps},
                         {"eps", options.eps}}) {
  add_groups(groups);
}

void Muon::check(const ParameterGroup& group) const {
  for (const char* option : {"lr", "momentum", "weight_decay", "eps"}) {
    check_range(group, option, 0);
  }
  const double steps = group["steps"];
  WEFT_CHECK(steps >= 1 && steps <= 100 && steps == std::floor(steps),
             "Muon: steps must be a whole number from 1 to 100, got {}", steps);
}

std::vector<std::string> Muon::state_names(const ParameterGroup& group) const {
  if (group["momentum"] == 0) return {};
  return {"momentum_buffer"};
}

void Muon::update(const ParameterGroup& group, const Batch& batch, double gradient_scale) {
  const bool has_momentum = !batch.state.empty();
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const Tensor& w = batch.parameters[i];
    // A step of rate 1 from 0: -u.
    Tensor u = ops::zeros_like(w);
    kernels::sgd({.parameters = {u},
                  .gradients = {batch.gradients[i]},
                  .buffers = has_momentum ? Tensors{batch.state[0][i]} : Tensors(),
                  .lr = 1,
                  .momentum = group["momentum"],
                  .nesterov = has_momentum && group["nesterov"] != 0,
                  .first_step = batch.step == 1,
                  .gradient_scale = gradient_scale,
                  .gate = batch.gate});
    double size = kRootMeanSquare;
    if (w.dim() < 2) {
      u = ops::sign(u);
    } else if (w.numel() > 0) {
      const Tensor matrix = ops::reshape(u, {w.size(0), w.numel() / w.size(0)});
      size *= std::sqrt(static_cast<double>(std::max(matrix.size(0), matrix.size(1))));
      u = ops::reshape(orthogonalized(matrix, static_cast<int>(group["steps"]), group["eps"]),
                       w.shape());
    }
    kernels::sgd({.parameters = {w},
                  .gradients = {u},
                  .lr = group["lr"],
                  .weight_decay = group["weight_decay"],
                  .gradient_scale = -size,
                  .gate = batch.gate.unclipped(),
                  .narrow = batch.narrow_of(i)});
  }
}

std::unique_ptr<Optimizer> make_muon(const ParameterGroups& groups) {
  return std::make_unique<Muon>(groups);
}

}  // namespace weft::optim
