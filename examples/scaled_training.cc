// The program of plain_training.cc on any number of devices: the lines that differ are marked. Five
// of them scale it; the others are the header, and output by one rank instead of by all.
//
//   WEFT_DEVICES=4 WEFT_STRATEGY=fsdp WEFT_PRECISION=bf16-mixed scaled_training [FILE]
//
// Without these variables it trains on one device. split_batches: the batch of 64 is that of all.
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
#include "train/fabric.h"  // <-

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
  train::Fabric fabric(train::from_environment({.split_batches = true}));  // <- 1
  if (const auto code = fabric.launch(argc, argv)) return *code;           // <- 2
  manual_seed(1);
  Net model;
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  const data::DatasetPtr dataset = data::open_data("builtin", 1).train;
  data::Loader loader(dataset, {.batch_size = 64, .drop_last = true, .preprocess = {.size = 32}});
  fabric.setup(model, optimizer);   // <- 3
  fabric.setup_dataloader(loader);  // <- 4
  for (int step = 0; step < 10; ++step) {
    const auto batch = loader.next();
    optimizer.zero_grad();
    const Tensor loss = ops::cross_entropy(model(batch->images), batch->labels);
    fabric.backward(loss);  // <- 5
    optim::clip_grad_norm(model.parameters(), 1.0);
    optimizer.step();
    fabric.print("step {} loss {:.4f}\n", step + 1, loss.item());  // <-
  }
  fabric.save(path);  // <-
} catch (const std::exception& error) {
  std::fprintf(stderr, "training: %s\n", error.what());
  return 1;
}
