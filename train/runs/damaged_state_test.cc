// Runs whose state.json is not what they wrote, behind a checksum that fits.
#include <catch2/catch.hpp>
#include <fstream>

#include "io/checked_json.h"
#include "io/files.h"
#include "tests/json_damage.h"
#include "tests/program/train_runs.h"
#include "train/runs/run.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

/// Trains one step, and goes on from its state with one place after the other damaged; of the
/// configuration train/trained_model_test.cc knows. Each is taken up, or is an error that names the
/// checkpoint and the key, or who could not take it.
void check_states(const std::string& name, Config config) {
  config.epochs = 1;
  config.limit_batches = 1;
  config.batch_size = 2;
  config.ema = 0.5;
  config.early_stopping = 2;
  config.save_top_k = 1;
  config.max_time = "1d";
  const std::string run = cli::fresh_scratch(name);
  train::train(config, {.output = run, .json = true});
  const io::Path file = io::Path(run) / "step-1" / "state.json";
  nlohmann::json whole = nlohmann::json::parse(io::read_text(file));
  whole.erase("crc32");
  nlohmann::json state = whole.at("state");
  state.erase("config");
  int errors = 0;
  for_each_damage(state, [&](const nlohmann::json& damaged, const std::string& key) {
    if (!damaged.is_object()) return;
    nlohmann::json all = whole;
    all["state"] = damaged;
    all["state"]["config"] = whole["state"]["config"];
    std::ofstream(file) << io::checked_json_text(all, 2);
    INFO(damaged.dump());
    try {
      resume({.resume = run, .json = true});
    } catch (const Error& error) {
      ++errors;
      CHECK_THAT(error.what(),
                 Contains(run) && (Contains(key) || Contains("AdamW: ") ||
                                   Contains("Scheduler: ") || Contains("load_state_dict: ")));
    }
  });
  CHECK(errors > 100);
}

}  // namespace

TEST_CASE("a run on images goes on from a damaged state, or names what is wrong with it") {
  const std::string folder = cli::make_colour_folders("damaged_images", 4, 8, 8);
  Config config;
  config.data = "folder:" + folder;
  config.model = "resnet8";
  config.image_size = 8;
  check_states("damaged_images_run", config);
}

TEST_CASE("a run on text goes on from a damaged state, or names what is wrong with it") {
  const std::string text = cli::scratch("damaged.txt");
  std::ofstream(text) << std::string(4000, 'a');
  Config config = recipe("gpt-quick");
  config.data = "text:" + text;
  check_states("damaged_text_run", config);
}
