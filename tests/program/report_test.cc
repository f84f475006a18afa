// What a run leaves for those who look at it: metrics, findings, and the page made of them.
#include <cmath>

#include "tests/program/train_runs.h"

using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

/// The rows of a run's metrics.jsonl without what depends on time and memory.
std::vector<json> metrics_of(const std::string& run) {
  std::vector<json> rows = parse_lines(read_file(run + "/metrics.jsonl"));
  for (json& row : rows) {
    for (const char* name : {"seconds", "images_per_second", "memory_bytes"}) row.erase(name);
  }
  return rows;
}

/// Of metrics.csv the column of that name, with the cells that are not empty.
std::vector<std::string> column(const std::string& run, const std::string& name) {
  std::stringstream lines(read_file(run + "/metrics.csv"));
  const auto cells = [](const std::string& line) {
    std::vector<std::string> all;
    std::stringstream rest(line);
    for (std::string cell; std::getline(rest, cell, ',');) all.push_back(cell);
    return all;
  };
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = cells(line);
  const auto at = static_cast<size_t>(std::ranges::find(names, name) - names.begin());
  REQUIRE(at < names.size());
  std::vector<std::string> values;
  while (std::getline(lines, line)) {
    const std::vector<std::string> row = cells(line);
    if (at < row.size() && !row[at].empty()) values.push_back(row[at]);
  }
  return values;
}

const std::string& colours() {
  static const std::string folder = make_colour_folders("colours", 12, 16, 16);
  return folder;
}

}  // namespace

TEST_CASE("A run writes its figures, findings and page, and says where") {
  const std::string run = fresh_scratch("pictured");
  const Outcome outcome = run_weft(
      "train --model resnet8 --precision fp16 --epochs 2 --batch-size 8 --watch=2 --data "
      "folder:" +
      colours() + " --output " + run);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err == "");
  CHECK_THAT(outcome.out, Contains("\nreport     " + run + "/report.html\n"));
  const std::vector<json> rows = parse_lines(read_file(run + "/metrics.jsonl"));
  REQUIRE(rows.size() == 2 * 4 + 2);  // 33 images to train, and an epoch's row after its steps
  double seconds = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    INFO(rows[i]);
    const bool is_epoch = i == 4 || i == 9;
    CHECK(rows[i].contains("epoch") == is_epoch);
    CHECK(rows[i].at("seconds") > seconds);
    seconds = rows[i].at("seconds");
    for (const char* name :
         {"loss/train", "accuracy/train", "loss/validation", "accuracy/validation"}) {
      CHECK(rows[i].contains(name) == is_epoch);
    }
    for (const char* name :
         {"loss/step", "lr", "loss_scale", "images_per_second", "memory_bytes", "grad_norm"}) {
      CHECK(rows[i].contains(name) != is_epoch);
    }
    bool is_watched = false;
    for (const auto& [name, value] : rows[i].items()) is_watched |= name.starts_with("watch/");
    CHECK(is_watched == (!is_epoch && rows[i].at("step").get<int64_t>() % 2 == 0));
  }
  CHECK(column(run, "epoch") == std::vector<std::string>{"1", "2"});
  CHECK(column(run, "loss/step").size() == 8);

  const json found = json::parse(read_file(run + "/validation.json"));
  CHECK(found.at("step") == 8);
  CHECK(found.at("images") == 3);
  CHECK(found.at("classes") == json({"blue", "green", "red"}));
  CHECK(found.at("accuracy").get<double>() ==
        Approx(rows.back().at("accuracy/validation").get<double>()));
  CHECK(found.at("loss").get<double>() == Approx(rows.back().at("loss/validation").get<double>()));
  int64_t images = 0, right = 0;
  for (const json& cell : found.at("confusion")) {
    images += cell.at(2).get<int64_t>();
    if (cell.at(0) == cell.at(1)) right += cell.at(2).get<int64_t>();
  }
  CHECK(images == 3);
  CHECK(found.at("most_wrong").size() == size_t(3 - right));

  const std::string page = read_file(run + "/report.html");
  for (const char* text : {"<h2>Loss</h2>", "<h2>Confusion matrix</h2>",
                           "gradient norm of each "
                           "layer"}) {
    CHECK_THAT(page, Contains(text));
  }
  CHECK_THAT(page, !Contains("http"));

  // The same findings come from the checkpoint, when the run's own are gone.
  std::filesystem::remove(run + "/validation.json");
  std::filesystem::remove(run + "/report.html");
  const Outcome again = run_weft("report " + run);
  CHECK(again.err == "");
  CHECK(again.out == "report     " + run + "/report.html\n");
  const auto confusion = [](const std::string& html) {
    const size_t at = html.find("<h2>Confusion");
    return html.substr(at, html.find("<h2>Settings") - at);
  };
  CHECK(confusion(read_file(run + "/report.html")) == confusion(page));
}

