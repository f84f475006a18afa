// A small gpt learns a language whose entropy is known.
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "autograd/backward.h"
#include "autograd/random.h"
#include "core/parallel.h"
#include "data/sets/grammar.h"
#include "models/generate.h"
#include "nn/loss.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/schedule.h"

namespace weft::models {
namespace {

Tensor loss_of(Gpt& model, const data::TokenBatch& batch) {
  return nn::cross_entropy(ops::flatten(model(batch.tokens), 0, 1), ops::flatten(batch.targets));
}

/// One thread while it lives: products this small gain little from a second one, and wait for it
/// where others have the machine. The bits are the same.
class SingleThread {
 public:
  SingleThread() { set_num_threads(1); }
  ~SingleThread() { set_num_threads(threads_); }

 private:
  int threads_ = num_threads();
};

TEST_CASE("a small gpt comes near the entropy of its text, and not below") {
  const SingleThread single_thread;
  const data::Grammar& grammar = data::Grammar::tales();
  constexpr int64_t kSteps = 600, kLength = 64;
  const data::Bytes text = grammar.text(220'000, 1);
  const auto [train, held_out] = data::split_text(text, 0.95);
  manual_seed(1);
  Gpt model({.context = kLength, .width = 48, .layers = 2, .kv_heads = 2, .hidden = 128});
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
  optim::Scheduler scheduler(optimizer, optim::one_cycle(kSteps));
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor loss =
        loss_of(model, data::random_windows(train, {.batch = 8, .length = kLength}, step));
    if (step == 0) CHECK(loss.item() == Approx(std::log(256)).epsilon(0.05));
    backward(loss);
    optim::clip_grad_norm(model.parameters(), 1.0);
    optimizer.step();
    scheduler.step();
  }

  const NoGrad guard;
  const data::Windows windows(held_out, kLength, kLength / 2);
  const double loss = loss_of(model, windows.batch(0, windows.size())).item();
  // What the same bytes say to whoever knows the grammar, and all that came before.
  const std::vector<double> information = grammar.information(text);
  const auto counted = static_cast<int64_t>(held_out.size()) - 1;
  const double truth =
      std::accumulate(information.end() - counted, information.end(), 0.0) / counted;
  INFO("loss " << loss << ", the text's own " << truth << ", entropy " << grammar.entropy());
  CHECK(std::abs(truth - grammar.entropy()) < 5 * grammar.deviation(counted));
  // Of any predictor that does not look ahead, p(it saves t nats on a text) <= exp(-t), since its
  // likelihood over the true one has the mean 1 (Markov's inequality): 30 nats once in 1e13 texts.
  CHECK(loss > truth - 30.0 / counted);
  // How often each byte comes leaves 2.72 nats, the byte before it 1.26, the eight before it 0.38.
  CHECK(loss < truth + 0.05);

  // What it holds most probable is in the grammar's language.
  const std::string prompt = "the ";
  const auto made =
      generate(model, data::tokens_of(prompt), {.max_new_tokens = kLength - 4, .temperature = 0});
  const std::string written = prompt + data::text_of(made);
  INFO(written);
  CHECK_NOTHROW(grammar.information(data::Bytes(written.begin(), written.end())));
}

}  // namespace
}  // namespace weft::models
