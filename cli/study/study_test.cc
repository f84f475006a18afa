// weft study: its tables, its page, what it takes up again, and the gradient noise scale.
#include "cli/study/noise_scale.h"
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

/// 54 images to train on, 6 to validate on.
std::string small() {
  static const std::string folder = make_colour_folders("study_images", 20, 16, 16);
  return fmt::format(" --model vit_lite --data folder:{} --batch-size 4 --epochs 2 --lr 5e-4",
                     folder);
}
std::string tiny() { return small() + " --limit-batches 4"; }
/// Of batches of any size the same images.
std::string half() { return small() + " --limit-batches 0.5 --limit-val-batches 1.0"; }

std::vector<json> study(const std::string& arguments, const std::string& settings = tiny()) {
  const Outcome outcome = run_weft("study " + arguments + settings + " --json");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return parse_lines(outcome.out);
}

}  // namespace

TEST_CASE("the noise scale comes from two batch sizes, without bias") {
  // |G|^2 = 4, tr(Sigma) = 100.
  CHECK(noise_scale({10, 4 + 10}, {40, 4 + 2.5}) == Approx(25));
  CHECK(noise_scale({1, 104}, {2, 54}) == Approx(25));
  CHECK(noise_scale({1, 4}, {8, 4}) == 0);
  CHECK(std::isnan(noise_scale({1, 8}, {2, 4})));  // nothing but noise
  CHECK_THROWS_WITH(noise_scale({8, 1}, {8, 1}), Contains("two sizes"));
}

TEST_CASE("batch sizes and rules make a table and a page, and are taken up again") {
  const std::string output = fresh_scratch("batches");
  const std::string command =
      "batch-size --batches 4,8 --rules linear,lamb --seeds 2 --target 0.2 --output " + output;
  const auto runs = study(command, half());
  REQUIRE(runs.size() == 2 * 2 * 2);
  for (const json& run : runs) {
    INFO(run.dump());
    const double batch = run.at("batch"), ratio = batch / 4;
    const bool is_lamb = run.at("rule") == "lamb";
    CHECK(run.at("lr").get<double>() == Approx(is_lamb ? 0.002 * std::sqrt(ratio) : 5e-4 * ratio));
    CHECK(run.at("failed") == false);
    CHECK(run.at("accuracy") >= 0);
    CHECK((run.at("noise_scale").is_null() || run.at("noise_scale") >= 0));
    if (run.at("steps_to_target").is_null()) continue;
    CHECK(run.at("samples_to_target").get<double>() ==
          batch * run.at("steps_to_target").get<double>());
  }
  CHECK(runs[0].at("seed") != runs[1].at("seed"));
  // At the run's own batch the rule without one is the linear one: it has the same runs.
  const auto alike =
      study("batch-size --batches 4 --rules linear,none --seeds 2 --target 0.2 --output " + output,
            half());
  REQUIRE(alike.size() == 4);
  for (size_t i : {0, 1}) {
    CHECK(alike[i] == runs[i]);
    CHECK(alike[2 + i].at("rule") == "none");
    CHECK(alike[2 + i].at("directory") == runs[i].at("directory"));
  }
  const auto trained = std::filesystem::last_write_time(runs[0].at("directory").get<std::string>() +
                                                        "/model.safetensors");
  CHECK(study(command, half()) == runs);
  CHECK(trained == std::filesystem::last_write_time(runs[0].at("directory").get<std::string>() +
                                                    "/model.safetensors"));
  const std::string page = read_file(output + "/study.html");
  CHECK_THAT(page, Contains("Accuracy at equal epochs") && Contains("Steps to the target") &&
                       Contains("Gradient noise scale") && Contains("<svg"));
  // Other settings under the same names are no part of the study.
  check_error(run_weft("study " + command + half() + " --weight-decay 0.2"), 1,
              "is a run with weight-decay");
}

TEST_CASE("a rule goes by the images of a step, which may take several batches") {
  const std::string output = fresh_scratch("rules");
  const auto runs = study(
      "batch-size --batches 4,16 --rules none,sqrt,lars --seeds 1 --accumulate 2 --target 0.001 "
      "--output " +
          output,
      half());
  struct Expected {
    std::string rule, optimizer;
    int64_t batch;
    double lr;
    int64_t steps;
  };
  // The run's own batch is twice 4 images, too. Six batches of 4 are three steps, one of 16 is one.
  const std::vector<Expected> all = {{"none", "adamw", 8, 5e-4, 3}, {"none", "adamw", 32, 5e-4, 1},
                                     {"sqrt", "adamw", 8, 5e-4, 3}, {"sqrt", "adamw", 32, 1e-3, 1},
                                     {"lars", "lars", 8, 1, 3},     {"lars", "lars", 32, 4, 1}};
  REQUIRE(runs.size() == all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const json& run = runs[i];
    INFO(run.dump());
    CHECK(run.at("rule") == all[i].rule);
    CHECK(run.at("batch").dump() == std::to_string(all[i].batch));  // a whole number
    CHECK(run.at("lr").get<double>() == Approx(all[i].lr));
    CHECK(run.at("steps_to_target").dump() == std::to_string(all[i].steps));
    CHECK(run.at("samples_to_target").dump() == std::to_string(all[i].steps * all[i].batch));
    const std::string settings = read_file(run.at("directory").get<std::string>() + "/config.yaml");
    CHECK_THAT(settings, Contains("optimizer: \"" + all[i].optimizer + "\"") &&
                             Contains("accumulate: 2\n") &&
                             Contains(fmt::format("global-batch-size: {}\n", all[i].batch / 2)));
  }
  CHECK_THAT(read_file(output + "/study.html"), Contains("0.0005 at a batch of 8"));
}

