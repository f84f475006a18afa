// What the ops' tables cannot say: bits, outputs that are views, integers beyond 2^53, errors.
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/view.h"
#include "kernels/binary/binary.h"
#include "kernels/copy/copy.h"
#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/walk.h"
#include "kernels/fill/fill.h"
#include "kernels/unary/unary.h"
#include "kernels/where/where.h"

namespace weft::kernels {
namespace {

Tensor iota(const Shape& shape, DType dtype = DType::i64) {
  std::vector<int64_t> values(numel(shape));
  std::iota(values.begin(), values.end(), 0);
  return contiguous(Tensor::from(values, shape), dtype);
}

template <class To, class From>
To converted(From x) {
  To y;
  convert(&x, dtype_of<From>(), &y, dtype_of<To>(), 1);
  return y;
}

TEST_CASE("every code of the narrow formats survives widening and narrowing in blocks") {
  for (DType dtype : {DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
    const int64_t n = int64_t{1} << (8 * itemsize(dtype));
    std::vector<uint16_t> codes(n), back(n);
    std::vector<uint8_t> codes8(n), back8(n);
    std::iota(codes.begin(), codes.end(), 0);
    std::iota(codes8.begin(), codes8.end(), 0);
    const bool narrow = itemsize(dtype) == 1;
    const void* from = narrow ? static_cast<const void*>(codes8.data()) : codes.data();
    void* to = narrow ? static_cast<void*>(back8.data()) : back.data();
    std::vector<float> wide(n);
    convert(from, dtype, wide.data(), DType::f32, n);
    convert(wide.data(), DType::f32, to, dtype, n);
    visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
      int wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        const auto* x = static_cast<const T*>(from) + i;
        const auto* y = static_cast<const T*>(to) + i;
        // One conversion at a time, as core defines it, is the oracle for both directions.
        const float scalar = to_double(*x);
        const uint32_t wide_bits = std::bit_cast<uint32_t>(wide[i]);
        const bool same_wide =
            std::isnan(scalar) ? std::isnan(wide[i]) : std::bit_cast<uint32_t>(scalar) == wide_bits;
        const T scalar_back = T(wide[i]);
        wrong += !same_wide || std::memcmp(&scalar_back, y, sizeof(T)) != 0;
        if (!std::isnan(scalar)) wrong += std::memcmp(x, y, sizeof(T)) != 0;
      }
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("f32 blocks narrow to the bits of core's scalar conversions") {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 65537) {
    for (uint32_t low : {0u, 0x7fffu, 0x8000u, 0x8001u, 0xfffu, 0x1000u, 0x1001u}) {
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits) + low));
    }
  }
  const int64_t n = static_cast<int64_t>(x.size());
  for (DType dtype : {DType::tf32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
    visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
      if constexpr (!std::is_arithmetic_v<T>) {
        std::vector<T> y(n);
        convert(x.data(), DType::f32, y.data(), dtype, n);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          const T expected = T(x[i]);
          wrong += std::memcmp(&expected, &y[i], sizeof(T)) != 0;
        }
        INFO(name(dtype));
        CHECK(wrong == 0);
      }
    });
  }
}

TEST_CASE("floats become integers by truncation, saturation and NaN = 0") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  CHECK(converted<int32_t>(-2.9) == -2);
  CHECK(converted<uint8_t>(255.9f) == 255);
  CHECK(converted<uint8_t>(256.0f) == 255);
  CHECK(converted<uint8_t>(-1.0f) == 0);
  CHECK(converted<int32_t>(2147483647.9) == 2147483647);
  CHECK(converted<int32_t>(2147483648.0f) == 2147483647);
  CHECK(converted<int64_t>(kInf) == std::numeric_limits<int64_t>::max());
  CHECK(converted<int64_t>(-kInf) == std::numeric_limits<int64_t>::min());
  CHECK(converted<int64_t>(kNan) == 0);
  CHECK(converted<bool>(kNan));
  CHECK(converted<bool>(f16(0x1p-24f)));
  CHECK_FALSE(converted<bool>(-0.0));
}

TEST_CASE("integers beyond 2^53 convert with one rounding") {
  const int64_t big = (int64_t{1} << 62) + 1;
  CHECK(converted<int32_t>(int64_t{0x1234567890}) == 0x34567890);
  CHECK(converted<uint8_t>(int64_t{-1}) == 255);
  CHECK(converted<float>(big) == 0x1p62f);
  // Just above the tie of bf16's neighbours 2^62 and 2^62 (1 + 2^-7): away from even.
  const int64_t tie = (int64_t{1} << 62) + (int64_t{1} << 54);
  CHECK(static_cast<float>(converted<bf16>(tie)) == 0x1p62f);
  CHECK(static_cast<float>(converted<bf16>(tie + 1)) == 0x1.02p62f);
  CHECK(static_cast<float>(converted<bf16>(-tie - 1)) == -0x1.02p62f);
  CHECK(std::isinf(static_cast<float>(converted<f16>(big))));
}

TEST_CASE("copies and selections keep NaN payloads and signs of zeros") {
  const std::vector<float> numbers = {std::bit_cast<float>(0x7f812345u), -0.0f,
                                      std::bit_cast<float>(0xffc00001u)};
  const Tensor x = Tensor::from(numbers, {3});
  const Tensor y = Tensor::empty({3}), z = Tensor::empty({3});
  copy({.x = x, .y = y});
  where({.condition = Tensor::full({3}, 1, DType::boolean), .a = x, .b = y, .y = z});
  CHECK(std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0);
  CHECK(std::memcmp(x.raw(), z.raw(), x.nbytes()) == 0);
}

