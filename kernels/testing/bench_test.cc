#include "kernels/testing/bench.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "kernels/autotune.h"
#include "kernels/gemm/gemm_cases.h"
#include "kernels/softmax/softmax_cases.h"
#include "kernels/testing/timing.h"

namespace weft::kernels {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

const std::string kRoofline =
    R"({"roofline":{"device":"cpu","name":"a machine","threads":2,"copy_gb_s":20,
        "matmul_tflop_s":{"f32":0.2,"bf16":0.5}}})";

std::string file_with(const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/roofline.json";
  std::ofstream(path) << text;
  return path;
}

std::vector<json> rows_of(const OpTable& table, BenchOptions options) {
  options.as_json = true;
  std::FILE* const file = std::tmpfile();
  run_bench(table, plan_bench(table, options), file);
  std::rewind(file);
  std::vector<json> rows;
  char line[4096];
  while (std::fgets(line, sizeof line, file)) rows.push_back(json::parse(line));
  std::fclose(file);
  return rows;
}

TEST_CASE("quartiles interpolate between samples") {
  const Spread one = spread_of({3});
  CHECK(one.least == 3);
  CHECK(one.median == 3);
  CHECK(one.upper == 3);
  const Spread five = spread_of({5, 1, 4, 2, 3});
  CHECK(five.least == 1);
  CHECK(five.lower == 2);
  CHECK(five.median == 3);
  CHECK(five.upper == 4);
  CHECK(spread_of({1, 2, 3, 4}).median == 2.5);
}

