// A profile of a step on a CUDA device; without a GPU on the emulated one,
// hence small.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "core/runtime.h"
#include "tests/program/run_weft.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::cli;
using nlohmann::json;

TEST_CASE("kernels of a device have its times and a lane of their own") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const std::string file = fresh_scratch("trace.json");
  const Outcome outcome = run_weft(
      "profile --device cuda --model vit_lite --image-size 8 --classes 4 --batch-size 1 --steps 1 "
      "--json --trace " +
      file);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const json result = json::parse(outcome.out), trace = json::parse(read_file(file));
  CHECK(result["device"] == "cuda:0");
  CHECK(result["kernel_ms"] > 0);
  CHECK(result["kernel_ms"] < result["step_ms"]);
  double sum = 0;
  std::set<std::string> kernels;
  for (const json& op : result["ops"]) {
    CHECK(op["ms"] >= 0);
    sum += op["ms"].get<double>();
    kernels.insert(op["kernel"]);
  }
  CHECK(sum == Approx(result["kernel_ms"].get<double>()));
  CHECK(kernels.count("layer_norm_cuda_rows") == 1);

  std::set<int> host, device;
  double first = 1e300, last = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const std::string name = event["name"];
    const bool is_on_device = event["cat"] == "kernel" && name.find("_cpu_") == std::string::npos;
    (is_on_device ? device : host).insert(event["tid"].get<int>());
    if (event["cat"] == "phase") {
      first = std::min(first, event["ts"].get<double>());
      last = std::max(last, event["ts"].get<double>() + event["dur"].get<double>());
    }
  }
  CHECK(device.size() == 1);
  CHECK(host.count(*device.begin()) == 0);
  // Both clocks began together, and a phase waits for its work.
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["tid"] != *device.begin()) continue;
    CHECK(event["ts"].get<double>() > first - 1e3);
    CHECK(event["ts"].get<double>() + event["dur"].get<double>() < last + 1e3);
  }
}
