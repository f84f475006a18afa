#include "train/config.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "optim/deepspeed_schedule.h"

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

TEST_CASE("A limit is a count or a fraction, by how it is written") {
  CHECK(Limit::parse("10", "limit").count == 10);
  CHECK(Limit::parse("1", "limit").count == 1);
  CHECK_FALSE(Limit::parse("1.0", "limit").count);
  CHECK(Limit::parse("1.0", "limit").fraction == 1);
  CHECK(Limit::parse("0.25", "limit").of(10, "limit") == 2);
  CHECK(Limit(25).of(10, "limit") == 10);
  CHECK_THROWS_WITH(Limit::parse("some", "limit"),
                    "limit: expected a count, 10, or a fraction, 0.1, got \"some\"");
  CHECK_THROWS_WITH(Limit::parse("", "limit"), Contains("got \"\""));
  CHECK_THROWS_WITH(Limit(1.5).check("limit"),
                    "limit: expected a positive count or a fraction in (0, 1], got 1.5");
  // So it goes to JSON and back; a checkpoint of an older program has counts, of which 0 is all.
  for (const char* text : {"0", "3", "0.5", "1.0"}) {
    const json limited = {{"limit_batches", json::parse(text)}};
    CHECK(to_json(config_from_json(limited)).at("limit_batches").dump() == text);
  }
  Config config;
  CHECK(trained_batches(config, 40) == 40);
  config.limit_batches = 0.1;
  CHECK(trained_batches(config, 40) == 4);
  CHECK(evaluated_batches(config, 20) == 2);
  CHECK_THROWS_WITH(evaluated_batches(config, 5), "limit-batches: 0.1 of 5 batches is none");
  config.limit_val_batches = 3;
  CHECK(evaluated_batches(config, 20) == 3);
  CHECK(evaluated_batches(config, 2) == 2);
  CHECK_THROWS_WITH(config_from_json({{"val_check_interval", "often"}}),
                    Contains("\"val_check_interval\": expected a count or a fraction, got"));
}

TEST_CASE("A duration is a number with its unit, or days, hours, minutes and seconds") {
  CHECK(parse_duration("90s") == 90);
  CHECK(parse_duration("1.5m") == 90);
  CHECK(parse_duration("2h") == 7200);
  CHECK(parse_duration("1d") == 86400);
  CHECK(parse_duration("00:12:00:00") == 43200);
  CHECK(parse_duration("1:2:3:4") == ((24 + 2) * 60 + 3) * 60 + 4);
  for (const char* wrong : {"", "90", "s", "-5s", "0s", "nan s", "1e999s", "5 s", "1:2:3", "1:2:3:",
                            "1:2:3:4:5", "1:-2:3:4", "a:b:c:d", "0:0:0:0", ":::1", "1h30m"}) {
    INFO(wrong);
    CHECK_FALSE(parse_duration(wrong));
  }
  CHECK(parse_save_every("500").steps == 500);
  CHECK(parse_save_every("600s").seconds == 600);
  CHECK(parse_save_every("10m").seconds == 600);
  CHECK_THROWS_WITH(parse_save_every("0"), Contains("save-every: expected a number of steps, 500"));
  CHECK_THROWS_WITH(parse_save_every("often"), Contains("got \"often\""));
}

TEST_CASE("Without a limit of epochs something else ends a run, and its schedule knows when") {
  Config config;
  config.epochs = -1;
  CHECK_THROWS_WITH(validate(config), Contains("expected one of max-steps or max-time"));
  CHECK_FALSE(epoch_limit(config));
  const auto scheduler = [](const char* type, const char* params) {
    return fmt::format(R"({{"type": "{}", "params": {{{}}}}})", type, params);
  };
  struct Case {
    std::string schedule;
    double warmup;
    bool goes_by_all_steps;
  };
  for (const auto& [schedule, warmup, goes_by_all_steps] :
       {Case{"one-cycle", 0.1, true}, Case{"cosine", 0, true}, Case{"constant", 0.1, true},
        Case{"constant", 0, false}, Case{scheduler("OneCycle", ""), 0.1, false},
        Case{scheduler("WarmupLR", R"("warmup_num_steps": 10)"), 0.1, false},
        Case{scheduler("WarmupLR", R"("warmup_num_steps": "auto")"), 0.1, true},
        Case{scheduler("WarmupDecayLR", R"("total_num_steps": 100)"), 0.1, false},
        Case{scheduler("WarmupDecayLR", ""), 0.1, true},
        Case{scheduler("WarmupCosineLR", R"("total_num_steps": "auto")"), 0.1, true}}) {
    INFO(schedule << ", warmup " << warmup);
    config.schedule = schedule;
    config.warmup = warmup;
    config.max_steps = 0;
    config.max_time = "10m";
    if (goes_by_all_steps) {
      CHECK_THROWS_WITH(validate(config), Contains("schedule: " + optim::schedule_name(schedule)) &&
                                              Contains("leave open; expected max-steps"));
    } else {
      CHECK_NOTHROW(validate(config));
    }
    config.max_steps = 500;
    config.max_time = "";
    CHECK_NOTHROW(validate(config));
  }
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
