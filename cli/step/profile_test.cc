#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "kernels/fill/fill.h"
#include "kernels/profile.h"
#include "tests/program/run_weft.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

constexpr const char* kSmall = "profile --model cct --batch-size 2 --steps 2 --threads 1";

}  // namespace

TEST_CASE("profile --json accounts for the whole step") {
  const Outcome outcome = run_weft(std::string(kSmall) + " --json");
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err == "");
  const json result = json::parse(outcome.out);
  CHECK(result["model"] == "cct");
  CHECK(result["threads"] == 1);
  const double step = result["step_ms"], kernels = result["kernel_ms"];
  CHECK(step > kernels);
  CHECK(result["outside_kernels_ms"].get<double>() == Approx(step - kernels));
  double phases = 0, ops = 0;
  for (const auto& [name, ms] : result["phases_ms"].items()) phases += ms.get<double>();
  CHECK(phases <= step);
  CHECK(phases == Approx(step).epsilon(0.05));
  std::map<std::string, std::set<std::string>> by_phase;
  for (const json& op : result["ops"]) {
    ops += op["ms"].get<double>();
    by_phase[op["phase"]].insert(op["op"].get<std::string>() + "/" +
                                 op["kernel"].get<std::string>());
  }
  CHECK(ops == Approx(kernels));
  REQUIRE(by_phase.size() == 3);
  CHECK(by_phase["forward"].count("layer_norm/layer_norm_cpu_highway") +
            by_phase["forward"].count("add_layer_norm/layer_norm_cpu_highway") >
        0);
  CHECK(by_phase["backward"].count("cross_entropy/cross_entropy_cpu_highway") == 1);
  CHECK(by_phase["update"] == std::set<std::string>{"adam/adam_cpu_highway"});
}

TEST_CASE("The trace nests kernels in ops in phases and agrees with the table") {
  const std::string file = fresh_scratch("trace.json");
  const Outcome outcome = run_weft(std::string(kSmall) + " --json --trace " + file);
  REQUIRE(outcome.code == 0);
  const json result = json::parse(outcome.out), trace = json::parse(read_file(file));
  CHECK(result["trace"] == file);
  CHECK(trace["displayTimeUnit"] == "ms");
  CHECK(trace["otherData"]["step_ms"] == result["step_ms"]);

  struct Interval {
    double begin, end;
  };
  std::map<std::string, std::vector<Interval>> by_category;
  std::map<std::string, double> own_us;  // by phase, op and kernel
  bool names_process = false;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "M") {
      names_process = names_process || event["args"]["name"] == "weft";
      continue;
    }
    REQUIRE(event["ph"] == "X");
    const double begin = event["ts"], duration = event["dur"];
    CHECK(duration >= 0);
    by_category[event["cat"]].push_back({begin, begin + duration});
    if (event["cat"] != "kernel") continue;
    const json& args = event["args"];
    CHECK(args["threads"] == 1);
    CHECK(args["problem"] != "");
    own_us[args["phase"].get<std::string>() + args["op"].get<std::string>() +
           event["name"].get<std::string>()] += args["own_us"].get<double>();
  }
  CHECK(names_process);
  CHECK(by_category["phase"].size() == 6);  // three in each of two steps
  CHECK(by_category["op"].size() > 50);
  // Microseconds are written with all their digits, so intervals touch without overlapping.
  const auto lies_within = [](const Interval& inner, const std::vector<Interval>& outer) {
    return std::ranges::any_of(outer, [&](const Interval& o) {
      return o.begin - 1e-3 <= inner.begin && inner.end <= o.end + 1e-3;
    });
  };
  for (const Interval& op : by_category["op"]) CHECK(lies_within(op, by_category["phase"]));
  for (const Interval& kernel : by_category["kernel"]) {
    CHECK(lies_within(kernel, by_category["phase"]));
  }
  for (const json& op : result["ops"]) {
    const std::string key = op["phase"].get<std::string>() + op["op"].get<std::string>() +
                            op["kernel"].get<std::string>();
    CHECK(own_us[key] / 2e3 == Approx(op["ms"].get<double>()).margin(1e-6));
  }
}

TEST_CASE("The table names ops and kernels; inference has only a forward pass") {
  const Outcome table = run_weft(std::string(kSmall) + " --inference --all");
  CHECK(table.code == 0);
  CHECK_THAT(table.out,
             Contains("inference of cct (350283 parameters), batch 2, fp32, 1 threads") &&
                 Contains("gemm_cpu_onednn") && Contains("outside kernels") &&
                 !Contains("backward"));
}

TEST_CASE("Mistakes in profile's arguments") {
  check_error(run_weft("profile --model nonsense"), 1, "nonsense");
  check_error(run_weft("profile --steps 0"), 2, "--steps");
  check_error(run_weft("profile --precision int8"), 2, "int8");
  check_error(run_shell("WEFT_INSTRUCTION_SET=sse9 timeout 120 " + weft_program() + " " + kSmall),
              1, "WEFT_INSTRUCTION_SET: expected avx512, avx2 or baseline, got \"sse9\"");
  const std::string missing = scratch("no/such/directory/trace.json");
  check_error(run_weft(std::string(kSmall) + " --trace " + missing), 1, "no/such/directory");
  CHECK(!std::filesystem::exists(missing));
}

TEST_CASE("Launches of two threads are told apart") {
  kernels::Profile profile;
  const auto launch = [] {
    for (int i = 0; i < 100; ++i) kernels::fill({.y = Tensor::empty({8}), .value = 1});
  };
  launch();
  std::thread first(launch), second(launch);
  first.join();
  second.join();
  std::map<int, int> counts;
  for (const auto& launch : profile.launches()) {
    ++counts[launch.thread];
    CHECK(launch.op == "fill");
    CHECK(launch.seconds >= 0);
    CHECK(launch.own_seconds <= launch.seconds);
  }
  CHECK(counts == std::map<int, int>{{0, 100}, {1, 100}, {2, 100}});
  REQUIRE(profile.rows().size() == 1);
  CHECK(profile.rows()[0].calls == 300);
  CHECK(profile.rows()[0].seconds == Approx(profile.total_seconds()));
  CHECK_THAT(profile.rows(true)[0].name, Contains("[8]"));
}
