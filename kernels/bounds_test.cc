// The tolerances of the kernel tests are derived bounds. Each op's own test holds every variant to
// them; here they themselves are held: over the op's cases the largest error comes within a stated
// factor of its bound. A bound that somebody widens fails here.
//
//   narrow results  2: their one rounding dominates, and of hundreds one comes near its bound
//   f32 results    16: a sum's bound takes every rounding at its worst and in one direction, random
//                      ones leave about 1 / sqrt(n) of n; functions are better than promised
//   exceptions         named in kExceptions
//
// f64 results are held to their bounds, but not these to them: the references compute in f64 or
// little wider, often by the same steps, and then there is no error to compare.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <map>

#include "kernels/adam/adam_cases.h"
#include "kernels/attention/attention_cases.h"
#include "kernels/batch_norm/batch_norm_cases.h"
#include "kernels/binary/binary_cases.h"
#include "kernels/conv2d/conv2d_cases.h"
#include "kernels/copy/copy_cases.h"
#include "kernels/cross_entropy/cross_entropy_cases.h"
#include "kernels/dropout/dropout_cases.h"
#include "kernels/fill/fill_cases.h"
#include "kernels/fp8_quantize/fp8_quantize_cases.h"
#include "kernels/fused/fused_cases.h"
#include "kernels/gemm/gemm_cases.h"
#include "kernels/index/index_cases.h"
#include "kernels/layer_norm/layer_norm_cases.h"
#include "kernels/loss_scale/loss_scale_cases.h"
#include "kernels/multi_tensor_norm/multi_tensor_norm_cases.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale_cases.h"
#include "kernels/pool2d/pool2d_cases.h"
#include "kernels/random/random_cases.h"
#include "kernels/reduce/reduce_cases.h"
#include "kernels/scan/scan_cases.h"
#include "kernels/sgd/sgd_cases.h"
#include "kernels/softmax/softmax_cases.h"
#include "kernels/sort/sort_cases.h"
#include "kernels/unary/unary_cases.h"
#include "kernels/where/where_cases.h"

using namespace weft;
using namespace weft::kernels;

namespace {

constexpr double kNarrowFactor = 2, kFactor = 16;

struct Exception {
  std::string_view op, function;
  double factor;
};
constexpr Exception kExceptions[] = {
    // A dot product's error goes through exp into another sum: two factors of 1 / sqrt(n) meet.
    {"attention", "", 64},
    {"attention", " backward", 64},
    // 768 terms of one sign in up to 64 parts: 8 sqrt(n), as error_bounds_test has it for sums.
    {"layer_norm", "large_mean", 222},
};

double factor_of(std::string_view op, std::string_view function) {
  for (const Exception& exception : kExceptions) {
    if (exception.op == op && exception.function == function) return exception.factor;
  }
  return kFactor;
}

enum class Width { kNarrow, kF32, kF64 };

Width width_of(DType dtype) {
  return dtype == DType::f64 ? Width::kF64 : dtype == DType::f32 ? Width::kF32 : Width::kNarrow;
}

/// Results that share a bound's formula: an output of one function, forward or backward.
struct Group {
  std::string function;  // "gelu_erf", "sum backward"; empty where an op is one function
  size_t output = 0;
  Width width = Width::kF32;
  auto operator<=>(const Group&) const = default;
};

struct Found {
  double largest = 0;  // error / bound
  int64_t inexact = 0;
};

/// What stands in a case's name before its shape and dtype, and its direction.
std::string function_of(const std::string& name) {
  std::string function;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('_', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    const bool is_dtype = std::ranges::any_of(
        kAllDTypes, [&](DType dtype) { return fmt::format("{}", dtype) == word; });
    if (is_dtype || word.find_first_of("[0123456789") == 0) break;
    function += (function.empty() ? "" : "_") + word;
    begin = end + 1;
  }
  return function + (name.find("backward") != std::string::npos ? " backward" : "");
}

using Findings = std::map<Group, Found>;

Findings measure(const OpTable& table) {
  Findings findings;
  for (const CaseEntry& entry : table.cases) {
    if (entry.cost.flops > 0 || entry.cost.bytes > 0) continue;  // large, for the clock
    Inputs in(entry.seed);
    if (entry.make(in)("") != Ran::kYes) continue;
    const std::vector<Expected> expected = entry.expected();
    REQUIRE(expected.size() == in.outputs().size());
    for (size_t k = 0; k < expected.size(); ++k) {
      const Tensor& output = in.outputs()[k];
      Found& found = findings[{function_of(entry.name), k, width_of(output.dtype())}];
      const std::vector<double> values = output.to_vector();
      for (size_t i = 0; i < values.size(); ++i) {
        const double error = std::abs(values[i] - expected[k].values[i]);
        if (!(error > 0 && std::isfinite(error))) continue;
        ++found.inexact;
        found.largest = std::max(found.largest, error / expected[k].bounds[i]);
      }
    }
  }
  return findings;
}

// Of inexact results: fewer than kEnough may all lie far from a bound, kTooFew say nothing.
constexpr int64_t kEnough = 100, kTooFew = 4;

/// Groups too small to come near a bound become one for each width.
Findings pooled(const Findings& findings) {
  Findings result;
  for (const auto& [group, found] : findings) {
    Found& to = result[found.inexact >= kEnough ? group : Group{"the rest", 0, group.width}];
    to.largest = std::max(to.largest, found.largest);
    to.inexact += found.inexact;
  }
  std::erase_if(result, [](const auto& item) { return item.second.inexact <= kTooFew; });
  return result;
}

}  // namespace

