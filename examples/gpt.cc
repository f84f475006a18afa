// A byte-level GPT on text of known entropy: a plain training loop, its loss beside the floor, and
// a sample of what it writes.
//
//   gpt [STEPS]
#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "autograd/backward.h"
#include "autograd/random.h"
#include "data/sets/grammar.h"
#include "models/generate.h"
#include "nn/loss.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/schedule.h"

using namespace weft;

/// Mean cross-entropy, in nats per byte.
Tensor loss_of(models::Gpt& model, const data::TokenBatch& batch) {
  return nn::cross_entropy(ops::flatten(model(batch.tokens), 0, 1), ops::flatten(batch.targets));
}

int main(int argc, char** argv) try {
  const int64_t steps = argc > 1 ? std::stoll(argv[1]) : 600, length = 64;
  const data::Grammar& grammar = data::Grammar::tales();
  const auto [train, held_out] = data::split_text(grammar.text(220'000, /*seed=*/1), 0.95);
  manual_seed(1);
  models::Gpt model({.context = length, .width = 48, .layers = 2, .kv_heads = 2, .hidden = 128});
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
  optim::Scheduler scheduler(optimizer, optim::one_cycle(steps));
  for (int64_t step = 1; step <= steps; ++step) {
    optimizer.zero_grad();
    const auto batch = data::random_windows(train, {.batch = 8, .length = length}, step);
    const Tensor loss = loss_of(model, batch);
    backward(loss);
    optim::clip_grad_norm(model.parameters(), 1.0);
    optimizer.step();
    scheduler.step();
    if (step % 50 == 0 || step == steps) fmt::print("step {} loss {:.4f}\n", step, loss.item());
  }
  const NoGrad guard;
  // Every byte of the text once, after half a window of others.
  const data::Windows windows(held_out, length, /*stride=*/length / 2);
  fmt::print("held-out text: {:.4f} nats per byte, its entropy {:.4f}\n",
             loss_of(model, windows.batch(0, windows.size())).item(), grammar.entropy());
  const auto sample = models::generate(model, data::tokens_of("the "), {.max_new_tokens = 60});
  fmt::print("the {}\n", data::text_of(sample));
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpt: %s\n", error.what());
  return 1;
}
