// A generative adversarial network that learns a ring: two models and two optimizers, which Fabric
// sets up one after the other. Goodfellow et al., arXiv:1406.2661.
//
//   WEFT_DEVICES=2 WEFT_STRATEGY=fsdp WEFT_PRECISION=16-mixed gan [STEPS]
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "autograd/ops.h"
#include "nn/loss.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "train/fabric.h"

using namespace weft;

constexpr int64_t kBatch = 64, kNoise = 4;

struct Mlp : nn::Sequential {
  Mlp(int64_t in, int64_t width, int64_t out) {
    append<nn::Linear>(in, width);
    append<nn::SiLU>();
    append<nn::Linear>(width, width);
    append<nn::SiLU>();
    append<nn::Linear>(width, out);
  }
};
// Without arguments: so strategy dp makes replicas.
struct Generator : Mlp {
  Generator() : Mlp(kNoise, 32, 2) {}
};
struct Critic : Mlp {
  Critic() : Mlp(2, 32, 1) {}
};

Tensor length(const Tensor& x) { return ops::sqrt(ops::sum(x * x, {1}, true)); }

/// Points [count, 2] of the circle of radius 1.
Tensor ring(int64_t count) {
  const Tensor x = ops::randn({count, 2});
  return x / length(x);
}

/// How real the points are, as logits, against what they are to be taken for.
Tensor judged(const Tensor& logits, bool as_real) {
  return nn::bce_with_logits(logits, Tensor::full(logits.shape(), as_real, logits.dtype()));
}

int main(int argc, char** argv) try {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 500;
  if (steps <= 0) {
    std::fprintf(stderr, "gan: expected a number of steps, got \"%s\"\n", argv[1]);
    return 2;
  }
  train::Fabric fabric(train::from_environment());
  if (const auto code = fabric.launch(argc, argv)) return *code;
  fabric.seed_everything(1);
  Generator generator;
  Critic critic;
  optim::AdamW draws(generator.named_parameters(), {.lr = 3e-3, .beta1 = 0.5, .weight_decay = 0});
  optim::AdamW judges(critic.named_parameters(), {.lr = 3e-3, .beta1 = 0.5, .weight_decay = 0});
  fabric.setup(generator, draws);
  fabric.setup(critic, judges);
  for (int step = 0; step < steps; ++step) {
    const Tensor fake = generator(ops::randn({kBatch, kNoise}));
    judges.zero_grad();
    const Tensor missed = judged(critic(ring(kBatch)), true) + judged(critic(detach(fake)), false);
    fabric.backward(missed);
    judges.step();

    draws.zero_grad();
    const Tensor seen_through = judged(critic(fake), true);
    fabric.backward(seen_through);
    draws.step();
    if ((step + 1) % 100 == 0) {
      fabric.print("step {} critic {:.3f} generator {:.3f}\n", step + 1, missed.item(),
                   seen_through.item());
    }
  }
  const NoGrad guard;
  const Tensor drawn = generator(ops::randn({256, kNoise}));
  const Tensor distance = ops::mean(ops::abs(length(drawn) - 1.0));
  fabric.all_reduce(distance);
  fabric.print("mean distance from the ring {:.3f}\n", distance.item());
} catch (const std::exception& error) {
  std::fprintf(stderr, "gan: %s\n", error.what());
  return 1;
}
