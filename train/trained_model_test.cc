#include "train/trained_model.h"

#include <catch2/catch.hpp>

#include "tests/json_damage.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

TEST_CASE("a run's state with a key left out, one too many, or a value of another type") {
  Config config;
  config.model = "resnet8";
  const TrainedModel trained = make_trained_model(config, {.size = 32}, {"a", "b"});
  Checkpoint checkpoint;
  checkpoint.model = trained.model->state_dict();
  checkpoint.state = describe(trained);
  CHECK(restore_model(checkpoint, "run/step-1").classes == trained.classes);
  int errors = 0;
  for_each_damage(describe(trained), [&](const nlohmann::json& damaged, const std::string& key) {
    INFO(damaged.dump());
    checkpoint.state = damaged;
    try {
      restore_model(checkpoint, "run/step-1");
    } catch (const Error& error) {
      ++errors;
      const std::string message = error.what();
      CHECK_THAT(message, Contains("run/step-1: "));
      // Of what is possible, but another model's, the weights tell.
      const bool is_another = message.find("load_state_dict: ") != message.npos;
      CHECK_THAT(message, Contains(is_another ? "" : key));
    }
  });
  CHECK(errors > 300);
}
