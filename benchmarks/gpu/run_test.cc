// benchmarks/gpu/run beside stand-ins for the bundle's programs: what fails or hangs is noted, the
// rest goes on, and the report has the figures.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void script(const fs::path& path, const std::string& text) {
  std::ofstream(path) << "#!/bin/bash\n" << text << "\n";
  fs::permissions(path, fs::perms::owner_all);
}

constexpr const char* kOp =  // an op's program: check, bench
    "case $1 in check) echo fine ;; bench) echo '{\"case\":\"'$(basename $0)'\"}' ;; *) exit 2 ;; "
    "esac";

/// A program of Catch2's, which takes no command.
std::string catch_test(int code) { return "[ $# = 0 ] || exit 9; exit " + std::to_string(code); }

/// The bundle's folder as the script sees it, with what may be on the machine beside it.
class Bundle {
 public:
  explicit Bundle(const std::string& name)
      : folder_(fs::path(std::getenv("TEST_TMPDIR")) / name), tools_(folder_ / "tools") {
    fs::remove_all(folder_);
    fs::create_directories(tools_);
    fs::copy_file("benchmarks/gpu/run", folder_ / "run-gpu");
    script(folder_ / "weft", R"(
case "$*" in
  "devices --json") echo '[{"device":"cuda:0"}]' ;;
  devices) echo 'cuda:0  Stand-in' ;;
  *"--precision fp16"*--graph*) echo 'weft: error: out of memory' >&2; exit 1 ;;
  "bench step"*) echo '{"batch":64,"images_per_second":1234.5,"step_ms":{"median":51.84,"min":50.0,"max":53.0},"tflops":130.26,"peak_bytes":12345678901,"reserved_bytes":1}' ;;
  train*"--precision fp16"*"--capture on"*) echo 'weft: error: no graphs' >&2; exit 1 ;;
  train*"--model vit_b_16"*"--capture off"*) echo '{"event":"done","images_per_second":1000.25}' ;;
  train*) echo '{"event":"epoch","images_per_second":1}'; echo '{"event":"done","images_per_second":1500.75}' ;;
  "kernels report"*) echo a table; cp $4 $6 ;;
  compare*) echo "$*" >>"$(dirname "$0")/compared"
            printf 'a header\n\ncase  weft  eager\n'; printf 'train  1 ms  2 ms\n' ;;
esac)");
    script(folder_ / "copy_lab", kOp);
    script(folder_ / "gemm_lab", kOp);
    script(folder_ / "device_test", catch_test(0));
    script(folder_ / "roofline", "echo '{\"bytes_per_second\":1}'");
    script(tools_ / "nvidia-smi", "echo 'Stand-in, 580.1'");
    script(tools_ / "python", "echo 2.99.0");
  }

  const fs::path& folder() const { return folder_; }
  fs::path results() const { return folder_ / "results"; }
  std::string report() const { return read(results() / "report.md"); }

  int run(const std::string& parts = "", const std::string& environment = "") const {
    const std::string command =
        "PATH=" + tools_.string() +
        ":/usr/bin:/bin CUDA_HOME=/nonexistent WEFT_PYTHON=python WEFT_GPU_BATCHES=64 " +
        "WEFT_GPU_PRECISIONS='fp32 fp16' " + environment + " timeout 120 " +
        (folder_ / "run-gpu").string() + " " + results().string() + " " + parts + " >/dev/null 2>" +
        (folder_ / "errors").string();
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string errors() const { return read(folder_ / "errors"); }

 private:
  fs::path folder_, tools_;
};

}  // namespace

