#include "train/config.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "io/files.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;
using json = nlohmann::json;

TEST_CASE("Every setting goes to JSON and back") {
  for (const std::string& name : recipe_names()) {
    const json written = to_json(recipe(name));
    CHECK(to_json(config_from_json(written)) == written);
  }
}

TEST_CASE("Settings that an older program did not know have their defaults") {
  const json old = json::parse(io::read_text("train/testdata/state_before_precisions.json"))
                       .at("state")
                       .at("config");
  const json now = to_json(config_from_json(old)), fresh = to_json(Config());
  REQUIRE(now.size() == fresh.size());
  REQUIRE(old.size() < now.size());
  for (const auto& [key, value] : now.items()) {
    INFO(key);
    CHECK(value == (old.contains(key) ? old : fresh).at(key));
  }
  CHECK(now.at("model") == "resnet8");
}

TEST_CASE("Unknown settings and values of another type are named") {
  json config = to_json(Config());
  config["levitation"] = 3;
  CHECK_THROWS_WITH(config_from_json(config),
                    "configuration: unknown key \"levitation\"; a newer program may know it");
  config.erase("levitation");
  config["epochs"] = "many";
  CHECK_THROWS_WITH(config_from_json(config),
                    "configuration: \"epochs\": expected a whole number, got \"many\"");
  for (const char* value : {"8e20", "2.5", "1e300", "-1e19", "18446744073709551615"}) {
    config["epochs"] = json::parse(value);
    CHECK_THROWS_WITH(config_from_json(config),
                      Contains("\"epochs\": expected a whole number, got "));
  }
  config["epochs"] = 2e1;
  config["seed"] = uint64_t{18446744073709551615u};
  CHECK(config_from_json(config).epochs == 20);
  CHECK(config_from_json(config).seed == 18446744073709551615u);
  config["seed"] = -1;
  CHECK_THROWS_WITH(config_from_json(config),
                    Contains("\"seed\": expected a whole number, got -1"));
  config["seed"] = 0;
  config["pipeline_schedule"] = 5;
  CHECK_THROWS_WITH(config_from_json(config),
                    "configuration: \"pipeline_schedule\": expected text, got 5");
  CHECK_THROWS_WITH(config_from_json(json::array()), "configuration: expected an object, got []");
}
