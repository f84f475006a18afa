// The peer here is a Python without PyTorch, or a shell script that answers as PyTorch's half
// would: a program that computes nothing, ten times as slow as a given figure.
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "tests/program/run_weft.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using nlohmann::json;

namespace {

// Two of the smallest cases.
constexpr const char* kTwoCases =
    "compare --cases '^(1000 additions of one element|cross_entropy 256x10 fp32)$' --pairs 2 "
    "--seconds 0.01 --threads 1 ";

/// An executable file of the test's own.
std::string program(const std::string& name, const std::string& text) {
  const std::string path = scratch(name);
  std::ofstream(path) << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

/// A peer that takes `seconds` for everything; `more` are further cases of its answers, first.
std::string fake_peer(const std::string& name, double seconds, const std::string& more = "") {
  return program(name, "#!/bin/sh\nwhile read -r line; do case \"$line\" in\n" + more + R"(
*'"hello"'*) echo '{"program": "PyTorch", "version": "0.fake", "python": "none"}' ;;
*'"time"'*) echo '{"times": [)" +
                           std::to_string(seconds) + R"(]}' ;;
*'"memory"'*) echo '{"peak_bytes": 123000000}' ;;
*'"profile"'*) echo '{"rows": [{"name": "aten::nothing", "calls": 1, "ms": 2.5}]}' ;;
*) echo '{}' ;;
esac; done
)");
}

json find(const json& result, const std::string& name) {
  for (const json& c : result["cases"]) {
    if (c["name"] == name) return c;
  }
  FAIL("no case " << name);
  return {};
}

}  // namespace

TEST_CASE("Without PyTorch there is nothing to compare with, and Weft alone is asked for") {
  const std::string python =
      program("no-torch",
              "#!/bin/sh\necho Traceback >&2\n"
              "echo \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n");
  check_error(run_weft(kTwoCases + ("--python " + python)), 2,
              "no PyTorch: PyTorch ended without an answer: ModuleNotFoundError: No module named "
              "'torch'");
  check_error(run_weft(kTwoCases + std::string("--python /nonexistent/python")), 2,
              "PyTorch: cannot start /nonexistent/python: No such file");

  const std::string alone = kTwoCases + ("--against none --python " + python);
  const Outcome outcome = run_weft(alone);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("Weft alone\n2 turns\n") &&
                              Contains("1000 additions of one element") &&
                              Contains("2 cases: 0 failed") && !Contains("a peer was ahead"));
  const json result = json::parse(run_weft(alone + " --json").out);
  REQUIRE(result["cases"].size() == 2);
  for (const json& c : result["cases"]) {
    CHECK(c["weft"]["values"].size() == 2);
    CHECK(c["weft"]["median"].get<double>() > 0);
    CHECK(c["peers"].empty());
  }
}

TEST_CASE("A turn lasts as many seconds as are asked for") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(run_weft("compare --against none --threads 1 --pairs 3 --seconds 0.5 --cases '^1000 "
                 "additions of one element$'")
            .code == 0);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(1500));
}

TEST_CASE("Cases are chosen by model and by shape") {
  const Outcome model = run_weft("compare --list --model cct");
  CHECK_THAT(model.out,
             Contains("train cct batch 64 fp32") && !Contains("vit_b_16") && !Contains("gemm"));
  const Outcome shape = run_weft("compare --list --shape 788x3072 --cases ops");
  CHECK_THAT(shape.out, Contains("gelu 788x3072 bf16 + grad") && !Contains("788x3072x768") &&
                            !Contains("softmax"));
  check_error(run_weft("compare --model vgg"), 2, "--model \"vgg\" matches none of the ");
  check_error(run_weft("compare --shape 1x1"), 2, "--shape \"1x1\" matches none of the ");
}

TEST_CASE("A file of one's own is Python's to compare") {
  const std::string file = program("mine.py", "functions = {}\n");
  const std::string python = program("echo-python", "#!/bin/sh\necho \"$@\"\nexit 3\n");
  const Outcome outcome =
      run_weft("compare --case " + file + " --pairs 2 --seconds 0.25 --json --python " + python);
  CHECK(outcome.code == 3);
  CHECK(outcome.out == "-m weft.compare " + file + " --pairs 2 --seconds 0.25 --json\n");
  check_error(run_weft("compare --case /nonexistent.py"), 2, "/nonexistent.py");
  // What is only of Weft's own cases is not dropped.
  for (const std::string option :
       {"--cases x", "--model cct", "--shape 1x1", "--list", "--against jax", "--device cuda",
        "--timeout 9", "--profile", "--save x.json", "--html x.html"}) {
    check_error(run_weft("compare --case " + file + " " + option), 2, "excludes --case");
  }
}