TEST_CASE("a run on a GPU ends in a report with every part's figures") {
  const Bundle bundle("good");
  CHECK(bundle.run() == 0);
  const std::string report = bundle.report();
  CHECK_THAT(report, Contains("# Weft on a GPU, 20"));
  CHECK_THAT(report, Contains("cuda:0  Stand-in"));
  CHECK_THAT(report, Contains("Stand-in, 580.1"));
  CHECK_THAT(report, Contains("a table"));
  CHECK_THAT(report,
             Contains("| vit_b_16 | fp32 | 64 | kernel by kernel | 51.84 | 1234 | 130.3 | 12.3 |"));
  CHECK_THAT(report, Contains("| vit_b_16 | fp32 | 64 | --graph | 51.84 "));
  CHECK_THAT(report, Contains("| vit_b_16 | fp16 | 64 | --graph | code 1: weft: error: out of"));
  CHECK_THAT(report, Contains("| default-fp32 | 1500 | 1500 | 1.00 |"));
  CHECK_THAT(report, Contains("| vit_b_16-fp32 | 1500 | 1000 | 1.50 |"));
  CHECK_THAT(report, Contains("| vit_b_16-fp16 | code 1: weft: error: no graphs | 1000 |  |"));
  CHECK_THAT(report, Contains("PyTorch 2.99.0"));
  CHECK_THAT(report, Contains("train  1 ms  2 ms"));
  CHECK_THAT(report, !Contains("a header"));
  CHECK_THAT(report, Contains("5 passed, 0 failed, 18 skipped, 0 not begun"));
  CHECK_THAT(read(bundle.folder() / "compared"),
             Contains("--cases ^train vit_b_16 batch 64 fp16( graph)?$ --save") &&
                 Contains("--cases ^ops on a GPU, bf16$ --save"));
  CHECK(read(bundle.results() / "kernels.jsonl") ==
        "{\"bytes_per_second\":1}\n{\"case\":\"gemm_lab\"}\n{\"case\":\"copy_lab\"}\n");
}

TEST_CASE("what fails or hangs does not keep the rest from running") {
  const Bundle bundle("bad");
  script(bundle.folder() / "copy_lab", "[ $1 = check ] || exit 2; echo wrong bits; exit 1");
  script(bundle.folder() / "device_test", catch_test(7));
  CHECK(bundle.run("tests steps") == 1);
  CHECK_THAT(bundle.report(), Contains("- FAILED copy_lab: code 1: wrong bits"));
  CHECK_THAT(bundle.report(), Contains("- FAILED device_test: code 7"));
  CHECK_THAT(bundle.report(), Contains("| vit_b_16 | fp32 | 64 | --graph | 51.84 "));
  CHECK_THAT(bundle.report(), Contains("1 passed, 2 failed"));
  CHECK_THAT(bundle.report(), !Contains("## Kernels"));
}

TEST_CASE("nothing is begun after the time is up") {
  const Bundle bundle("late");
  CHECK(bundle.run("", "WEFT_GPU_MINUTES=0") == 1);  // not even the devices are known
  const Bundle slow("slow");
  script(slow.folder() / "copy_lab", "case $1 in check) sleep 100 ;; *) exit 2 ;; esac");
  // A deadline four seconds from the start, in place of minutes.
  const std::string text = read(slow.folder() / "run-gpu");
  const std::string minutes = "60 * ${WEFT_GPU_MINUTES:-240}";
  REQUIRE(text.find(minutes) != std::string::npos);
  script(slow.folder() / "run-gpu",
         std::string(text).replace(text.find(minutes), minutes.size(), "4"));
  CHECK(slow.run("first tests") == 0);
  CHECK_THAT(slow.report(), Contains("1 passed, 0 failed, 0 skipped") && !Contains(" 0 not begun"));
  // Run again it goes on where it stopped.
  script(slow.folder() / "copy_lab", kOp);
  script(slow.folder() / "gemm_lab", "exit 3");  // its first part has ended
  script(slow.folder() / "run-gpu", text);
  CHECK(slow.run("first") == 0);
  CHECK_THAT(slow.report(), Contains("# Taken up again, 20") &&
                                Contains("| fp32 | 64 | --graph |") &&
                                Contains("1 passed, 0 failed, 0 skipped, 0 not begun"));
  CHECK(slow.run("first") == 0);
  CHECK_THAT(slow.report(), Contains("0 passed, 0 failed, 0 skipped, 0 not begun"));
}

TEST_CASE("a machine without PyTorch, a device or the right CPU says so, as does a part unknown") {
  const Bundle bundle("without");
  script(bundle.folder() / "tools/python", "echo \"No module named 'torch'\"; exit 1");
  CHECK(bundle.run("compare") == 0);
  CHECK_THAT(bundle.report(),
             Contains("- no PyTorch with CUDA under python: No module named 'torch'"));
  CHECK(bundle.run("kernel") == 2);
  CHECK_THAT(bundle.errors(), Contains("unknown part \"kernel\": expected first, tests, kernels"));
  script(bundle.folder() / "tools/uname", "echo aarch64");
  CHECK(bundle.run() == 1);
  CHECK_THAT(bundle.errors(), Contains("this bundle is for x86-64, this machine is aarch64"));
  fs::remove(bundle.folder() / "tools/uname");
  script(bundle.folder() / "weft", "echo '[{\"device\":\"cpu\"}]'");
  CHECK(bundle.run() == 1);
  CHECK_THAT(bundle.report(), Contains("no CUDA device: nothing to run"));
}
