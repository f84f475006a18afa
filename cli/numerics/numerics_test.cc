// `weft numerics` through the program: replays, their errors, reports and pages.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/philox.h"
#include "numerics/tensor_core_vectors.h"
#include "tests/program/run_weft.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::cli;
using namespace weft::numerics;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

/// Vectors as the model gives them.
std::string model_vectors(const char* gpu, DType input, int k, int rows) {
  Philox random(1);
  std::string text;
  for (int i = 0; i < rows; ++i) {
    TensorCoreVector v;
    for (int j = 0; j < k; ++j) {
      v.a.push_back(static_cast<float>(f16(static_cast<float>(random.normal()))));
      v.b.push_back(static_cast<float>(f16(static_cast<float>(random.normal()))));
    }
    v.c = static_cast<float>(random.normal());
    v.d_f32 = model_result(tensor_core_model(gpu, input), v);
    v.d_f16 = model_result(tensor_core_model(gpu, input, DType::f16), v);
    text += format_vector(v) + "\n";
  }
  return text;
}

const std::string kGood = "3f800000 | 3f800000 | 00000000 | 3f800000 | -\n";

}  // namespace

TEST_CASE("replay counts rows and mismatches, from a file and from standard input") {
  const std::string path = scratch("vectors.txt");
  std::string text = model_vectors("h100", DType::f16, 16, 20);
  write_text(path, text);
  Outcome outcome = run_weft("numerics replay " + path + " --gpu h200 --format fp16 --json");
  CHECK(outcome.code == 0);
  CHECK(outcome.out == "{\"rows\":20,\"mismatches\":0}\n");
  outcome = run_weft("numerics replay - --gpu h100 --format fp16 --json <" + path);
  CHECK(outcome.out == "{\"rows\":20,\"mismatches\":0}\n");
  CHECK_THAT(run_weft("numerics replay " + path + " --gpu h100 --format fp16").out,
             Contains("20 rows, 20 results in f32 and 20 in f16, 0 rows with a mismatch"));
  // Another adder gives other bits.
  outcome = run_weft("numerics replay " + path + " --gpu a100 --format fp16 --json");
  CHECK(json_lines(outcome.out).back()["mismatches"] > 5);

  // One bit in one result.
  const size_t end = text.find('\n'), last = text.rfind("|", end) - 2;
  text[last] = text[last] == '0' ? '1' : '0';
  write_text(path, text);
  outcome = run_weft("numerics replay " + path + " --gpu h100 --format fp16 --json");
  const std::vector<json> lines = json_lines(outcome.out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["line"] == 1);
  CHECK(lines[0]["output"] == "f32");
  CHECK(outcome.out.ends_with("{\"rows\":20,\"mismatches\":1}\n"));
}

TEST_CASE("replay of published vectors has no mismatch") {
  const char* data = std::getenv("WEFT_TEST_DATA");
  const std::string archive = std::string(data ? data : "") + "/tensor_core_vectors.tar.xz";
  if (!data || !std::filesystem::exists(archive)) {
    WEFT_SKIP("tensor core vectors: no tensor_core_vectors.tar.xz in WEFT_TEST_DATA");
  }
  for (const auto& [gpu, format] : {std::pair{"h100", "e4m3"}, std::pair{"ada", "tf32"}}) {
    const Outcome outcome =
        run_shell(std::string("tar xOf ") + archive + " --wildcards '*" + gpu + "_" + format +
                  ".txt' | timeout 300 " + weft_program() + " numerics replay - --gpu " + gpu +
                  " --format " + format + " --json");
    INFO(gpu << " " << format << outcome.err);
    CHECK(outcome.out == "{\"rows\":2500,\"mismatches\":0}\n");
  }
}