TEST_CASE("Figures of both, ratios pair by pair, versions and commands") {
  const std::string python = fake_peer("slow-peer", 1000);
  const std::string page = fresh_scratch("compare.html");
  const Outcome outcome =
      run_weft(kTwoCases + ("--json --profile --python " + python + " --html " + page));
  REQUIRE(outcome.code == 0);
  const json result = json::parse(outcome.out);
  CHECK(result["peers"]["PyTorch"]["version"] == "0.fake");
  CHECK_THAT(result["peers"]["PyTorch"]["command"].get<std::string>(),
             Matches(python + " -u /.*/compare_peer.py --threads 1 --device cpu --directory /.*"));
  CHECK_THAT(result["weft"]["command"].get<std::string>(),
             Matches("/.*/weft compare --serve --threads 1 .*"));
  CHECK(result["threads"] == 1);
  CHECK(result["machine"]["sockets"].get<int>() > 0);
  CHECK_THAT(result["machine"]["caches"].get<std::string>(), !Contains("{"));
  for (const char* when : {"gemm_before", "gemm_after"}) {
    CHECK(result[when]["fp32"].get<double>() > 1e8);
    CHECK(result[when]["bf16"].get<double>() > 1e8);
  }
  CHECK(result["cores"].size() == 1);
  CHECK(result["environment"]["OMP_NUM_THREADS"] == "1");
  CHECK(result["pairs"] == 2);
  const json additions = find(result, "1000 additions of one element");
  const json& peer = additions["peers"]["eager"];
  CHECK(peer["values"] == json({1000.0, 1000.0}));
  REQUIRE(peer["ratio"]["values"].size() == 2);
  for (int pair = 0; pair < 2; ++pair) {
    CHECK(peer["ratio"]["values"][pair].get<double>() ==
          Approx(1000 / additions["weft"]["values"][pair].get<double>()));
  }
  CHECK(peer["profile"][0]["name"] == "aten::nothing");
  bool has_kernel = false;
  for (const json& row : additions["weft"]["profile"]) {
    has_kernel = has_kernel || (row["name"] == "binary_cpu_scalar" && row["calls"] == 1000) ||
                 (row["name"] == "binary_cpu_blocks" && row["calls"] == 1000);
  }
  CHECK(has_kernel);

  const std::string kept = fresh_scratch("compare.json");
  const Outcome table = run_weft(kTwoCases + ("--python " + python + " --save " + kept));
  CHECK_THAT(table.out, Contains("2 cases: 0 where a peer was ahead, 0 failed"));
  CHECK(find(json::parse(read_file(kept)),
             "1000 additions of one element")["peers"]["eager"]["values"] ==
        json({1000.0, 1000.0}));

  const std::string html = read_file(page);
  CHECK_THAT(html, Contains("0.fake") && Contains("1000 additions of one element"));
  for (const char* outside : {"http://", "https://", "src="}) {
    INFO(outside);
    CHECK_THAT(html, !Contains(outside));
  }
}

TEST_CASE("A lost case is counted; the scratch directory is gone") {
  const std::string python = fake_peer("quick-peer", 1e-9);
  const Outcome outcome = run_weft(kTwoCases + ("--python " + python));
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out,
             Contains("PyTorch 0.fake") && Contains("2 cases: 2 where a peer was ahead, 0 failed"));
  const std::string directory = fresh_scratch("empty-tmp");
  std::filesystem::create_directory(directory);
  const Outcome again = run_shell("TMPDIR=" + directory + " timeout 120 " + weft_program() + " " +
                                  kTwoCases + "--python " + python);
  CHECK(again.code == 0);
  CHECK(std::filesystem::is_empty(directory));
}

TEST_CASE("What the peer cannot do is said, and the rest goes on") {
  const std::string python = fake_peer(
      "half-peer", 1, "*'\"cross_entropy\"'*) echo '{\"error\": \"ValueError: not today\"}' ;;");
  const json result = json::parse(run_weft(kTwoCases + ("--json --python " + python)).out);
  CHECK(find(result, "cross_entropy 256x10 fp32")["peers"]["eager"]["failure"] ==
        "PyTorch: ValueError: not today");
  CHECK(find(result, "1000 additions of one element")["peers"]["eager"]["values"].size() == 2);
}

TEST_CASE("A peer that dies, babbles or sleeps costs its case only") {
  const std::string babbling = fake_peer("babbling", 1, "*cross_entropy*) echo hello there ;;");
  const std::string dying = fake_peer("dying", 1, "*cross_entropy*) echo enough >&2; exit 3 ;;");
  const std::string sleeping = fake_peer("sleeping", 1, "*cross_entropy*) exec sleep 60 ;;");
  for (const auto& [python, message] :
       {std::pair(babbling, "PyTorch answered \"hello there\""),
        std::pair(dying, "PyTorch ended without an answer: enough"),
        std::pair(sleeping, "PyTorch did not answer within 10 s")}) {
    INFO(message);
    const Outcome outcome = run_weft(kTwoCases + ("--json --timeout 10 --python " + python));
    CHECK(outcome.code == 0);
    const json result = json::parse(outcome.out);
    CHECK(find(result, "cross_entropy 256x10 fp32")["peers"]["eager"]["failure"] == message);
    CHECK(find(result, "1000 additions of one element")["peers"]["eager"].contains("ratio"));
  }
}

