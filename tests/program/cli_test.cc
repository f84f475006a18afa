#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/version.h"
#include "io/safetensors.h"
#include "io/safetensors_index.h"
#include "tests/program/run_weft.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

TEST_CASE("Mistakes in the command line exit with 2 and name the word") {
  check_error(run_weft(""), 2, "A subcommand is required");
  check_error(run_weft("trian"), 2, "unknown command \"trian\"; did you mean \"train\"?");
  check_error(run_weft("study batchsize"), 2, "did you mean \"batch-size\"?");
  check_error(run_weft("--colour"), 2, "unknown option \"--colour\"; see --help");
  check_error(run_weft("train --batchsize 3"), 2, "did you mean \"--batch-size\"?");
  check_error(run_weft("inspect"), 2, "FILE is required");
  check_error(run_weft("inspect a b"), 2, "b");
  check_error(run_weft("inspect a --jason"), 2, "--jason");
  check_error(run_weft("diff a"), 2, "B is required");
  check_error(run_weft("kernels chek"), 2,
              "expected one of list, check, bench, report, sass, new, got \"chek\"; did you mean "
              "\"check\"?");
}

TEST_CASE("Help is printed on standard output") {
  for (const char* arguments : {"--help", "inspect --help", "diff -h", "devices --help"}) {
    INFO(arguments);
    const Outcome outcome = run_weft(arguments);
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.out, Contains("Usage: "));
    CHECK(outcome.err == "");
  }
  CHECK_THAT(run_weft("--help").out, Contains("inspect") && Contains("./weft test"));
}

TEST_CASE("The version is that of the header") {
  const Outcome outcome = run_weft("--version");
  CHECK(outcome.code == 0);
  CHECK(outcome.out == "weft " WEFT_VERSION "\n");
}

TEST_CASE("inspect lists names, dtypes, shapes and statistics") {
  const std::string file = scratch("inspect.safetensors");
  const double nan = std::nan("");
  io::write_safetensors(file,
                        {{"weight", Tensor::from<float>(std::array{1.f, 2.f, 3.f, 6.f}, {2, 2})},
                         {"ids", Tensor::from<int64_t>(std::array<int64_t, 2>{-4, 4}, {2})},
                         {"empty", Tensor::empty({0, 3}, DType::bf16)},
                         {"broken", Tensor::from<double>(std::array{1.0, nan, -HUGE_VAL}, {3})}},
                        {{"format", "pt"}});
  const Outcome text = run_weft("inspect " + file);
  CHECK(text.code == 0);
  CHECK(text.err == "");
  CHECK(text.out ==
        "name    dtype   shape           min          max         mean          std\n"
        "------  ------  ------  -----------  -----------  -----------  -----------\n"
        "broken  f64     [3]               1            1            1            0  2 not finite\n"
        "ids     i64     [2]              -4            4            0            4\n"
        "weight  f32     [2, 2]            1            6            3        1.871\n"
        "empty   bf16    [0, 3]          nan          nan          nan          nan\n"
        "metadata format: pt\n"
        "safetensors\n"
        "4 tensors, 9 elements, 56 bytes\n");
  CHECK(
      run_weft("inspect --json " + file).out ==
      R"({"tensors":[)"
      R"({"name":"broken","dtype":"f64","shape":[3],"min":1.0,"max":1.0,"mean":1.0,"std":0.0,"non_finite":2},)"
      R"({"name":"ids","dtype":"i64","shape":[2],"min":-4.0,"max":4.0,"mean":0.0,"std":4.0,"non_finite":0},)"
      R"({"name":"weight","dtype":"f32","shape":[2,2],"min":1.0,"max":6.0,"mean":3.0,"std":1.8708286933869707,"non_finite":0},)"
      R"({"name":"empty","dtype":"bf16","shape":[0,3],"min":null,"max":null,"mean":null,"std":null,"non_finite":0}],)"
      R"("metadata":{"format":"pt"},"elements":9,"bytes":56,"format":"safetensors","names":""})"
      "\n");
}

TEST_CASE("inspect of what is no file of weights exits with 1") {
  check_error(run_weft("inspect /nonexistent"), 1, "cannot read /nonexistent: No such file");
  check_error(run_weft("inspect /etc/hostname"), 1, "/etc/hostname: ");
}

