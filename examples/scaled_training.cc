// The loop of plain_training.cc on several ranks: the lines that differ are marked.
//
//   scaled_training [FILE [DEVICES [STRATEGY]]]
#include <fmt/core.h>

#include <cstdlib>

#include "autograd/ops.h"
#include "data/loader.h"
#include "data/sets/open.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "train/fabric.h"  // <-

using namespace weft;

struct Net : nn::Sequential {
  Net() {
    append<nn::Flatten>();
    fc1 = &append<nn::Linear>(3 * 32 * 32, 64);
    append<nn::GELU>();
    fc2 = &append<nn::Linear>(64, 10);
  }
  /// What strategies must know of it; ddp and zero need nothing at all.
  nn::ModelStructure structure() override {                      // <-
    nn::ModelStructure structure = Sequential::structure();      // <- pipeline
    structure.units = nn::wrap_modules<nn::Linear>();            // <- fsdp
    structure.mlps = {{fc1, fc2}};                               // <- tp
    structure.replica = [] { return std::make_unique<Net>(); };  // <- dp
    return structure;                                            // <-
  }                                                              // <-
  nn::Linear *fc1, *fc2;
};

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "scaled.safetensors";
  train::Fabric fabric({.devices = argc > 2 ? std::atoi(argv[2]) : 2,         // <-
                        .strategy = {.name = argc > 3 ? argv[3] : "auto"}});  // <-
  if (const auto code = fabric.launch(argc, argv)) return *code;              // <-
  fabric.seed_everything(1);                                                  // <-
  Net model;
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  fabric.setup(model, optimizer);  // <-

  const data::DatasetPtr dataset = data::open_data("builtin", 1).train;
  const auto loader = fabric.setup_dataloader(  // <-
      dataset,
      {.batch_size = 64 / fabric.data_devices(), .drop_last = true, .preprocess = {.size = 32}});
  for (int step = 0; step < 10; ++step) {
    const auto batch = loader->next();
    optimizer.zero_grad();
    const Tensor loss = ops::cross_entropy(fabric.forward(batch->images), batch->labels);  // <-
    fabric.backward(loss);                                                                 // <-
    fabric.clip_gradients(optimizer, 1.0);                                                 // <-
    fabric.step(optimizer);                                                                // <-
    const Tensor mean = detach(loss);                                                      // <-
    fabric.all_reduce(mean);                                                               // <-
    fabric.print("step {} loss {:.4f}\n", step + 1, mean.item());                          // <-
  }
  fabric.save(path);  // <-
}