TEST_CASE("the time of a run is the run's alone, and evicting memory keeps it") {
  const Tensor x = Tensor::full({1 << 18}, 3);
  const Tensor bytes = bytes_of(x.storage());
  ColdCache(Device{}).evict({bytes});
  const double seconds =
      time_run({}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  CHECK(seconds >= 0.02);
  CHECK(x.data<float>()[0] == 3);
  CHECK(x.data<float>()[(1 << 18) - 1] == 3);
}

TEST_CASE("a roofline is the slower of the two ceilings") {
  const Roofline roofline = read_roofline(file_with(kRoofline));
  CHECK(roofline.peak(DType::bf16) == 0.5);
  CHECK(roofline.peak(DType::f16) == 0.2);  // not measured: f32's
  CHECK(roofline.seconds(1e12, 1e9, DType::f32) == Approx(5));
  CHECK_FALSE(roofline.is_memory_bound(1e12, 1e9, DType::f32));
  CHECK(roofline.seconds(1e6, 40e9, DType::bf16) == Approx(2));
  CHECK(roofline.is_memory_bound(1e6, 40e9, DType::bf16));
}

TEST_CASE("a file that is no roofline is named") {
  CHECK_THROWS_WITH(read_roofline("/nowhere"), Contains("/nowhere: cannot read the roofline"));
  CHECK_THROWS_WITH(read_roofline(file_with("{}")), Contains("not the roofline program's output"));
  CHECK_THROWS_WITH(read_roofline(file_with("{")), Contains("not the roofline program's output"));
  CHECK_THROWS_WITH(
      read_roofline(file_with(
          R"({"roofline":{"device":"cpu","name":"","copy_gb_s":0,"matmul_tflop_s":{"f32":1}}})")),
      Contains("rates must be positive"));
  const OpTable table = softmax_table();
  CHECK_THROWS_WITH(
      plan_bench(table, {.device = {DeviceType::cpu, 1}, .roofline = file_with(kRoofline)}),
      Contains("the roofline is that of cpu, not of cpu:1"));
}

TEST_CASE("rows say what ran, how long, and how much of the roofline that is") {
  const OpTable table = gemm_table();
  const std::vector<json> rows =
      rows_of(table, {.shapes = {"24x32x40"}, .samples = 7, .roofline = file_with(kRoofline)});
  REQUIRE(rows.size() == 4);  // our own, oneDNN's, Eigen's, the totals
  const double flops = 2.0 * 24 * 32 * 40, bytes = 4.0 * (24 * 40 + 40 * 32 + 24 * 32);
  for (const json& row : {rows[0], rows[1], rows[2]}) {
    CHECK(row["op"] == "gemm");
    CHECK(row["device"] == "cpu");
    CHECK(row["dtype"] == "f32");
    CHECK(row["case"].get<std::string>().find("24x32x40") == 0);
    CHECK(row["samples"] == 7);
    CHECK(row["flops"] == flops);
    CHECK(row["bytes"] == bytes);
    const double median = row["median_us"];
    CHECK(median > 0);
    CHECK(row["least_us"] <= row["lower_us"]);
    CHECK(row["lower_us"] <= median);
    CHECK(median <= row["upper_us"]);
    CHECK(row["tflop_s"].get<double>() == Approx(1e-6 * flops / median));
    CHECK(row["gb_s"].get<double>() == Approx(1e-3 * bytes / median));
    CHECK(row["ceiling"] == "memory");
    CHECK(row["share"].get<double>() == Approx(bytes / 20e9 / (1e-6 * median)));
    CHECK(row["vendor"] == "gemm_cpu_onednn");
  }
  CHECK(rows[0]["variant"] == "gemm_cpu_small");
  CHECK(rows[0]["vendor_ratio"] > 0);
  CHECK(rows[1]["variant"] == "gemm_cpu_onednn");
  CHECK(rows[1]["vendor_ratio"] == 1);
  CHECK(rows[2]["variant"] == "gemm_cpu_eigen");
  CHECK(rows[2]["vendor_ratio"] > 0);
  CHECK(rows[3] == json{{"timed", 3}, {"skipped", 0}});
}

TEST_CASE("one variant comes with the vendor's, and the dtype is the caller's") {
  const std::vector<json> rows = rows_of(
      gemm_table(), {.variant = "gemm_cpu_eigen", .shapes = {"16x16x16"}, .dtype = DType::bf16});
  REQUIRE(rows.size() == 3);
  CHECK(rows[1]["variant"] == "gemm_cpu_eigen");
  CHECK(rows[1]["dtype"] == "bf16");
  CHECK_FALSE(rows[1].contains("share"));
}

TEST_CASE("a shape takes the cases it names, or makes one, or is an error that lists them") {
  const OpTable gemm = gemm_table(), softmax = softmax_table();
  CHECK(plan_bench(gemm, {.shapes = {"4160x"}}).cases.size() == 4);
  CHECK(plan_bench(gemm, {.shapes = {"100x200x300"}}).cases.size() == 1);
  for (const char* wrong : {"100x200", "100x200x0", "1x2x3x4", "-1x2x3", "1x2x3 "}) {
    CHECK_THROWS_WITH(plan_bench(gemm, {.shapes = {wrong}}), Contains("gemm: no timed case has") &&
                                                                 Contains("no shape of this op") &&
                                                                 Contains("788x2304x768"));
  }
  CHECK_THROWS_WITH(plan_bench(softmax, {.shapes = {"3x5"}}),
                    Contains("softmax: no timed case has \"3x5\" in its name; the cases are "));
  // GPU-sized cases are a GPU's, unless they are named.
  for (const CaseEntry& entry : plan_bench(gemm, {}).cases) CHECK_FALSE(entry.is_large);
  for (const CaseEntry& entry : plan_bench(gemm, {.device = {DeviceType::cuda, 0}}).cases) {
    CHECK(entry.is_large);
  }
  CHECK(plan_bench(gemm, {.shapes = {"25216x2304x768_bf16"}}).cases.size() == 1);
}

TEST_CASE("every sample of an op that works in place starts from the same values") {
  const OpTable table = softmax_table();
  const CaseEntry& entry = *std::ranges::find_if(table.cases, &CaseEntry::is_timed);
  Inputs in(entry.seed);
  const Workload work = entry.prepare(in, {});
  REQUIRE(work.outputs.size() == in.outputs().size());
  CHECK(work.memory.size() > work.outputs.size());
  CHECK(work.fits("softmax_cpu_highway"));
  CHECK_FALSE(work.fits("softmax_cpu_none"));
}

TEST_CASE("vendors are known by their names") {
  CHECK(is_vendor_variant("gemm_cublas"));
  CHECK(is_vendor_variant("attention_cpu_onednn"));
  CHECK(is_vendor_variant("gemm_cpu_eigen"));
  CHECK_FALSE(is_vendor_variant("gemm_cuda_wgmma"));
}

}  // namespace
}  // namespace weft::kernels