TEST_CASE("A full standard output is an error") {
  const std::string file = scratch("full.safetensors");
  io::write_safetensors(file, {{"x", Tensor::scalar(1)}});
  check_error(run_weft("inspect " + file + " >/dev/full"), 1, "cannot write to standard output");
}

TEST_CASE("diff tells equal, different and error apart by its exit code") {
  const std::string a = scratch("a.safetensors"), b = scratch("b.safetensors"),
                    c = scratch("c.safetensors");
  const Tensor x = Tensor::from<float>(std::array{1.f, 2.f, 3.f}, {3});
  const Tensor y = Tensor::from<float>(std::array{1.f, 2.5f, 1.f}, {3});
  const Tensor minus_zero = Tensor::full({1}, -0.0), zero = Tensor::full({1}, 0.0);
  io::write_safetensors(a, {{"w", x}, {"z", zero}, {"same", x}, {"shape", x}, {"gone", x}});
  io::write_safetensors(b, {{"w", y}, {"z", minus_zero}, {"same", x}, {"shape", zero}, {"new", x}});
  io::write_safetensors(c, {{"w", Tensor::full({3}, std::nan(""))},
                            {"z", zero},
                            {"same", x},
                            {"shape", x},
                            {"gone", x}});

  const Outcome same = run_weft("diff " + a + " " + a);
  CHECK(same.code == 0);
  CHECK(same.out == "5 tensors, all equal bit for bit\n");
  const Outcome different = run_weft("diff " + a + " " + b);
  CHECK(different.code == 1);
  CHECK(different.err == "");
  CHECK(different.out ==
        "name       max_abs  elements that differ\n"
        "-----  -----------  --------------------\n"
        "gone             -  only in the first\n"
        "new              -  only in the second\n"
        "shape            -  f32 [3] against f32 [1]\n"
        "w                2  2 of 3\n"
        "z                0  0 of 1\n"
        "6 tensors, 5 different, largest difference 2\n");
  CHECK(run_weft("diff --json " + a + " " + a).out ==
        "{\"tensors\":5,\"different\":0,\"max_abs\":0.0}\n");
  CHECK_THAT(run_weft("diff --json " + a + " " + b).out,
             Contains("{\"name\":\"w\",\"elements\":2,\"max_abs\":2.0}\n") &&
                 Catch::Matchers::EndsWith("{\"tensors\":6,\"different\":5,\"max_abs\":2.0}\n"));
  // A NaN against a number is infinitely far away, which JSON cannot say.
  CHECK_THAT(run_weft("diff --json " + a + " " + c).out,
             Catch::Matchers::EndsWith("{\"tensors\":5,\"different\":1,\"max_abs\":null}\n"));
  check_error(run_weft("diff " + a + " /nonexistent"), 2, "cannot read /nonexistent");

  // The same tensors in several files.
  const NamedTensors tensors = {{"w", x}, {"z", zero}, {"same", x}, {"shape", x}, {"gone", x}};
  std::vector<io::PendingTensor> pending;
  for (const auto& [name, tensor] : tensors) {
    pending.push_back({name, tensor.dtype(), tensor.shape()});
  }
  const std::string directory = fresh_scratch("indexed");
  std::filesystem::create_directories(directory);
  const auto make = [&](const std::string& name) {
    return std::ranges::find(tensors, name, &NamedTensors::value_type::first)->second;
  };
  REQUIRE(io::write_indexed(directory, pending, 16, make).size() > 2);
  const std::string index = directory + "/model.safetensors.index.json";
  for (const std::string& pair : {index + " " + a, a + " " + index, directory + " " + a}) {
    INFO(pair);
    CHECK(run_weft("diff " + pair).out == "5 tensors, all equal bit for bit\n");
  }
  CHECK(run_weft("diff " + index + " " + b).code == 1);
}

TEST_CASE("devices always lists the CPU") {
  const Outcome outcome = run_weft("devices");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Catch::Matchers::StartsWith("cpu ") && Contains("\ncuda"));
  CHECK_THAT(run_weft("devices --json").out, Contains("\"device\":\"cpu\""));
}
