// Kernels outside the tree, compiled, loaded and checked as their authors do it.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/shell.h"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

using Edits = std::vector<std::pair<std::string, std::string>>;

fs::path scratch() { return std::getenv("TEST_TMPDIR"); }
fs::path cache() { return scratch() / "cache"; }

std::string read(const fs::path& file) {
  std::stringstream text;
  text << std::ifstream(file.string()).rdbuf();
  return text.str();
}

/// A plugin of this folder in the scratch folder, each first text replaced by its second.
fs::path plugin(const std::string& source, const std::string& file, const Edits& edits = {}) {
  std::string text = read("tests/plugins/" + source);
  REQUIRE(!text.empty());
  for (const auto& [from, to] : edits) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  }
  std::ofstream((scratch() / file).string()) << text;
  return scratch() / file;
}

/// Runs a program of this tree against this tree's headers.
weft::CommandOutcome run(const std::string& command, const std::string& settings = "") {
  return weft::run_command("WEFT_ROOT=$PWD XDG_CACHE_HOME=" + cache().string() + " " + settings +
                           " timeout 600 " + command);
}

weft::CommandOutcome softmax(const std::string& command, const fs::path& file,
                             const std::string& settings = "") {
  return run("kernels/softmax/softmax_lab " + command + " --plugin " + file.string(), settings);
}

int lines_of(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

int line_with(const std::string& text, const std::string& part) {
  return lines_of(text.substr(0, text.find(part))) + 1;
}

int shared_objects() {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(cache() / "weft/plugins")) {
    count += entry.path().extension() == ".so";
  }
  return count;
}

TEST_CASE("A variant in one file goes through its op's cases, and again when it was edited") {
  fs::remove_all(cache());
  const fs::path file = plugin("row_loop.cc", "edited.cc");
  const weft::CommandOutcome list = softmax("list", file);
  CHECK(list.code == 0);
  CHECK(line_with(list.text, "softmax_cpu_loop") == 2);
  CHECK_THAT(list.text, Contains("softmax_cpu_highway") && Contains("softmax_fits_loop"));
  const weft::CommandOutcome check = softmax("check", file);
  INFO(check.text);
  CHECK(check.code == 0);
  CHECK_THAT(check.text, Contains("softmax_cpu_loop") && !Contains("softmax_cpu_highway") &&
                             Contains(" 0 failed, "));
  CHECK(shared_objects() == 1);

  plugin("row_loop.cc", "edited.cc", {{"/= sum", "/= sum + 1"}});
  const weft::CommandOutcome wrong = softmax("check", file);
  CHECK(wrong.code == 1);
  CHECK_THAT(wrong.text, Contains("FAILED softmax softmax_cpu_loop") && Contains("out of bounds"));
  CHECK(shared_objects() == 1);

  plugin("row_loop.cc", "edited.cc", {{"y[i] /= sum", "y[i] = y[i] / sum, y[n] = 0"}});
  CHECK_THAT(softmax("check", file).text, Contains("wrote outside its outputs"));

  const weft::CommandOutcome bench = softmax("bench --samples 1 --shape 48", file);
  CHECK(bench.code == 0);
  CHECK_THAT(bench.text, Contains("softmax_cpu_loop") && Contains("softmax_cpu_highway"));
}

TEST_CASE("A shared object is taken as it is") {
  const fs::path file = plugin("row_loop.cc", "whole.cc");
  REQUIRE(softmax("list", file).code == 0);
  fs::path object;
  for (const auto& entry : fs::directory_iterator(cache() / "weft/plugins")) {
    if (entry.path().filename().string().starts_with("whole-") && entry.path().extension() == ".so")
      object = entry.path();
  }
  const fs::path copy = scratch() / "whole.so";
  fs::copy_file(object, copy, fs::copy_options::overwrite_existing);
  const weft::CommandOutcome check = softmax("check --small", copy, "CXX=/nonexistent");
  CHECK(check.code == 0);
  CHECK_THAT(check.text, Contains("softmax_cpu_loop"));
}

/// racing.cu without its race.
const Edits kNoRace = {
    {"sums[threadIdx.x] = sum;", "sums[threadIdx.x] = sum;\n  __syncthreads();"}};

