// The loop of plain_training.cc on several ranks: the lines that differ are marked.
//
//   scaled_training [FILE [DEVICES [STRATEGY]]]
#include <fmt/core.h>

#include <cstdlib>

#include "autograd/ops.h"
#include "data/loader.h"
#include "data/open.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "train/fabric.h"  // <-

using namespace weft;

std::unique_ptr<nn::Sequential> make_model() {
  auto model = std::make_unique<nn::Sequential>();
  model->append<nn::Flatten>();
  model->append<nn::Linear>(3 * 32 * 32, 64);
  model->append<nn::GELU>();
  model->append<nn::Linear>(64, 10);
  return model;
}

/// What strategies must know of it; for ddp and zero nothing at all.
dist::ModelStructure structure_of(nn::Sequential& model) {           // <-
  dist::ModelStructure structure(dist::wrap_modules<nn::Linear>());  // <- fsdp
  structure.mlps = {{dynamic_cast<nn::Linear*>(&model[1]),           // <- tp
                     dynamic_cast<nn::Linear*>(&model[3])}};         // <- tp
  structure.segments = nn::segments_of(model);                       // <- pipeline
  structure.replica = make_model;                                    // <- dp
  return structure;                                                  // <-
}

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "scaled.safetensors";
  train::Fabric fabric({.devices = argc > 2 ? std::atoi(argv[2]) : 2,  // <-
                        .strategy = argc > 3 ? argv[3] : "auto"});     // <-
  fabric.launch(argc, argv);                                           // <-
  fabric.seed_everything(1);                                           // <-
  const auto owner = make_model();
  nn::Sequential& model = *owner;
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  fabric.setup(model, optimizer, structure_of(model));  // <-

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
