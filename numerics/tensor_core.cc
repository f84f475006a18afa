// The models and their scalar definition, in integer arithmetic; tensor_core_gemm.cc is the fast
// form.
#include "numerics/tensor_core.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "io/nearest.h"
#include "numerics/tensor_core_terms.h"

namespace weft::numerics {
namespace {

// Significands are integers with this many fractional bits: those of a product of two floats.
constexpr int kFractionBits = 46;

struct Term {
  int64_t significand = 0;
  int exponent = 0;
};

/// A finite value with its exponent, or that of the smallest normal number if it is below.
/// 23 fractional bits.
Term decode(float x, int smallest_exponent) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const int field = static_cast<int>(bits >> 23 & 0xff);
  int64_t significand = bits & 0x7fffffu;
  int exponent = -126;
  if (field != 0) {
    significand |= 0x800000;
    exponent = field - 127;
  }
  if (exponent < smallest_exponent) {
    significand >>= std::min(smallest_exponent - exponent, 63);  // exact: the format holds x
    exponent = smallest_exponent;
  }
  return {bits >> 31 ? -significand : significand, exponent};
}

/// The magnitude toward zero with `fraction_bits` bits below 2^exponent.
int64_t truncate(const Term& term, int exponent, int fraction_bits) {
  const int shift = std::min(kFractionBits - fraction_bits + exponent - term.exponent, 63);
  const int64_t magnitude = std::abs(term.significand) >> shift;
  return term.significand < 0 ? -magnitude : magnitude;
}

/// sum * 2^exponent, normalised and rounded as the step says.
float round_result(int64_t sum, int exponent, const FusedStep& step) {
  if (sum == 0) return 0;
  const uint64_t magnitude = static_cast<uint64_t>(std::abs(sum));
  const int leading = exponent + static_cast<int>(std::bit_width(magnitude)) - 1;
  const int unit = std::max(leading, step.output_exponent) - step.output_bits;
  const int dropped = unit - exponent;
  double result = 0;
  if (dropped <= 0) {
    result = std::ldexp(static_cast<double>(magnitude), exponent);
  } else if (dropped < 64) {
    uint64_t kept = magnitude >> dropped;
    const uint64_t rest = magnitude - (kept << dropped), half = uint64_t{1} << (dropped - 1);
    if (step.to_nearest && (rest > half || (rest == half && kept % 2 == 1))) ++kept;
    result = std::ldexp(static_cast<double>(kept), unit);
  }
  if (result >= step.output_overflow) result = std::numeric_limits<double>::infinity();
  return static_cast<float>(sum < 0 ? -result : result);
}

constexpr std::array<std::string_view, 8> kGpus = {"v100", "a2",   "a100", "ada",
                                                   "l40s", "h100", "h200", "b200"};

std::string_view model_of(std::string_view gpu) {
  const auto known = std::ranges::find(kGpus, gpu);
  WEFT_CHECK(known != kGpus.end(), "unknown GPU \"{}\": expected one of {}{}", gpu,
             fmt::join(kGpus, " "), io::did_you_mean(gpu, {kGpus.begin(), kGpus.end()}));
  return gpu == "a2" ? "a100" : gpu == "l40s" ? "ada" : gpu == "h200" ? "h100" : *known;
}

bool is_fp8(DType input) { return input == DType::f8e4m3 || input == DType::f8e5m2; }

}  // namespace

std::span<const std::string_view> tensor_core_gpus() { return kGpus; }

bool tensor_core_takes(std::string_view gpu, DType input) {
  const std::string_view model = model_of(gpu);
  if (input == DType::f16) return true;
  if (input == DType::bf16 || input == DType::tf32) return model != "v100";
  return is_fp8(input) && model != "v100" && model != "a100";
}