TEST_CASE("replay names what is wrong with its input") {
  const std::string path = scratch("bad.txt");
  const std::string options = path + " --gpu h100 --format fp16";
  const auto check = [&](const std::string& text, const std::string& message) {
    INFO(text);
    write_text(path, text);
    check_error(run_weft("numerics replay " + options), 1, message);
  };
  check(kGood + "3f800000 | 3f800000 | 00000000\n", path + ", line 2: expected five fields");
  check(kGood + kGood + "3f80000x | 3f800000 | 00000000 | 3f800000 | -\n",
        path + ", line 3: \"3f80000x\" is not the eight hexadecimal digits of a float");
  check("3f800000 3f800000 | 3f800000 | 00000000 | 3f800000 | -\n",
        "line 1: expected as many values of a as of b, got 2 and 1");
  check("3f800001 | 3f800000 | 00000000 | 3f800000 | -\n",
        "line 1: 3f800001 in a is not a number of fp16");
  check_error(run_weft("numerics replay /nowhere --gpu h100 --format fp16"), 1, "/nowhere");
  check_error(run_weft("numerics replay - --gpu h100 --format fp16 </dev/null"), 1,
              "standard input: holds no vectors");
  check_error(run_weft("numerics replay x --gpu h1000 --format fp16"), 2,
              "unknown GPU \"h1000\": expected one of v100 a2 a100 ada l40s h100 h200 b200");
  check_error(run_weft("numerics replay x --gpu h100 --format fp17"), 2, "unknown format \"fp17\"");
  check_error(run_weft("numerics replay x --gpu v100 --format bf16"), 2,
              "the tensor cores of v100 take no bf16 operands");
  check_error(run_weft("numerics replay x --gpu h100"), 2, "--format");
}

TEST_CASE("probe says why it cannot run") {
  const Outcome outcome = run_weft("numerics probe --device cuda --output " + scratch("none.txt"));
  if (outcome.code == 0) WEFT_SKIP("probe without a GPU: this machine has one");
  check_error(outcome, 1, "no CUDA device: ");
  CHECK(!std::filesystem::exists(scratch("none.txt")));
  check_error(run_weft("numerics probe --device tpu"), 2, "unknown device \"tpu\"");
  check_error(run_weft("numerics probe --format int8"), 2, "unknown format \"int8\"");
  check_error(run_weft("numerics probe --gpu k80"), 2, "unknown GPU \"k80\"");
}

TEST_CASE("formats says range, precision and roundings") {
  const Outcome outcome = run_weft("numerics formats --json --value 0.3 fp16 e4m3 e3m4fn q3.4");
  const std::vector<json> lines = json_lines(outcome.out);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["largest"] == 65504);
  CHECK(lines[0]["smallest_subnormal"] == 0x1p-24);
  CHECK(lines[0]["epsilon"] == 0x1p-10);
  CHECK(lines[1]["largest"] == 448);
  CHECK(lines[1]["infinity"] == false);
  CHECK(lines[1]["nearest_even"] == 0.3125);
  CHECK(lines[1]["toward_zero"] == 0.28125);
  CHECK(lines[2]["format"] == "e3m4fn");
  CHECK(lines[3]["step"] == 0.0625);
  CHECK_THAT(run_weft("numerics formats").out, Contains("bf16") && Contains("q3.4"));
  check_error(run_weft("numerics formats e1m2"), 2, "expected 2 to 11 exponent bits, got 1");
  check_error(run_weft("numerics formats posit8"), 2, "unknown format \"posit8\"");
  check_error(run_weft("numerics formats q99.1"), 2, "q99.1");
  check_error(run_weft("numerics formats q3"), 2, "fixed point is q<integer bits>.<fraction bits>");
}

TEST_CASE("dot: no error exceeds its bound, and truncation shortens positive sums") {
  const Outcome outcome = run_weft("numerics dot --json --max-k 256 --samples 8");
  REQUIRE(outcome.code == 0);
  std::vector<std::string> models;
  for (const json& row : json_lines(outcome.out)) {
    INFO(row.dump());
    CHECK(row["max"] <= row["bound"]);
    CHECK(row["mean"] <= row["max"]);
    const std::string model = row["model"];
    if (row["distribution"] == "uniform" && model != "ieee" && model != "pairwise") {
      CHECK(row["bias"] < 0);
    }
    if (std::ranges::find(models, model) == models.end()) models.push_back(model);
  }
  CHECK(models == std::vector<std::string>{"ieee", "pairwise", "a100", "h100"});
  const Outcome some = run_weft(
      "numerics dot --json --max-k 128 --samples 4 --format e4m3 --distributions normal "
      "--models h100,h100+128,h100:f16,half");
  CHECK(json_lines(some.out).size() == 4 * 4);
  check_error(run_weft("numerics dot --models k80"), 2, "unknown model \"k80\"");
  check_error(run_weft("numerics dot --models v100"), 2, "v100 take no bf16 operands");
  check_error(run_weft("numerics dot --format e4m3 --models h100+100"), 2,
              "promotion after a multiple of 32 products");
  check_error(run_weft("numerics dot --distributions cauchy"), 2, "cauchy");
  check_error(run_weft("numerics dot --format fp32"), 2, "unknown format \"fp32\"");
}

