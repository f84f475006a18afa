#include "train/metrics/metrics_file.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "train/metrics/metrics_log.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

io::Path fresh_directory(const std::string& name) {
  const char* const scratch = std::getenv("TEST_TMPDIR");
  const io::Path path = io::Path(scratch ? scratch : "/tmp") / name;
  io::remove_tree(path);
  return path;
}

void append(const io::Path& path, const std::string& text) {
  std::ofstream(path, std::ios::app | std::ios::binary) << text;
}

/// What a run of two epochs of two steps writes from `step` and `epoch` on.
void go_on(MetricsLog& log, int64_t step, int64_t epoch) {
  for (; step < 4; ++step) {
    if (step == 2 && epoch == 0) log.write(2, {{"epoch", ++epoch}, {"accuracy", 0.5}});
    log.write(step + 1, {{"loss", 1.0 / static_cast<double>(step + 1)}, {"norm", INFINITY}});
  }
  log.write(4, {{"epoch", 2}, {"accuracy", 0.75}});
}

}  // namespace

TEST_CASE("Rows come back as they were written") {
  const io::Path path = fresh_directory("rows");
  MetricsLog(path).write(3, {{"loss", 0.1}, {"scale", NAN}});
  append(path / "metrics.jsonl", "{\"step\":4,\"loss\":0.");  // being written
  const std::vector<MetricsRow> rows = read_metrics(path / "metrics.jsonl");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].step == 3);
  CHECK(rows[0].find("loss") == 0.1);
  CHECK(std::isnan(rows[0].find("scale").value()));
  CHECK(!rows[0].find("accuracy"));
}

TEST_CASE("A row that is none is named with its file and line") {
  const io::Path path = fresh_directory("damaged");
  io::make_directories(path);
  const io::Path file = path / "metrics.jsonl";
  for (const char* line : {"{\"step\":2,\"lo", "{\"loss\":1}", "{\"step\":2,\"loss\":\"low\"}",
                           "{\"step\":1.5}", "[1]", ""}) {
    INFO(line);
    std::ofstream(file) << "{\"step\":1}\n" << line << "\n{\"step\":3}\n";
    CHECK_THROWS_WITH(read_metrics(file), Contains(file.string() + ":2: expected an object"));
    CHECK_THROWS_WITH(cut_metrics(path, 3, 1), Contains(file.string() + ":2: "));
  }
  CHECK_THROWS_WITH(read_metrics(path / "absent.jsonl"), Contains("absent.jsonl"));
  std::ofstream(file) << "";
  std::ofstream(path / "metrics.csv") << "step,loss\nx,1\n";
  CHECK_THROWS_WITH(cut_metrics(path, 3, 1), Contains("metrics.csv:2: expected a number in column "
                                                      "1, got \"x\""));
}

TEST_CASE("A run that goes on from any checkpoint leaves the files of one that did not stop") {
  const io::Path whole = fresh_directory("whole"), stopped = fresh_directory("stopped");
  {
    MetricsLog log(whole);
    go_on(log, 0, 0);
  }
  struct Checkpoint {
    int64_t step, epochs;
  };
  // The third: saved after the epoch's last step, before its validation.
  for (const auto& [step, epochs] :
       {Checkpoint{0, 0}, Checkpoint{1, 0}, Checkpoint{2, 0}, Checkpoint{2, 1}, Checkpoint{3, 1}}) {
    INFO(step << " steps, " << epochs << " epochs");
    io::remove_tree(stopped);
    cut_metrics(stopped, step, epochs);  // of a run from before there were metrics
    io::make_directories(stopped);
    for (const char* name : {"metrics.jsonl", "metrics.csv"}) {
      std::filesystem::copy_file(whole / name, stopped / name);
      append(stopped / name, name[8] == 'j' ? "{\"step\":5,\"lo" : "5,0.");  // killed
    }
    cut_metrics(stopped, step, epochs);
    MetricsLog log(stopped);
    go_on(log, step, epochs);
    for (const char* name : {"metrics.jsonl", "metrics.csv"}) {
      CHECK(io::read_text(stopped / name) == io::read_text(whole / name));
    }
  }
}
