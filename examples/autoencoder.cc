// The autoencoder of PyTorch Lightning's README: images of 28 x 28 through three numbers and back.
//
//   autoencoder [DIRECTORY [DATA [STEPS]]]
//   WEFT_DEVICES=2 WEFT_STRATEGY=fsdp WEFT_PRECISION=bf16-mixed autoencoder runs/mnist mnist:DIR
//
// Started again with a directory it goes on from where it was. DATA is MNIST's files, or else the
// built-in images, made small and grey.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "data/sets/open.h"
#include "nn/loss.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "train/trainer/trainer.h"

using namespace weft;

struct Autoencoder : train::TrainingModule {
  Autoencoder() : encoder(add<nn::Sequential>("encoder")), decoder(add<nn::Sequential>("decoder")) {
    encoder.append<nn::Linear>(28 * 28, 64);
    encoder.append<nn::ReLU>();
    encoder.append<nn::Linear>(64, 3);
    decoder.append<nn::Linear>(3, 64);
    decoder.append<nn::ReLU>();
    decoder.append<nn::Linear>(64, 28 * 28);
  }
  Tensor forward(const Tensor& x) override { return decoder(encoder(x)); }
  nn::ModelStructure structure() override { return {nn::wrap_modules<nn::Sequential>()}; }
  Tensor error(const train::Batch& batch) {
    const Tensor x = ops::flatten(ops::mean(batch[0], {1}), 1);  // [B, 784]
    return nn::mse_loss((*this)(x), x);
  }
  Tensor training_step(const train::Batch& batch, int64_t) override {
    const Tensor loss = error(batch);
    log("train_loss", loss, {.on_step = true});
    return loss;
  }
  void validation_step(const train::Batch& batch, int64_t) override {
    log("val_loss", error(batch));
  }
  train::Optimization configure_optimizers() override {
    return std::make_unique<optim::Adam>(named_parameters(), optim::AdamOptions{.lr = 1e-3});
  }
  nn::Sequential &encoder, &decoder;
};

int main(int argc, char** argv) try {
  const std::string directory = argc > 1 ? argv[1] : "runs/autoencoder";
  train::TrainerOptions options = {
      .fabric = train::from_environment(), .max_epochs = 10, .directory = directory};
  if (argc > 3) options.max_steps = std::atoi(argv[3]);
  train::Trainer trainer(options);
  if (const auto code = trainer.launch(argc, argv)) return *code;
  trainer.seed_everything(1);
  const data::Splits images = data::open_data(argc > 2 ? argv[2] : "builtin", 1);
  data::Loader train(images.train, {.batch_size = 64, .shuffle = true, .preprocess = {.size = 28}});
  data::Loader validation(images.validation, {.batch_size = 64, .preprocess = {.size = 28}});
  Autoencoder model;
  const std::string last = directory + "/checkpoints/last.safetensors";
  trainer.fit(model, train, validation, std::filesystem::exists(last) ? last : "");
  trainer.fabric().save(directory + "/model.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "autoencoder: %s\n", error.what());
  return 1;
}