TEST_CASE("A plugin is timed beside the others, and its page is written") {
  // The rates of a machine, which nobody waits for.
  const fs::path roofline = scratch() / "roofline.json", page = scratch() / "page.html";
  std::ofstream(roofline.string()) << R"({"roofline":{"device":"cpu","name":"a machine",)"
                                   << R"("threads":2,"copy_gb_s":20,"matmul_tflop_s":{"f32":1}}})";
  const std::string options = "--samples 1 --shape 48 --roofline " + roofline.string();
  const auto kernels = [&](const std::string& arguments, const fs::path& file) {
    return run("cli/weft_kernels kernels " + arguments + " --plugin " + file.string());
  };
  const fs::path file = plugin("row_loop.cc", "timed.cc");
  const weft::CommandOutcome rows = kernels("bench softmax --json " + options, file);
  CHECK(rows.code == 0);
  CHECK_THAT(rows.text, Contains("\"variant\":\"softmax_cpu_loop\"") &&
                            EndsWith("{\"timed\":5,\"skipped\":0}\n"));
  const weft::CommandOutcome report =
      kernels("report softmax --html " + page.string() + " " + options, file);
  INFO(report.text);
  CHECK(report.code == 0);
  CHECK_THAT(read(page), Contains("softmax_cpu_loop"));
  CHECK_THAT(kernels("check softmax --json --small", file).text,
             EndsWith("{\"checked\":14,\"failed\":0,\"skipped\":0}\n"));
  // The emulated device is not timed, and that is said.
  const weft::CommandOutcome refused =
      kernels("bench softmax " + options, plugin("racing.cu", "timed.cu"));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.text, Contains("bench: softmax_cuda_racing is for cuda, and what is timed is "
                                    "cpu; the emulated device has no speed"));
  CHECK(lines_of(refused.text) == 1);
}

TEST_CASE("The accesses of a .cu file are counted by its lines") {
  const fs::path file = plugin("racing.cu", "counted.cu", kNoRace);
  const weft::CommandOutcome check = softmax("check --traffic --case '[5, 31]_axis1_f32'", file);
  INFO(check.text);
  CHECK(check.code == 0);
  const int line = line_with(read(file), "sum += std::exp(x[i])");
  CHECK_THAT(check.text, Contains("counted.cu:" + std::to_string(line)));
}

TEST_CASE("An access out of bounds in a .cu file is reported with its place") {
  Edits edits = kNoRace;
  edits.emplace_back("y[i] = std::exp", "y[i + 4096] = std::exp");
  const fs::path file = plugin("racing.cu", "beyond.cu", edits);
  const weft::CommandOutcome check = softmax("check --case '[5, 31]_axis1_f32'", file);
  CHECK(check.code == 1);
  CHECK_THAT(check.text,
             Contains("beyond.cu:" + std::to_string(line_with(read(file), "y[i + 4096]"))));
}

TEST_CASE("A race in a .cu file is reported with its place") {
  const fs::path file = plugin("racing.cu", "racing.cu");
  const weft::CommandOutcome check = softmax("check --small", file);
  CHECK(check.code == 1);
  const int line = line_with(read(file), "// the race");
  CHECK_THAT(check.text, Contains("race") && Contains("racing.cu:" + std::to_string(line)));
}

TEST_CASE("A program computes with the plugins that the environment names") {
  REQUIRE(run("cli/weft_kernels kernels new cross_entropy " + scratch().string()).code == 0);
  const std::string plugins = "WEFT_PLUGINS=" + plugin("row_loop.cc", "first.cc").string() + "," +
                              (scratch() / "cross_entropy_cpu_mine.cc").string();
  const weft::CommandOutcome profile =
      run("cli/weft profile --model cct --batch-size 2 --all", plugins);
  INFO(profile.text);
  CHECK(profile.code == 0);
  CHECK_THAT(profile.text, Contains("cross_entropy_cpu_mine"));
  const weft::CommandOutcome train =
      run("cli/weft train --epochs 1 --limit-batches 2 --output " + (scratch() / "run").string(),
          plugins);
  CHECK(train.code == 0);
  CHECK_THAT(train.text, Contains("first.cc stands first in softmax\n") &&
                             Contains("weft: cross_entropy_cpu_mine of ") &&
                             Contains("test accuracy"));
}

