#include "kernels/gemm/matmul_numerics.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "core/philox.h"
#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_batch.h"

namespace weft::kernels {
namespace {

TEST_CASE("settings nest and come back") {
  CHECK(matmul_settings() == MatmulSettings{});
  CHECK(matmul_numerics() == MatmulNumerics{});
  {
    const MatmulScope outer({.accumulation = Accumulation::kH100});
    CHECK(matmul_numerics() == MatmulNumerics{Accumulation::kH100, Tf32::kOff});
    {
      const MatmulScope inner({.allow_tf32 = true, .tf32_rounding = Tf32::kNearest});
      CHECK(matmul_numerics() == MatmulNumerics{Accumulation::kIeee, Tf32::kNearest});
    }
    CHECK(GemmProblem{}.numerics.accumulation == Accumulation::kH100);
  }
  CHECK(matmul_settings() == MatmulSettings{});
  CHECK_THROWS_WITH(MatmulScope({.tf32_rounding = Tf32::kOff}),
                    Catch::Contains("tf32_rounding must be truncate or nearest"));
}

TEST_CASE("TF32 is off for products and on for convolutions, which need something that has it") {
  const auto conv = [](const MatmulSettings& s, DeviceType device = DeviceType::cpu) {
    const MatmulScope scope(s);
    return conv_numerics(device).tf32;
  };
  CHECK(conv({}) == Tf32::kOff);
  CHECK(conv({}, DeviceType::cuda) == Tf32::kTruncate);
  CHECK(conv({.conv_allow_tf32 = false}, DeviceType::cuda) == Tf32::kOff);
  CHECK(conv({.allow_tf32 = true}) == Tf32::kTruncate);
  CHECK(conv({.allow_tf32 = true, .conv_allow_tf32 = false}) == Tf32::kOff);
  CHECK(conv({.accumulation = Accumulation::kA100}) == Tf32::kTruncate);
  CHECK(conv({.accumulation = Accumulation::kV100}) == Tf32::kOff);
  CHECK(conv({.accumulation = Accumulation::kExact}) == Tf32::kOff);
}

TEST_CASE("names and aliases") {
  CHECK(parse_accumulation("ieee") == Accumulation::kIeee);
  CHECK(parse_accumulation("exact") == Accumulation::kExact);
  CHECK(parse_accumulation("a2") == Accumulation::kA100);
  CHECK(parse_accumulation("l40s") == Accumulation::kAda);
  CHECK(parse_accumulation("h200") == Accumulation::kH100);
  for (const char* gpu : {"v100", "a100", "ada", "h100", "b200"}) {
    CHECK(name(parse_accumulation(gpu)) == gpu);
  }
  CHECK(accumulation_names().size() == 10);
  CHECK_THROWS_WITH(parse_accumulation("h300"),
                    "matmul-numerics: \"h300\" is not one of ieee, exact, v100, a2, a100, ada, "
                    "l40s, h100, h200, b200; did you mean \"h100\"?");
}

TEST_CASE("a GPU without units for a format says so") {
  const Tensor a = Tensor::full({2, 2}, 1, DType::bf16), c = Tensor::empty({2, 2}, DType::bf16);
  CHECK_THROWS_WITH(gemm({.a = a, .b = a, .c = c, .numerics = {Accumulation::kV100}}),
                    Catch::Contains("v100") && Catch::Contains("bf16"));
}

TEST_CASE("f32 products of a GPU are ieee unless TF32 is allowed, f64 ones always") {
  CHECK(gemm_arithmetic(DType::f32, {Accumulation::kH100}) == GemmArithmetic::kIeee);
  CHECK(gemm_arithmetic(DType::f32, {Accumulation::kH100, Tf32::kTruncate}) ==
        GemmArithmetic::kTensorCore);
  CHECK(gemm_arithmetic(DType::bf16, {Accumulation::kIeee, Tf32::kTruncate}) ==
        GemmArithmetic::kIeee);
  for (Accumulation a : {Accumulation::kExact, Accumulation::kB200}) {
    CHECK(gemm_arithmetic(DType::f64, {a, Tf32::kTruncate}) == GemmArithmetic::kIeee);
  }
  CHECK(gemm_arithmetic(DType::f8e5m2, {}) == GemmArithmetic::kFp8);
}

TEST_CASE("TF32 operands keep ten bits, NaNs, infinities and their layout") {
  const float third = 1.0f / 3, nan = std::bit_cast<float>(0x7f800001u);
  const Tensor x =
      Tensor::from(std::vector<float>{third, -third, INFINITY, nan, 0x1p-149f, 3}, {6});
  const Tensor cut = tf32_operand(x, Tf32::kTruncate), near = tf32_operand(x, Tf32::kNearest);
  const float* c = cut.data<float>();
  const float* n = near.data<float>();
  CHECK(c[0] == 1365 * 0x1p-12f);  // 1/3 = 1365.33 / 2^12
  CHECK(c[1] == -c[0]);
  CHECK(c[2] == INFINITY);
  CHECK(std::isnan(c[3]));
  CHECK(std::isnan(n[3]));
  CHECK(c[4] == 0);
  CHECK(c[5] == 3);
  const float tie = 1 + 0x1p-11f;
  const Tensor t = Tensor::from(std::vector<float>{tie, -tie}, {2});
  CHECK(tf32_operand(t, Tf32::kTruncate).to_vector() == std::vector<double>{1, -1});
  CHECK(tf32_operand(t, Tf32::kNearest).to_vector() ==
        std::vector<double>{1 + 0x1p-10, -1 - 0x1p-10});
  CHECK(tf32_operand(x, Tf32::kOff).is_same(x));
  const Tensor half = Tensor::full({2}, third, DType::f16);
  CHECK(tf32_operand(half, Tf32::kTruncate).is_same(half));
  const Tensor matrix = Tensor::full({3, 4}, third);
  const Tensor transposed = tf32_operand(view::transpose(matrix, 0, 1), Tf32::kTruncate);
  CHECK(transposed.stride(0) == 1);
  const Tensor repeated = tf32_operand(view::expand(matrix, {5, 3, 4}), Tf32::kTruncate);
  CHECK(repeated.stride(0) == 0);
  CHECK(repeated.to_vector() == std::vector<double>(60, c[0]));
}

TEST_CASE("exact products survive what ieee sums lose") {
  // 2^60 - 2^60 + 1, and a tie that only a term of 2^-60 decides.
  const Tensor a =
      Tensor::from(std::vector<float>{0x1p30f, -0x1p30f, 1, 1, 0x1p-24f, 0x1p-30f}, {2, 3});
  const Tensor b = Tensor::from(std::vector<float>{0x1p30f, 1, 0x1p30f, 1, 1, 0x1p-30f}, {3, 2});
  const Tensor c = Tensor::empty({2, 2});
  gemm({.a = a, .b = b, .c = c, .numerics = {Accumulation::kExact}});
  CHECK(c.to_vector()[0] == 1);
  CHECK(c.to_vector()[3] == 1 + 0x1p-23);
  const Tensor inf = Tensor::from(std::vector<float>{INFINITY, 1, -INFINITY, 1}, {2, 2});
  const Tensor ones = Tensor::full({2, 2}, 1), out = Tensor::empty({2, 2});
  gemm({.a = inf, .b = ones, .c = out, .numerics = {Accumulation::kExact}});
  CHECK(out.to_vector() == std::vector<double>{INFINITY, INFINITY, -INFINITY, -INFINITY});
  gemm({.a = ones, .b = inf, .c = out, .numerics = {Accumulation::kExact}});
  CHECK(std::isnan(out.to_vector()[0]));
  CHECK(out.to_vector()[1] == 2);
}

}  // namespace
}  // namespace weft::kernels