TEST_CASE("no kernel's bound is violated, or loose by more than the documented factor") {
  for (const OpTable& table : {adam_table(),
                               attention_table(),
                               batch_norm_table(),
                               binary_table(),
                               conv2d_table(),
                               copy_table(),
                               cross_entropy_table(),
                               dropout_table(),
                               fill_table(),
                               fp8_quantize_table(),
                               fused_table(),
                               gemm_table(),
                               index_table(),
                               layer_norm_table(),
                               loss_scale_table(),
                               multi_tensor_norm_table(),
                               multi_tensor_scale_table(),
                               pool2d_table(),
                               random_table(),
                               reduce_table(),
                               scan_table(),
                               sgd_table(),
                               softmax_table(),
                               sort_table(),
                               unary_table(),
                               where_table()}) {
    // The loosest of each width, for the log.
    std::array<double, 3> least = {1, 1, 1};
    for (const auto& [group, found] : pooled(measure(table))) {
      INFO(table.name << " " << group.function << ", output " << group.output << ": "
                      << found.inexact << " inexact results");
      CHECK(found.largest <= 1);
      double& loosest = least[static_cast<size_t>(group.width)];
      loosest = std::min(loosest, found.largest);
      if (group.width == Width::kNarrow) CHECK(found.largest >= 1 / kNarrowFactor);
      if (group.width == Width::kF32) {
        CHECK(found.largest >= 1 / factor_of(table.name, group.function));
      }
    }
    std::printf("%s: the loosest bound is %.1f times the error in narrow formats, %.1f in f32\n",
                table.name.c_str(), 1 / least[0], 1 / least[1]);
  }
}

TEST_CASE("results that no rounding can change have bounds of zero") {
  for (const OpTable& table :
       {adam_table(), copy_table(), dropout_table(), fill_table(), fp8_quantize_table(),
        fused_table(), loss_scale_table(), sgd_table(), sort_table(), where_table()}) {
    INFO(table.name);
    for (const CaseEntry& entry : table.cases) {
      if (entry.cost.flops > 0 || entry.cost.bytes > 0) continue;
      for (const Expected& expected : entry.expected()) {
        if (std::ranges::all_of(expected.bounds, [](double bound) { return bound == 0; })) continue;
        INFO(entry.name);
        CHECK(false);
      }
    }
  }
}