TEST_CASE("batches are compared at equal epochs alone") {
  for (const auto& [option, message] : std::vector<std::pair<std::string, std::string>>{
           {"--epochs -1 --max-steps 4", "--epochs -1: expected a positive number"},
           {"--max-steps 5", "--max-steps 5: it may end a run before its 2 epochs"},
           {"--max-time 1h", "--max-time \"1h\": it may end a run before its 2 epochs"},
           {"--early-stopping=1", "--early-stopping 1: it may end a run before its 2 epochs"},
           {"--val-check-interval 0.5",
            "--val-check-interval 0.5: a validation within an epoch is none to compare at"},
           {"--val-check-interval 3", "--val-check-interval 3: a validation within an epoch"},
           {"--limit-batches 8", "--limit-batches 8: as many batches are more images"},
           {"--limit-val-batches 2", "--limit-val-batches 2: as many batches are more images"}}) {
    INFO(option);
    const std::string output = fresh_scratch("unequal");
    std::string settings = small();
    if (option.starts_with("--epochs")) settings.erase(settings.find(" --epochs 2"), 11);
    check_error(run_weft("study batch-size --output " + output + settings + " " + option), 2,
                "study batch-size: " + message);
    CHECK(!std::filesystem::exists(output));
  }
}

TEST_CASE("seeds and settings") {
  const std::string output = fresh_scratch("seeds");
  CHECK(study("seeds --seeds 2 --output " + output).size() == 2);
  const Outcome table = run_weft("study seeds --seeds 2 --output " + output + tiny());
  CHECK(table.code == 0);
  CHECK_THAT(table.out, Contains("accuracy %") && Contains("+-"));
  // A run whose figures are lost is not left out of the mean.
  for (const auto& entry : std::filesystem::directory_iterator(output)) {
    if (entry.is_directory()) std::filesystem::remove(entry.path() / "metrics.jsonl");
  }
  const Outcome lost = run_weft("study seeds --seeds 2 --output " + output + tiny());
  CHECK(lost.code == 1);
  CHECK_THAT(lost.err, Contains("its metrics.jsonl ends at step 0, its last checkpoint is step-"));
  // A run that ended within its epochs is no other one.
  const std::string short_runs = fresh_scratch("short_runs");
  for (const bool is_first : {true, false}) {
    const Outcome outcome =
        run_weft("study seeds --seeds 1 --max-steps 2 --output " + short_runs + tiny());
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    CHECK((outcome.err.find("[1/1]") != std::string::npos) == is_first);
  }
  const auto runs = study("sweep --vary lr=1e-4,1e-3 --vary optimizer=sgd --seeds 1 --output " +
                          fresh_scratch("settings"));
  REQUIRE(runs.size() == 2);
  CHECK(runs[1].at("labels") == json({"lr=1e-3", "optimizer=sgd"}));
  check_error(run_weft("study sweep --vary lr --output " + scratch("none")), 2,
              "expected SETTING=VALUE");
  check_error(run_weft("study sweep --vary lr=1e-3 --vary seed=3 --vary lr=1e-1 --output " +
                       scratch("none")),
              2,
              "--vary: lr is given twice; expected all of its values at once: --vary lr=VALUE,...");
  check_error(
      run_weft("study sweep --vary batch-size=4 --vary batch_size=8 --output " + scratch("none")),
      2, "--vary: batch-size is given twice");
  // By the names that weft train knows.
  const auto named =
      study("sweep --vary strategy=NO,single --vary devices=auto --seeds 1 --output " +
            fresh_scratch("named"));
  REQUIRE(named.size() == 2);
  CHECK(named[0].at("labels") == json({"strategy=NO", "devices=auto"}));
  CHECK(named[0].at("directory") == named[1].at("directory"));
  // Paths, as those of data, name no directories in the study's.
  const std::string paths = fresh_scratch("paths");
  const auto of_paths =
      study("sweep --vary data=builtin,folder:" + make_colour_folders("other_images", 20, 16, 16) +
            " --seeds 1 --output " + paths);
  REQUIRE(of_paths.size() == 2);
  for (const json& run : of_paths) {
    CHECK(std::filesystem::path(run.at("directory")).parent_path() == paths);
  }
  check_error(run_weft("study sweep --vary leraning-rate=1 --output " + scratch("none")), 2,
              "there is no setting \"leraning-rate\"");
  check_error(run_weft("study batch-size --rules cubic --output " + scratch("none")), 2,
              "\"cubic\" is not one of none, linear, sqrt, lars, lamb");
  check_error(run_weft("study batch-size --rules liner --output " + scratch("none")), 2,
              "did you mean \"linear\"?");
}

TEST_CASE("of text the loss is what a training comes to") {
  const std::string arguments = " --recipe gpt-quick --model gpt_mini --epochs 1 --limit-batches 3";
  const std::string command = "study seeds --seeds 2 --output " + fresh_scratch("text") + arguments;
  const Outcome table = run_weft(command);
  INFO(table.err);
  REQUIRE(table.code == 0);
  CHECK_THAT(table.out, Contains("loss") && Contains("+-") && !Contains("accuracy"));
  const Outcome again = run_weft(command + " --json");
  const auto runs = parse_lines(again.out);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].at("accuracy").is_null());
  CHECK(runs[0].at("loss") > 0);
  check_error(run_weft("study batch-size --output " + scratch("none") + arguments), 2,
              "is text; expected images");
}

TEST_CASE("a run that diverges counts as failed, and the study goes on") {
  const auto runs = study("sweep --vary lr=1e-3,1e30 --seeds 1 --output " + fresh_scratch("fails") +
                          " --optimizer sgd --clip-norm 0 --schedule constant --warmup 0");
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].at("failed") == false);
  CHECK(runs[1].at("failed") == true);
}