TEST_CASE("outputs may be transposed, permuted, or slices of a larger tensor") {
  const Tensor x = iota({45, 67});
  const Tensor out = Tensor::empty({67, 45}, DType::i64);
  copy({.x = x, .y = view::transpose(out, 0, 1)});
  CHECK(out.to_vector() == view::transpose(x, 0, 1).to_vector());

  const Tensor wide = Tensor::zeros({6, 10, 7}, DType::i64);
  copy({.x = iota({6, 2, 7}), .y = view::narrow(wide, 1, 3, 2)});
  CHECK(view::narrow(wide, 1, 3, 2).to_vector() == iota({6, 2, 7}).to_vector());
  CHECK(view::narrow(wide, 1, 0, 3).to_vector() == std::vector<double>(6 * 3 * 7, 0));

  const Tensor images = iota({2, 3, 5, 7});
  const Tensor permuted = Tensor::empty({2, 5, 7, 3}, DType::i64);
  unary({.op = UnaryOp::kNeg, .x = images, .y = view::permute(permuted, {0, 3, 1, 2})});
  std::vector<double> negated = view::permute(images, {0, 2, 3, 1}).to_vector();
  for (double& value : negated) value = -value;
  CHECK(permuted.to_vector() == negated);

  fill({.y = view::select(wide, 1, 9), .value = 5});
  CHECK(view::select(wide, 1, 9).to_vector() == std::vector<double>(42, 5));
}

TEST_CASE("contiguous copies only what is not") {
  const Tensor x = iota({3, 4});
  CHECK(contiguous(x).is_same(x));
  CHECK(contiguous(x, DType::i64).is_same(x));
  const Tensor turned = contiguous(view::transpose(x, 0, 1));
  CHECK(turned.is_contiguous());
  CHECK(turned.to_vector() == view::transpose(x, 0, 1).to_vector());
  CHECK(contiguous(x, DType::bf16).dtype() == DType::bf16);
}

TEST_CASE("a walk merges dimensions and covers every element once") {
  const Tensor x = Tensor::empty({4, 6, 8});
  CHECK(Walk({x, x}).shape() == Shape{192});
  CHECK(Walk({view::transpose(x, 0, 2), view::transpose(x, 0, 2)}).shape() == Shape{192});
  CHECK(Walk({x, view::expand(Tensor::empty({8}), {4, 6, 8})}).shape() == Shape{24, 8});
  CHECK(Walk({Tensor::empty({})}).shape() == Shape{1});
  for (int64_t columns : {1, 3, 255, 256, 257, 1024, 1025, 5000}) {
    const Tensor rows = view::narrow(Tensor::empty({7, columns + 1}), 1, 0, columns);
    const Walk walk({rows});
    std::vector<int> seen(7 * (columns + 1));
    for (int64_t i = 0; i < walk.blocks(); ++i) {
      const Block block = walk.block(i);
      REQUIRE(block.size() <= kBlock);
      walk.for_each_row(0, block, [&](int64_t offset) {
        for (int64_t c = 0; c < block.columns; ++c) ++seen[offset + c * walk.stride(0)];
      });
    }
    for (size_t i = 0; i < seen.size(); ++i) {
      REQUIRE(seen[i] == (static_cast<int64_t>(i) % (columns + 1) < columns ? 1 : 0));
    }
  }
}

TEST_CASE("integer arithmetic wraps and its errors are named") {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  const auto compute = [](BinaryOp op, int64_t a, int64_t b) {
    const Tensor y = Tensor::empty({}, DType::i64);
    binary({.op = op,
            .a = Tensor::from(std::vector<int64_t>{a}, {}),
            .b = Tensor::from(std::vector<int64_t>{b}, {}),
            .y = y});
    return *y.data<int64_t>();
  };
  CHECK(compute(BinaryOp::kSub, kMin, 1) == std::numeric_limits<int64_t>::max());
  CHECK(compute(BinaryOp::kDiv, kMin, -1) == kMin);
  CHECK(compute(BinaryOp::kDiv, -7, 2) == -3);
  CHECK(compute(BinaryOp::kPow, 3, 39) == 4052555153018976267);
  CHECK(compute(BinaryOp::kPow, -2, 63) == kMin);
  CHECK(compute(BinaryOp::kPow, 2, 64) == 0);
  CHECK(compute(BinaryOp::kPow, 7, 0) == 1);
  CHECK_THROWS_WITH(compute(BinaryOp::kDiv, 5, 0), "div: integer division of 5 by zero");
  CHECK_THROWS_WITH(compute(BinaryOp::kPow, 2, -1),
                    "pow: an integer has no negative integer power, got 2^-1");
}

TEST_CASE("an op that a dtype does not have is refused by name") {
  const Tensor x = iota({3});
  CHECK_THROWS_WITH(unary({.op = UnaryOp::kExp, .x = x, .y = x}),
                    Catch::Contains("no variant fits exp(i64 [3] on cpu to i64)"));
  CHECK_THROWS_WITH(binary({.op = BinaryOp::kGeluErfGrad, .a = x, .b = x, .y = x}),
                    Catch::Contains("no variant fits gelu_erf_grad"));
  CHECK_THROWS_WITH(binary({.op = BinaryOp::kLt, .a = x, .b = x, .y = x}),
                    Catch::Contains("no variant fits lt"));
  CHECK_THROWS_WITH(where({.condition = x, .a = x, .b = x, .y = x}),
                    Catch::Contains("no variant fits where"));
}

}  // namespace
}  // namespace weft::kernels
