// A small classifier on the built-in images: a plain training loop.
#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "data/loader.h"
#include "data/sets/open.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "optim/clip.h"

using namespace weft;

struct Net : nn::Sequential {
  Net() {
    append<nn::Flatten>();
    append<nn::Linear>(3 * 32 * 32, 64);
    append<nn::GELU>();
    append<nn::Linear>(64, 10);
  }
};

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "trained.safetensors";
  manual_seed(1);
  Net model;
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  const data::DatasetPtr dataset = data::open_data("builtin", 1).train;
  data::Loader loader(dataset, {.batch_size = 64, .drop_last = true, .preprocess = {.size = 32}});
  for (int step = 0; step < 10; ++step) {
    const auto batch = loader.next();
    optimizer.zero_grad();
    const Tensor loss = ops::cross_entropy(model(batch->images), batch->labels);
    backward(loss);
    optim::clip_grad_norm(model.parameters(), 1.0);
    optimizer.step();
    fmt::print("step {} loss {:.4f}\n", step + 1, loss.item());
  }
  io::write_safetensors(path, model.state_dict(), {{"format", "pt"}});
} catch (const std::exception& error) {
  std::fprintf(stderr, "training: %s\n", error.what());
  return 1;
}
