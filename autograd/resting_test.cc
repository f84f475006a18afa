#include "autograd/resting.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "autograd/ops.h"
#include "autograd/random.h"

namespace weft {
namespace {

using Catch::Matchers::Contains;

/// Numbers from 2^-40 to 2^20.
Tensor numbers() {
  manual_seed(3);
  const NoGrad guard;
  return ops::randn({64, 33}) * ops::exp2(ops::randn({64, 33}) * 8.0);
}

double largest(const Tensor& x) { return ops::max(ops::abs(x)).item(); }

}  // namespace

TEST_CASE("numbers are rounded to the format beneath a power of two") {
  const NoGrad guard;
  const auto [format, most, precision, smallest] = GENERATE(table<DType, double, double, double>(
      {{DType::f16, 65504, 0x1p-11, 0x1p-24}, {DType::f8e4m3, 448, 0x1p-4, 0x1p-9}}));
  const Tensor x = numbers();
  const LowBits bits = to_low_bits(format, x);
  CHECK(bits.codes.dtype() == format);
  const double amax = largest(x) * std::ldexp(1.0, bits.exponent);
  CHECK(amax <= most);
  CHECK(amax > most / 2);
  Tensor y = ops::clone(x);
  rest_as(bits, y);
  const std::vector<double> was = x.to_vector(), is = y.to_vector();
  const double half_step = std::ldexp(smallest, -bits.exponent) / 2;
  int64_t wrong = 0;
  for (size_t i = 0; i < was.size(); ++i) {
    wrong += std::abs(is[i] - was[i]) > std::max(precision * std::abs(was[i]), half_step);
  }
  CHECK(wrong == 0);
  // Codes of what they stand for are themselves.
  const LowBits again = to_low_bits(format, ops::clone(y));
  CHECK(again.exponent == bits.exponent);
  CHECK(again.codes.to_vector() == bits.codes.to_vector());
}

TEST_CASE("threads that touch a resting tensor at once all find its numbers") {
  const NoGrad guard;
  Tensor x = ops::ones({1 << 18});
  rest_in(DType::f16, x);
  std::atomic<int64_t> wrong = 0;
  for (int round = 0; round < 100; ++round) {
    let_go(x);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        const float* const numbers = x.data<float>();
        wrong += std::count_if(numbers, numbers + x.numel(), [](float v) { return v != 1; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(wrong == 0);
}

TEST_CASE("a resting tensor takes its format's bytes, and f32 while it is awake") {
  const NoGrad guard;
  const MemoryAccount account;
  const MemoryAccount::Joined joined(account);
  Tensor x = numbers();
  const auto live = [&](MemoryKind kind) { return account.bytes(kind).live; };
  const int64_t n = x.numel();
  const Tensor handle = x;
  rest_in(DType::f8e4m3, x, MemoryKind::kOptimizer);
  CHECK(rests(handle));
  CHECK(live(MemoryKind::kOptimizer) == n);
  CHECK(account.total().live == n);
  wake(x);
  CHECK(live(MemoryKind::kGathered) == 4 * n);
  const std::vector<double> values = handle.to_vector();
  let_go(x);
  CHECK(account.total().live == n);
  CHECK(x.to_vector() == values);

  // A change in place is kept, rounded; an op's by let_go(), a kernel's by rest().
  let_go(x);
  ops::mul_(x, Tensor::scalar(3));
  let_go(x);
  CHECK(largest(x) == Approx(3 * largest(Tensor::from(values, {n}))).epsilon(0.07));
  x.data<float>()[0] = 1e9f;
  rest(x);
  CHECK(account.total().live == n);
  CHECK(largest(handle) == Approx(1e9).epsilon(0.07));
}

TEST_CASE("codes take the place of others, also for those who look on") {
  const NoGrad guard;
  Tensor x = numbers();
  const Tensor handle = detach(x);
  CHECK(!current_bits(DType::f8e4m3, x).codes.defined());
  rest_in(DType::f8e4m3, x);
  const Tensor later = detach(x);
  const LowBits before = current_bits(DType::f8e4m3, x);
  CHECK(before.codes.defined());
  CHECK(!current_bits(DType::f16, x).codes.defined());
  wake(x);
  CHECK(current_bits(DType::f8e4m3, x).exponent == before.exponent);
  ops::mul_(x, Tensor::scalar(3));
  CHECK(!current_bits(DType::f8e4m3, x).codes.defined());  // they are of other numbers

  const uint64_t version = x.version();
  const Tensor y = ops::exp2(ops::randn({64, 33}));
  rest_as(to_low_bits(DType::f8e4m3, y), x);
  CHECK(x.version() > version);
  const LowBits after = current_bits(DType::f8e4m3, x);
  Tensor expected = ops::clone(y);
  rest_as(after, expected);
  CHECK(later.to_vector() == expected.to_vector());
  CHECK(later.to_vector() == x.to_vector());
  CHECK(handle.to_vector() == numbers().to_vector());  // of before it rested
}

TEST_CASE("what is not finite does not hide in codes") {
  const NoGrad guard;
  for (const float bad : {std::numeric_limits<float>::infinity(), NAN}) {
    Tensor x = numbers();
    x.data<float>()[7] = bad;
    rest_in(DType::f8e4m3, x);
    for (const double value : x.to_vector()) CHECK(std::isnan(value));
  }
  Tensor zeros = Tensor::zeros({5});
  rest_in(DType::f16, zeros);
  CHECK(largest(zeros) == 0);
}

TEST_CASE("codes move to another exponent") {
  const NoGrad guard;
  const Tensor x = numbers();
  const LowBits bits = to_low_bits(DType::f8e4m3, x);
  const auto at = [&](int exponent) {
    const LowBits other = {Tensor::empty(x.shape(), DType::f8e4m3), exponent};
    write_codes(bits, exponent, other.codes);
    return other;
  };
  const LowBits lower = at(bits.exponent - 2);
  CHECK(at(bits.exponent).codes.to_vector() == bits.codes.to_vector());
  Tensor y = ops::clone(x), z = ops::clone(x);
  rest_as(bits, y);
  rest_as(lower, z);
  CHECK(largest(z) == largest(y));
  CHECK(low_bits(z).exponent == bits.exponent);  // of numbers, not of the codes they came from
  for (const double code : at(LowBits::kNotFinite).codes.to_vector()) {
    CHECK(std::isnan(code));
  }
  CHECK_THROWS_WITH(rest_in(DType::bf16, y), Contains("expected the format f16 or f8e4m3"));
  CHECK_THROWS_WITH(rest_in(DType::f16, Tensor::zeros({2}, DType::f64)),
                    Contains("expected a contiguous f32 tensor"));
}

}  // namespace weft
