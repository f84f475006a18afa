#include "train/metrics/metrics_log.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace weft;
using Catch::Matchers::Contains;
using train::MetricsLog;

namespace {

io::Path directory(const std::string& name) {
  const char* const scratch = std::getenv("TEST_TMPDIR");
  const io::Path path = io::Path(scratch ? scratch : "/tmp") / name;
  io::remove_tree(path);
  return path;
}

}  // namespace

TEST_CASE("figures are lines of JSON and rows of a table") {
  const io::Path path = directory("metrics");
  {
    MetricsLog log(path);
    log.write(1, {{"loss", 1.25}, {"lr", 1e-3}});
    log.write(2, {{"loss", NAN}});
    log.write(2, {{"accuracy", 0.5}});
  }
  MetricsLog(path).write(3, {{"lr", 0.1}, {"scale", INFINITY}});
  CHECK(io::read_text(path / "metrics.jsonl") ==
        "{\"step\":1,\"loss\":1.25,\"lr\":0.001}\n"
        "{\"step\":2,\"loss\":null}\n"
        "{\"step\":2,\"accuracy\":0.5}\n"
        "{\"step\":3,\"lr\":0.1,\"scale\":null}\n");
  CHECK(io::read_text(path / "metrics.csv") ==
        "step,loss,lr,accuracy,scale\n"
        "1,1.25,0.001,,\n"
        "2,nan,,,\n"
        "2,,,0.5,\n"
        "3,,0.1,,inf\n");
}

TEST_CASE("a log says what is wrong with a name and with a place") {
  const io::Path path = directory("wrong");
  MetricsLog log(path);
  CHECK_THROWS_WITH(log.write(1, {{"a,b", 1}}), Contains("got \"a,b\""));
  CHECK_THROWS_WITH(log.write(1, {{"a", 1}, {"a", 2}}), Contains("\"a\" is given twice"));
  CHECK_THROWS_WITH(log.write(1, {{"step", 1}}), Contains("the number of the step"));
  CHECK(!std::filesystem::exists(path / "metrics.jsonl"));
  std::ofstream(path / "metrics.csv") << "time,loss\n";
  CHECK_THROWS_WITH(MetricsLog(path), Contains("begins with \"step\", got \"time\""));
  std::ofstream(path / "file") << "";
  CHECK_THROWS_AS(MetricsLog(path / "file" / "below"), std::exception);
  io::make_directories(path / "metrics.jsonl");
  CHECK_THROWS_WITH(log.write(1, {{"loss", 1}}),
                    Contains("cannot write ") && Contains("metrics.jsonl: Is a directory"));
}