TEST_CASE("gemm: no element exceeds its bound") {
  for (const char* distribution : {"normal", "uniform", "wide", "cancel"}) {
    const Outcome outcome = run_weft(std::string("numerics gemm --json --m 9 --n 17 --k 100 ") +
                                     "--distribution " + distribution);
    const std::vector<json> lines = json_lines(outcome.out);
    REQUIRE(lines.size() == 5);
    CHECK(lines[0]["model"] == "weft");
    for (const json& row : lines) {
      INFO(distribution << " " << row.dump());
      CHECK(row["max_of_bound"] <= 1);
      CHECK(row["max"] > 0);
    }
  }
  check_error(run_weft("numerics gemm --m 0"), 2, "--m");
}

TEST_CASE("train: gradients that are zero in fp16 are not when the loss is scaled") {
  const Outcome outcome = run_weft(
      "numerics train --json --model resnet8 --steps 2 --batch-size 8 --precisions fp32,fp16");
  REQUIRE(outcome.code == 0);
  int layers = 0;
  for (const json& row : json_lines(outcome.out)) {
    if (!row.contains("layer")) continue;
    ++layers;
    INFO(row.dump());
    CHECK(row["scaled_zero"] <= row["fp16_zero"]);
    CHECK(row["scaled_subnormal"] <= row["fp16_subnormal"]);
  }
  CHECK(layers > 3);
  check_error(run_weft("numerics train --precisions fp12"), 2, "fp12");
}

TEST_CASE("train: no product of a transformer is left out") {
  const Outcome outcome =
      run_weft("numerics train --json --model cct --steps 1 --batch-size 4 --precisions fp32,fp16");
  REQUIRE(outcome.code == 0);
  std::set<std::string> layers;
  for (const json& row : json_lines(outcome.out)) {
    if (row.contains("layer")) layers.insert(row.at("layer"));
  }
  // Two convolutions; of each block in_proj, attention, out_proj and the MLP; pooling and head.
  CHECK(layers == std::set<std::string>{"conv2d 1", "conv2d 2", "linear 1", "linear 2", "linear 3",
                                        "linear 4", "linear 5", "linear 6", "matmul 1", "mlp 1",
                                        "mlp 2", "self_attention 1", "self_attention 2"});
}

TEST_CASE("Each report writes one page that stands alone, or none") {
  const std::string page = scratch("page.html");
  for (const char* command : {"formats", "dot --max-k 32 --samples 2", "gemm --m 8 --n 8 --k 32"}) {
    std::filesystem::remove(page);
    INFO(command);
    const Outcome outcome = run_weft(std::string("numerics ") + command + " --json --html " + page);
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.err, Contains("page written to " + page));
    const std::string html = read_file(page);
    CHECK_THAT(html, Contains("</html>") && Contains("<svg") && Contains("./weft numerics") &&
                         Contains("prefers-color-scheme"));
    CHECK(html.find("http") == std::string::npos);
  }
  // It says how to make it again, with what was chosen.
  for (const std::string command : {"dot --format fp16 --models ieee,half --distributions wide "
                                    "--max-k 32 --samples 2 --seed 3",
                                    "gemm --m 8 --n 8 --k 32 --format fp16 --distribution wide "
                                    "--models half,weft --seed 3"}) {
    REQUIRE(run_weft("numerics " + command + " --json --html " + page).code == 0);
    CHECK_THAT(read_file(page), Contains("./weft numerics " + command + " --html " + page));
  }
  const Outcome outcome = run_weft("numerics formats --json --html /nowhere/page.html");
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, Contains("/nowhere"));
}
