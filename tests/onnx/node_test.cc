// Weft's ops against ONNX's own node tests: one directory per case, holding a model and inputs and
// outputs for it. Debian's package libonnx-testdata has them.
#include <fnmatch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "tests/onnx/model.h"
#include "tests/onnx/ops.h"
#include "tests/skip.h"

namespace weft::onnx {
namespace {

constexpr const char* kTests = "/usr/share/libonnx-testdata/data/node";

/// Cases of op types that Weft has and which it does not pass. The test fails when a case is
/// missing here, and when one that is here passes.
struct Reason {
  const char* pattern;  // of directories' names, as a shell's
  const char* why;
};
constexpr Reason kReasons[] = {
    {"test_adam_multiple", "its expected values use epsilon 0.01, which the node does not state"},
    {"test_averagepool_3d_default", "pooling has two spatial dimensions"},
    {"test_blackmanwindow*_expanded", "its expected values use 3.1415 for pi"},
    {"test_cast*BFLOAT16*", "its files say uint16 for bfloat16, and narrowing is by truncation"},
    {"test_cast*STRING*", "no strings"},
    {"test_clip_default_int8_*", "no int8"},
    {"test_convtranspose_3d", "convolution has two spatial dimensions"},
    {"test_hammingwindow*_expanded", "its expected values use 3.1415 for pi"},
    {"test_hannwindow*_expanded", "its expected values use 3.1415 for pi"},
    {"test_identity_opt", "an optional is not a tensor"},
    {"test_identity_sequence", "a sequence is not a tensor"},
    {"test_max_int16", "no int16"},
    {"test_max_int8", "no int8"},
    {"test_max_uint16", "no uint16"},
    {"test_max_uint32", "no uint32"},
    {"test_max_uint64", "no uint64"},
    {"test_maxpool_3d_default", "pooling has two spatial dimensions"},
    {"test_min_int16", "no int16"},
    {"test_min_int8", "no int8"},
    {"test_min_uint16", "no uint16"},
    {"test_min_uint32", "no uint32"},
    {"test_min_uint64", "no uint64"},
    {"test_pow_types_float32_uint32", "no uint32"},
    {"test_pow_types_float32_uint64", "no uint64"},
    {"test_training_dropout", "its noise is NumPy's"},
    {"test_training_dropout_default*", "its noise is NumPy's"},
    {"test_training_dropout_mask", "its noise is NumPy's"},
};

const char* reason_for(const std::string& directory) {
  for (const Reason& reason : kReasons) {
    if (fnmatch(reason.pattern, directory.c_str(), 0) == 0) return reason.why;
  }
  return nullptr;
}

double allowed(Accuracy accuracy, double u, double want, double largest) {
  switch (accuracy) {
    case Accuracy::kExact:
      return 0;
    case Accuracy::kRounded:
      return 8 * u * std::abs(want);
    case Accuracy::kSummed:
      return 16 * u * largest;
  }
  return 0;
}

/// Throws Error unless the tensors agree. Returns the largest share of what is allowed that was
/// used.
double compare(const Tensor& got, const Tensor& want, Accuracy accuracy) {
  WEFT_CHECK(got.dtype() == want.dtype() && got.shape() == want.shape(), "got {}, expected {}", got,
             want);
  const std::vector<double> a = got.to_vector(), b = want.to_vector();
  const bool floating = is_floating(want.dtype());
  const double u = floating ? unit_roundoff(want.dtype()) : 0;
  double largest = 0, used = 0;
  for (double x : b) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0);
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double bound = floating ? allowed(accuracy, u, b[i], largest) : 0;
    const double error = std::abs(a[i] - b[i]);
    WEFT_CHECK(error <= bound, "element {} is {:.9g}, expected {:.9g} within {:.2g}", i, a[i], b[i],
               bound);
    used = std::max(used, error / bound);
  }
  return used;
}

/// The values of all names after running the nodes.
std::map<std::string, Tensor> run(const Model& model, std::map<std::string, Tensor> values) {
  for (const Node& node : model.nodes) {
    Tensors inputs;
    for (const std::string& name : node.inputs) {
      inputs.push_back(name.empty() ? Tensor() : values.at(name));
    }
    const Tensors outputs = find_op(node.op_type)->run(node, inputs);
    WEFT_CHECK(outputs.size() >= node.outputs.size(), "{}: {} outputs, expected {}", node.op_type,
               outputs.size(), node.outputs.size());
    for (size_t i = 0; i < node.outputs.size(); ++i) values[node.outputs[i]] = outputs[i];
  }
  return values;
}

