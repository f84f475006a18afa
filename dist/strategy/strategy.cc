#include "dist/strategy/strategy.h"

#include <fmt/format.h>

#include <cmath>

#include "autograd/backward.h"
#include "dist/strategy/strategies.h"
#include "optim/optimizer_state.h"

namespace weft::dist {

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

optim::OptimizerState Strategy::optimizer_state(const optim::Optimizer& optimizer) {
  return optimizer.state_dict();
}

void Strategy::load_optimizer_state(optim::Optimizer& optimizer,
                                    const optim::OptimizerState& state) {
  optimizer.load_state_dict(state);
}

ExactSum Strategy::squares(const Tensors& parameters) {
  ExactSum sum;
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) add_squares(sum, p.grad());
  }
  return sum;
}

void Strategy::run(nn::Module& module, const MicroBatches& batches) {
  for (int64_t i = 0; i < batches.count; ++i) {
    const bool is_local = batches.accumulates && i + 1 < batches.count;
    const std::shared_ptr<void> local = is_local ? no_sync() : nullptr;
    const MicroBatch batch = batches.at(i);
    const Tensor loss = batch.loss(forward(module, batch.input));  // outlives the output
    backward(loss);
    if (!batches.accumulates && batches.after_each) batches.after_each();
  }
}

Tensor Strategy::predicted(const Tensor& logits) {
  const NoGrad guard;
  return ops::argmax(logits, 1);
}

double Strategy::grad_norm(const Tensors& parameters) {
  return std::sqrt(squares(parameters).value());
}

}  // namespace weft::dist