TEST_CASE("Stopped and resumed, a run's metrics are those of one that was not") {
  const std::string settings =
      "--model resnet8 --epochs 2 --batch-size 2 --save-every 5 --data folder:" + colours();
  run_train("metrics_whole", settings);
  const std::string whole = scratch("metrics_whole"), run = fresh_scratch("metrics_stopped");
  {
    BackgroundWeft weft("train --json --output " + run + " " + settings);
    for (int steps = 0; steps < 7;) {
      const std::string line = weft.line();
      REQUIRE(!line.empty());
      steps += json::parse(line).at("event") == "step";
    }
    weft.send(SIGKILL);
    weft.finish();
  }
  std::ofstream(run + "/metrics.jsonl", std::ios::app) << "{\"step\":99,\"lo";
  std::ofstream(run + "/metrics.csv", std::ios::app) << "99,0.";
  REQUIRE(run_weft("train --json --resume " + run).code == 0);
  CHECK(metrics_of(run) == metrics_of(whole));
  for (const char* name : {"step", "epoch", "loss/step", "lr", "accuracy/validation"}) {
    CHECK(column(run, name) == column(whole, name));
  }
  double seconds = 0;
  for (const json& row : parse_lines(read_file(run + "/metrics.jsonl"))) {
    CHECK(row.at("seconds") >= seconds);
    seconds = row.at("seconds");
  }
  // Begun anew in the same place before there was a checkpoint, nothing of before is left.
  std::filesystem::remove_all(run);
  std::filesystem::create_directories(run);
  std::ofstream(run + "/metrics.jsonl") << "{\"step\":1,\"loss/step\":9}\n";
  std::ofstream(run + "/metrics.csv") << "step,loss/step\n1,9\n";
  REQUIRE(run_weft("train --json --output " + run + " " + settings).code == 0);
  CHECK(metrics_of(run) == metrics_of(whole));
}

TEST_CASE("Ranks together write what one writes") {
  const std::string settings =
      "--model resnet8 --epochs 1 --precision fp32 --data "
      "folder:" +
      colours();
  run_train("one_rank", settings + " --batch-size 9");
  run_train("two_ranks", settings + " --devices 2 --global-batch-size 9");
  const json one = json::parse(read_file(scratch("one_rank") + "/validation.json"));
  const json two = json::parse(read_file(scratch("two_ranks") + "/validation.json"));
  for (const char* name : {"step", "images", "classes"}) CHECK(one.at(name) == two.at(name));
  CHECK(metrics_of(scratch("two_ranks")).size() == metrics_of(scratch("one_rank")).size());
  CHECK_THAT(read_file(scratch("two_ranks") + "/report.html"), Contains("<h2>Confusion matrix"));
}

TEST_CASE("The first operation to make a NaN is named, where it was asked for") {
  const std::string arguments =
      "train --json --model vit_lite --epochs 3 --batch-size 8 --lr 1e38 "
      "--optimizer sgd --clip-norm 0 --detect-anomaly --data folder:" +
      colours() + " --output " + fresh_scratch("anomalous");
  const Outcome outcome = run_weft(arguments);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, Contains("weft: error: step 2: anomaly: "));
  check_error(run_weft("train --watch --devices 2 --strategy fsdp"), 2,
              "watch: not with fsdp, of which no rank has whole gradients");
  check_error(run_weft("train --detect-anomaly --devices 2 --strategy dp"), 2,
              "detect-anomaly: not with dp");
  check_error(run_weft("train --watch=-1"), 2, "watch: must not be negative, got -1");
}

TEST_CASE("weft report says what is wrong in one line") {
  const std::string empty = fresh_scratch("no_run");
  std::filesystem::create_directories(empty);
  check_error(run_weft("report " + empty), 1, empty + ": no run: expected ");
  check_error(run_weft("report " + empty + "/absent"), 1, "/absent: no such directory");
  CHECK(run_weft("report").code == 2);
  std::ofstream(empty + "/metrics.jsonl") << "{\"step\":1}\n{\"loss\":2}\n";
  check_error(run_weft("report " + empty), 1, empty + "/metrics.jsonl:2: expected an object");
  std::ofstream(empty + "/metrics.jsonl") << "{\"step\":1,\"loss/step\":2}\n";
  check_error(run_weft("report " + empty + " --output " + empty + "/absent/page.html"), 1,
              "/absent/");
  const Outcome several =
      run_shell("cd " + scratch("") + " && " + weft_program() + " report " + empty + " " + empty);
  CHECK(several.code == 0);
  CHECK(several.out == "report     report.html\n");
}