/// Throws Error, saying why, unless every data set of a directory comes out as expected. Returns
/// the largest share of the allowed error that was used.
double check_directory(const Path& directory, const Model& model) {
  WEFT_CHECK(model.not_tensors.empty(), "{} is not a tensor", model.not_tensors[0]);
  // The ops of a graph add up to its accuracy.
  Accuracy accuracy = Accuracy::kExact;
  for (const Node& node : model.nodes) {
    accuracy = std::max(accuracy, find_op(node.op_type)->accuracy);
  }
  double used = 0;
  for (int set = 0; std::filesystem::exists(directory / fmt::format("test_data_set_{}", set));
       ++set) {
    const Path data = directory / fmt::format("test_data_set_{}", set);
    std::map<std::string, Tensor> values(model.initializers.begin(), model.initializers.end());
    for (size_t i = 0; i < model.inputs.size(); ++i) {
      values[model.inputs[i]] = parse_tensor(read_file(data / fmt::format("input_{}.pb", i)));
    }
    const auto results = run(model, values);
    for (size_t i = 0; i < model.outputs.size(); ++i) {
      const Tensor want = parse_tensor(read_file(data / fmt::format("output_{}.pb", i)));
      used = std::max(used, compare(results.at(model.outputs[i]), want, accuracy));
    }
  }
  return used;
}

struct Tally {
  int passed = 0, total = 0;
  double used = 0;
};

}  // namespace

TEST_CASE("ONNX's node tests") {
  if (!std::filesystem::is_directory(kTests)) {
    WEFT_SKIP("ONNX's node tests: the package libonnx-testdata is not installed");
  }
  std::vector<Path> directories;
  for (const auto& entry : std::filesystem::directory_iterator(kTests)) {
    directories.push_back(entry.path());
  }
  std::sort(directories.begin(), directories.end());

  std::map<std::string, Tally> tallies;
  Tally expanded;
  std::map<std::string, int> lacking;
  std::vector<std::string> uncovered, unexplained, stale;
  for (const Path& directory : directories) {
    const std::string name = directory.filename();
    const Model model = parse_model(read_file(directory / "model.onnx"));
    const auto unknown = std::find_if(model.nodes.begin(), model.nodes.end(),
                                      [](const Node& n) { return !find_op(n.op_type); });
    if (unknown != model.nodes.end()) {
      ++lacking[unknown->op_type];
      continue;
    }
    Tally& tally = model.nodes.size() == 1 ? tallies[model.nodes[0].op_type] : expanded;
    ++tally.total;
    const char* reason = reason_for(name);
    try {
      tally.used = std::max(tally.used, check_directory(directory, model));
      ++tally.passed;
      if (reason) stale.push_back(name);
    } catch (const Error& error) {
      if (reason) {
        uncovered.push_back(fmt::format("{}: {}", name, reason));
      } else {
        unexplained.push_back(fmt::format("{}: {}", name, error.what()));
      }
    }
  }
  for (const Reason& reason : kReasons) {
    if (std::none_of(directories.begin(), directories.end(), [&](const Path& directory) {
          return fnmatch(reason.pattern, directory.filename().c_str(), 0) == 0;
        })) {
      stale.push_back(reason.pattern);
    }
  }

  int passed = 0;
  std::printf("ONNX op types: cases passed, largest share of the allowed error\n");
  for (const auto& [type, tally] : tallies) {
    std::printf("  %-26s %2d of %2d  %4.2f\n", type.c_str(), tally.passed, tally.total, tally.used);
    passed += tally.passed;
  }
  std::printf("  %-26s %2d of %2d  %4.2f\n", "(graphs of several nodes)", expanded.passed,
              expanded.total, expanded.used);
  std::printf("%d single nodes of %zu op types and %d graphs passed.\n", passed, tallies.size(),
              expanded.passed);
  std::printf("Not passed, of op types that Weft has:\n");
  for (const std::string& line : uncovered) std::printf("  %s\n", line.c_str());
  std::printf("Op types that Weft lacks, and their cases:");
  for (const auto& [type, cases] : lacking) std::printf(" %s %d", type.c_str(), cases);
  std::printf("\n");

  for (const std::string& line : unexplained) FAIL_CHECK(line);
  for (const std::string& line : stale) FAIL_CHECK("has a reason, but passes or is gone: " << line);
  CHECK(passed >= 300);
}

}  // namespace weft::onnx