TEST_CASE("Models of different size are not compared") {
  const std::string python =
      fake_peer("other-model", 1, "*'\"prepare\"'*) echo '{\"parameters\": 17}' ;;");
  const json result = json::parse(run_weft("compare --json --pairs 1 --seconds 0 --threads 1 "
                                           "--cases '^infer cct batch 64 fp32' --python " +
                                           python)
                                      .out);
  const json cct = find(result, "infer cct batch 64 fp32");
  CHECK(cct["peers"]["eager"]["failure"] == "not the same model: 17 parameters, Weft's has 350283");
  CHECK(cct["weft"]["values"].size() == 1);
}

TEST_CASE("Forms of PyTorch can be chosen") {
  const std::string python = fake_peer("choice", 1);
  const std::string command = "compare --json --pairs 1 --seconds 0 --threads 1 --python " +
                              python + " --cases '^chain 788x3072 fp32$'";
  CHECK(find(json::parse(run_weft(command).out), "chain 788x3072 fp32")["peers"].size() == 3);
  const json chosen = json::parse(run_weft(command + " --against compile").out);
  CHECK(find(chosen, "chain 788x3072 fp32")["peers"].size() == 1);
  CHECK(find(chosen, "chain 788x3072 fp32")["peers"].contains("compile"));
  check_error(run_weft("compare --against tensorflow"), 2, "tensorflow");
}

TEST_CASE("Peers besides PyTorch are compared where they are installed") {
  // Without JAX's package.
  const std::string python =
      program("no-jax",
              "#!/bin/sh\ncase \"$*\" in *compare_jax*) echo \"ModuleNotFoundError: No "
              "module named 'jax'\" >&2; exit 1;; esac\nexec " +
                  fake_peer("others", 1) + "\n");
  const std::string command = "compare --pairs 1 --seconds 0 --threads 1 --python " + python +
                              " --cases '^infer cct batch 64 fp32$'";
  const Outcome outcome = run_weft(command + " --against eager,openvino,onnxruntime");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("\nOpenVINO 0.fake") && Contains("\nONNX Runtime 0.fake") &&
                              Contains("GFLOP/s in fp32"));
  const Outcome all = run_weft(command);
  CHECK_THAT(all.out,
             Contains("no JAX: JAX ended without an answer: ModuleNotFoundError: No module "
                      "named 'jax'"));
  check_error(run_weft(command + " --against jax"), 2, "no JAX: JAX ended without an answer");
}

TEST_CASE("The list holds every kind of case") {
  const Outcome outcome = run_weft("compare --list");
  CHECK(outcome.code == 0);
  for (const char* name : {"train vit_b_16 batch 1 fp32",
                           "train vit_b_16 batch 4 bf16",
                           "train vit_b_16 batch 16 fp32",
                           "train cct batch 64 fp32",
                           "train cct batch 256 bf16",
                           "infer vit_b_16 batch 16 bf16",
                           "infer cct batch 256 fp32",
                           "gemm ",
                           "softmax ",
                           "layer_norm ",
                           "gelu ",
                           "attention 64x4x65x32",
                           "attention 4x12x197x64",
                           "attention 1x12x1024x64",
                           "cross_entropy ",
                           "adamw ",
                           "chain ",
                           "sum ",
                           "cast ",
                           "one element\n",
                           "one element, recorded",
                           "JPEG ",
                           "save vit_b_16",
                           "load vit_b_16",
                           "start-up",
                           "memory of train vit_b_16"}) {
    CHECK_THAT(outcome.out, Contains(name));
  }
}

TEST_CASE("Mistakes in compare's arguments") {
  check_error(run_weft("compare --cases nonsense"), 2, "matches none of the ");
  check_error(run_weft("compare --cases '('"), 2, "--cases \"(\"");
  check_error(run_weft("compare --pairs 0"), 2, "--pairs");
  check_error(run_weft("compare --device tpu"), 1, "tpu");
}

TEST_CASE("On a GPU ops and steps of its size are compared, as CUDA graphs too") {
  const Outcome gpu = run_weft("compare --list --device cuda"), cpu = run_weft("compare --list");
  CHECK_THAT(gpu.out, Contains("train vit_b_16 batch 512 fp16 graph") &&
                          Contains("train vit_b_16 batch 64 tf32\n") &&
                          Contains("ops on a GPU, bf16") &&
                          Contains("gemm 25216x2304x768 bf16 + grad"));
  CHECK_THAT(cpu.out, Contains("train vit_b_16 batch 4") &&
                          Contains("gemm 788x2304x768 bf16 + grad") && !Contains("GPU") &&
                          !Contains("graph"));
}
