// A fit whose states are sharded: kept, left behind and continued as full ones are.
#include <catch2/catch.hpp>
#include <set>

#include "dist/comm/in_process.h"
#include "io/sharded_safetensors.h"
#include "train/trainer/model_checkpoint.h"
#include "train/trainer/testing.h"

using namespace weft;
using namespace weft::train;
using namespace weft::train::testing;

namespace {

/// The weights after four epochs under fsdp on so many ranks, the states in `directory`.
std::vector<double> fit(const std::string& type, int ranks, const std::string& directory,
                        const std::string& from = {}) {
  std::vector<double> weights;
  dist::run_ranks(ranks, [&](dist::Communicator& c) {
    Trainer trainer(
        quiet({.fabric = {.devices = ranks, .strategy = {.name = "fsdp"}, .state_dict_type = type},
               .max_epochs = 4,
               .directory = directory,
               .callbacks = {
                   std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.filename = "{epoch}",
                                                                            .monitor = "train_loss",
                                                                            .save_top_k = 2,
                                                                            .save_last = true})}}));
    trainer.launch({&c, [](dist::Communicator*) {}});
    trainer.seed_everything(1);
    Regression model;
    data::TensorLoader train(line(16), {.batch_size = 4, .shuffle = true});
    trainer.fit(model, train, {}, from);
    const std::vector<double> mine = weights_of(trainer, model);
    if (c.rank() == 0) weights = mine;
  });
  return weights;
}

std::set<std::string> names_in(const io::Path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace

TEST_CASE("a fit with sharded states has the bits of one with full ones, and goes on") {
  const std::string full = scratch("full"), sharded = scratch("sharded"), again = scratch("again");
  const std::vector<double> weights = fit("full", 2, full);
  CHECK(fit("sharded", 2, sharded) == weights);
  const io::Path states = io::Path(sharded) / "checkpoints";
  CHECK(names_in(states) == std::set<std::string>{"epoch=3", "epoch=4", "last"});
  CHECK(names_in(states / "last").size() == 3);
  CHECK(io::ShardedReader(states / "last").index().world_size == 2);
  CHECK(fit("sharded", 2, again, states / "epoch=3") == weights);
  // One kind goes on as the other.
  CHECK(fit("full", 2, again, states / "epoch=3") == weights);
  CHECK(fit("sharded", 2, again, full + "/checkpoints/epoch=3.safetensors") == weights);
}