TEST_CASE("Bad plugins are one line that names them") {
  std::ofstream((scratch() / "notes.txt").string()) << "no source\n";
  std::ofstream((scratch() / "broken.so").string()) << "no shared object\n";
  fs::copy_file("/proc/self/exe", scratch() / "cut.so");
  fs::permissions(scratch() / "cut.so", fs::perms::owner_all);
  fs::resize_file(scratch() / "cut.so", 4096);
  REQUIRE(::mkfifo((scratch() / "pipe.so").c_str(), 0600) == 0);
  fs::create_directories(scratch() / "empty");
  const auto by_hand = [](const std::string& file, const std::string& from, const std::string& to) {
    return plugin("by_hand.cc", file, {{from, to}});
  };
  const struct {
    fs::path file;
    const char* message;
  } kMistakes[] = {
      {scratch() / "none.cc", "none.cc: there is no such plugin"},
      {scratch() / "notes.txt", "notes.txt: expected a .cc, .cu or .so file"},
      {scratch() / "empty", "empty: the folder has no .cc and no .cu file"},
      {scratch() / "broken.so", "broken.so cannot be loaded: "},
      {scratch() / "cut.so", "cut.so cannot be loaded: it was cut short, to 4096 bytes"},
      {scratch() / "pipe.so", "pipe.so cannot be loaded: it is no file"},
      {by_hand("old.cc", "= WEFT_PLUGIN_ABI", "= \"weft 0.0.1\""),
       "old.cc was compiled for weft 0.0.1"},
      {by_hand("format.cc", "= kPluginFormat", "= 7"), "(format 7)"},
      {by_hand("struct.cc", "sizeof(SoftmaxProblem)", "8"),
       "another problem of softmax, of 8 bytes"},
      {by_hand("unknown.cc", "= \"softmax\"", "= \"softmux\""), "an unknown op \"softmux\""},
      {by_hand("other.cc", "= \"softmax\"", "= \"gemm\""),
       "adds a variant to gemm, not to softmax"},
      {by_hand("taken.cc", ".name = \"softmax_cpu_none\"", ".name = \"softmax_cpu_highway\""),
       "defines softmax_cpu_highway, which softmax has already"},
      {plugin("row_loop.cc", "plain.cc", {{"WEFT_PLUGIN(", "// ("}}), "plain.cc is no plugin"},
      {plugin("row_loop.cc", "unbound.cc",
              {{"void softmax_cpu_loop", "float lost(float);\nvoid softmax_cpu_loop"},
               {"std::exp(", "lost("}}),
       "unbound.cc cannot be loaded: "},
  };
  for (const auto& mistake : kMistakes) {
    INFO(mistake.file);
    const weft::CommandOutcome outcome = softmax("check", mistake.file);
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.text, Contains("weft: error: ") && Contains(mistake.message));
    CHECK(lines_of(outcome.text) == 1);
  }
  const std::string twice = "WEFT_PLUGINS=" + plugin("row_loop.cc", "twice.cc").string();
  CHECK_THAT(softmax("check", plugin("row_loop.cc", "again.cc"), twice).text,
             Contains("both define softmax_cpu_loop"));
}

TEST_CASE("A source that does not compile is the compiler's message and one line") {
  const struct {
    fs::path file;
    const char* message;
  } kMistakes[] = {
      {plugin("row_loop.cc", "typo.cc", {{"float max", "flat max"}}), "'flat' was not declared"},
      {plugin("row_loop.cc", "signature.cc",
              {{"loop(const SoftmaxProblem& p) {\n  if", "loop(SoftmaxProblem p) {\n  if"}}),
       "a variant is a function `void NAME(const PROBLEM&)`"},
      {plugin("row_loop.cc", "name.cc", {{"softmax_cpu_loop, cpu", "softmax_cpu_loop, cuda"}}),
       "a variant is named <op>_<device>_<algorithm>"},
      {plugin("row_loop.cc", "op.cc", {{"WEFT_PLUGIN(softmax", "WEFT_PLUGIN(softmux"}}),
       "softmux_op"},
  };
  for (const auto& mistake : kMistakes) {
    const weft::CommandOutcome outcome = softmax("check", mistake.file, "LC_ALL=C");
    INFO(outcome.text);
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.text,
               Contains(mistake.message) &&
                   EndsWith("weft: error: " + mistake.file.string() + " does not compile\n"));
  }
}

TEST_CASE("What a plugin needs and is not there is named") {
  const fs::path file = plugin("row_loop.cc", "needs.cc");
  const auto error = [&](const std::string& settings) {
    const weft::CommandOutcome outcome = softmax("check", file, settings);
    CHECK(outcome.code == 1);
    CHECK(lines_of(outcome.text) == 1);
    return outcome.text;
  };
  CHECK_THAT(error("CXX=/nonexistent/g++"), Contains("cannot start the compiler /nonexistent/g++"));
  CHECK_THAT(error("XDG_CACHE_HOME=/proc/none"), Contains("/proc/none"));
  CHECK_THAT(error("WEFT_ROOT=/proc"), Contains("set WEFT_ROOT"));
  const weft::CommandOutcome train = run(
      "cli/weft train --epochs 1", "WEFT_PLUGINS=" + plugin("racing.cu", "deviceless.cu").string());
  CHECK(train.code == 1);
  CHECK_THAT(train.text, Contains("deviceless.cu: a CUDA kernel needs a device") &&
                             Contains("--device emulated"));
}