TensorCoreModel tensor_core_model(std::string_view gpu, DType input, DType output) {
  const std::string_view model = model_of(gpu);
  const bool fp8 = is_fp8(input);
  const bool hopper = model == "h100", blackwell = model == "b200", volta = model == "v100";
  WEFT_CHECK(tensor_core_takes(gpu, input),
             "the tensor cores of {} take no {} operands: expected {}", gpu, input,
             volta                                   ? "f16"
             : tensor_core_takes(gpu, DType::f8e4m3) ? "f16, bf16, tf32, f8e4m3 or f8e5m2"
                                                     : "f16, bf16 or tf32");
  const bool half_output = output == DType::f16;
  WEFT_CHECK(output == DType::f32 || (half_output && (input == DType::f16 || fp8)),
             "the tensor cores of {} give no {} results for {} operands: expected f32{}", gpu,
             output, input, input == DType::f16 || fp8 ? " or f16" : "");

  struct Adder {
    int terms, fraction_bits, floor, half_floor;
  };
  const bool wide = hopper || blackwell;
  const Adder adder = wide    ? Adder{16, 25, -133, -21}
                      : volta ? Adder{4, 23, -126, -19}
                              : Adder{8, 24, -132, -20};
  FusedStep step = {
      .terms = adder.terms,
      .fraction_bits = adder.fraction_bits,
      .output_bits = half_output ? 10 : 23,
      .to_nearest = half_output,
      .alignment_floor = half_output ? adder.half_floor : adder.floor,
      .output_exponent = half_output ? -14 : -126,
      .output_overflow = half_output ? 0x1p16 : 0x1p128,
  };
  if (input == DType::tf32) step.terms /= 2;
  TensorCoreModel result = {model, input, output, step};
  if (fp8 && (blackwell || (hopper && half_output))) {
    result.split_block = 32;
  } else if (fp8) {
    result.step.terms = hopper ? 32 : 16;
    result.step.fraction_bits = 13;
    result.step.alignment_floor = wide ? -133 : -132;
    if (!half_output) result.step.output_bits = 13;
  }
  return result;
}

float tensor_core_step(const TensorCoreModel& model, std::span<const float> a,
                       std::span<const float> b, float c) {
  const FusedStep& step = model.step;
  WEFT_CHECK(a.size() == b.size() && std::ssize(a) <= step.terms,
             "tensor_core_step: expected up to {} products, got {} and {} values", step.terms,
             a.size(), b.size());
  std::array<Term, 33> terms;
  int count = 0;
  bool nan = std::isnan(c), plus = std::isinf(c) && c > 0, minus = std::isinf(c) && c < 0;
  const int smallest = smallest_exponent(model.input);
  for (size_t i = 0; i < a.size(); ++i) {
    const float x = to_operand(a[i], model.input), y = to_operand(b[i], model.input);
    if (!std::isfinite(x) || !std::isfinite(y)) {
      const float product = x * y;
      nan |= std::isnan(product);
      plus |= product > 0;
      minus |= product < 0;
      continue;
    }
    const Term u = decode(x, smallest), v = decode(y, smallest);
    if (u.significand == 0 || v.significand == 0) continue;
    terms[count++] = {u.significand * v.significand, u.exponent + v.exponent};
  }
  if (nan || (plus && minus)) return tensor_core_nan(model.output);
  if (plus || minus) return plus ? HUGE_VALF : -HUGE_VALF;
  if (const Term term = decode(c, step.output_exponent); term.significand != 0) {
    terms[count++] = {term.significand * (int64_t{1} << (kFractionBits - 23)), term.exponent};
  }
  int largest = step.alignment_floor;
  for (int i = 0; i < count; ++i) largest = std::max(largest, terms[i].exponent);
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += truncate(terms[i], largest, step.fraction_bits);
  return round_result(sum, largest - step.fraction_bits, step);
}

float tensor_core_dot(const TensorCoreModel& model, std::span<const float> a,
                      std::span<const float> b, float c) {
  WEFT_CHECK(a.size() == b.size(), "tensor_core_dot: {} values against {}", a.size(), b.size());
  const auto chain = [&](std::span<const float> x, std::span<const float> y, float sum) {
    const size_t terms = static_cast<size_t>(model.step.terms);
    for (size_t i = 0; i < x.size(); i += terms) {
      const size_t n = std::min(terms, x.size() - i);
      sum = tensor_core_step(model, x.subspan(i, n), y.subspan(i, n), sum);
    }
    return sum;
  };
  c = to_accumulator(c, model.output);
  if (model.split_block == 0) return chain(a, b, c);
  std::vector<float> x(model.split_block), y(model.split_block);
  for (size_t begin = 0; begin < a.size(); begin += x.size()) {
    for (int i = 0; i < model.split_block; ++i) {
      const size_t k = begin + split_position(i, model.split_block);
      x[i] = k < a.size() ? a[k] : 0;
      y[i] = k < a.size() ? b[k] : 0;
    }
    c = add_to_accumulator(c, chain(x, y, 0), model.output);
  }
  return c;
}

}  // namespace weft::numerics