TEST_CASE("Skeletons pass as they are") {
  const fs::path folder = scratch() / "skeletons";
  fs::remove_all(folder);
  const auto make = [&](const std::string& arguments) {
    const weft::CommandOutcome outcome = run("cli/weft_kernels kernels new " + arguments);
    INFO(outcome.text);
    REQUIRE(outcome.code == 0);
  };
  // Of every op; what they are made of is the same for all.
  std::ifstream ops("bazel/ops.bzl");
  int count = 0;
  for (std::string line; std::getline(ops, line);) {
    if (!line.starts_with("    \"")) continue;
    const std::string op = line.substr(5, line.find('"', 5) - 5);
    make(op + " " + folder.string());
    make(op + " " + folder.string() + " --cuda");
    CHECK_THAT(read(folder / (op + "_cpu_mine.cc")),
               Contains("void " + op + "_cpu_mine(const ") && !Contains("@"));
    CHECK_THAT(read(folder / (op + "_cuda_mine.cu")),
               Contains("void " + op + "_cuda_mine(const ") && !Contains("@"));
    ++count;
  }
  CHECK(count > 20);
  for (const char* name : {"softmax_cpu_mine.cc", "softmax_cuda_mine.cu"}) {
    const weft::CommandOutcome check = softmax("check --small", folder / name);
    INFO(check.text);
    CHECK(check.code == 0);
    CHECK_THAT(check.text, Contains(" 0 failed, "));
  }
  for (const char* name : {"gemm_cpu_mine.cc", "gemm_cuda_mine.cu"}) {
    const weft::CommandOutcome list =
        run("kernels/gemm/gemm_lab list --plugin " + (folder / name).string());
    CHECK(list.code == 0);
    CHECK_THAT(list.text, Contains(fs::path(name).stem().string()));
  }
}

TEST_CASE("A skeleton of a new op passes as it is, in a folder of its own") {
  const fs::path folder = scratch() / "square sum";  // a path that has to be quoted
  fs::remove_all(folder);
  REQUIRE(run("cli/weft_kernels kernels new square '" + folder.string() + "' --cuda").code == 0);
  const weft::CommandOutcome check =
      run("cli/weft_kernels kernels check --plugin '" + folder.string() + "'");
  INFO(check.text);
  CHECK(check.code == 0);
  CHECK_THAT(check.text, Contains("square_cpu_loop") && Contains("square_cuda_threads") &&
                             Contains(" 0 failed, "));
  // Another file of the folder is part of it.
  std::ofstream((folder / "square.inc").string(), std::ios::app)
      << "WEFT_VARIANT(square_cpu_none, cpu, DTypeSet{DType::f32}, fits_any<SquareProblem>)\n";
  CHECK_THAT(run("kernels/testing/plugin_lab list --plugin '" + folder.string() + "'").text,
             Contains("undefined symbol"));
  CHECK_THAT(softmax("check", "'" + folder.string() + "'").text, Contains("cannot be loaded"));

  const weft::CommandOutcome wrong =
      run("cli/weft_kernels kernels check --plugin " + plugin("row_loop.cc", "row.cc").string());
  CHECK(wrong.code == 1);
  CHECK_THAT(wrong.text, Contains("weft kernels check softmax --plugin "));
}

TEST_CASE("The help of kernels check without an op is that of one") {
  const std::string text = run("cli/weft_kernels kernels check --help").text;
  const size_t usage = text.find("Usage: ");
  REQUIRE(usage != std::string::npos);
  CHECK(text.find("Usage: ", usage + 1) == std::string::npos);
}

TEST_CASE("Mistakes in the arguments of kernels new are one line") {
  const std::string there = plugin("row_loop.cc", "softmax_cpu_mine.cc").parent_path().string();
  const struct {
    std::string arguments;
    int code;
    const char* message;
  } kMistakes[] = {
      {"softmax", 2, "expected OP DIR [--cuda]"},
      {"softmax " + there + " --gpu", 2, "expected OP DIR [--cuda]"},
      {"Soft-Max " + there, 2, "\"Soft-Max\" names no op"},
      {"softmax " + there, 1, "softmax_cpu_mine.cc exists"},
      {"softmax /proc/none", 1, "/proc/none"},
  };
  for (const auto& mistake : kMistakes) {
    INFO(mistake.arguments);
    const weft::CommandOutcome outcome = run("cli/weft_kernels kernels new " + mistake.arguments);
    CHECK(outcome.code == mistake.code);
    CHECK_THAT(outcome.text, Contains("weft: error: ") && Contains(mistake.message));
    CHECK(lines_of(outcome.text) == 1);
  }
}

}  // namespace
