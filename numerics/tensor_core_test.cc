// The models against published vectors of real GPUs and special values, and the vectorised GEMM
// against the scalar definition.
#include "numerics/tensor_core.h"

#include <hwy/targets.h>
#include <algorithm>
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "core/parallel.h"
#include "core/philox.h"
#include "numerics/tensor_core_vectors.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::numerics;
using Catch::Matchers::Contains;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

/// All models that a GPU's name and a pair of formats give.
std::vector<TensorCoreModel> all_models() {
  std::vector<TensorCoreModel> models;
  for (const char* gpu : {"v100", "a100", "ada", "h100", "b200"}) {
    for (DType input : {DType::f16, DType::bf16, DType::tf32, DType::f8e4m3, DType::f8e5m2}) {
      for (DType output : {DType::f32, DType::f16}) {
        try {
          models.push_back(tensor_core_model(gpu, input, output));
        } catch (const Error&) {
        }
      }
    }
  }
  return models;
}

std::string describe(const TensorCoreModel& model) {
  return fmt::format("{} {} to {}", model.gpu, model.input, model.output);
}

float dot(const TensorCoreModel& model, std::vector<float> a, std::vector<float> b, float c = 0) {
  return tensor_core_dot(model, a, b, c);
}

/// A value of the format, of any exponent within `spread` of 1; now and then zero, subnormal, the
/// largest, or the negative of the last.
float draw(Philox& random, DType input, int spread) {
  static float last = 1;
  const uint64_t kind = random.below(40);
  const bool is_f8 = input == DType::f8e4m3 || input == DType::f8e5m2;
  const double smallest = input == DType::f16    ? 0x1p-24
                          : is_f8                ? (input == DType::f8e4m3 ? 0x1p-9 : 0x1p-16)
                          : input == DType::bf16 ? 0x1p-133
                                                 : 0x1p-136;
  const double largest = input == DType::f16      ? 65504
                         : input == DType::f8e4m3 ? 448
                         : input == DType::f8e5m2 ? 57344
                                                  : 0x1.fp127;
  if (kind == 0) return 0;
  if (kind == 1) return last = static_cast<float>(smallest * static_cast<double>(random.below(9)));
  if (kind == 2) return last = static_cast<float>(largest);
  if (kind < 10) return -last;
  double x = std::ldexp(random.normal(), static_cast<int>(random.below(2 * spread + 1)) - spread);
  x = std::clamp(x, -largest, largest);
  float value = 0;
  visit_dtype(input, [&](auto tag) {
    value = static_cast<float>(to_double(from_double<typename decltype(tag)::type>(x)));
  });
  return last = value;
}

/// Runs f with each instruction set that this machine has and the program was compiled for.
template <class F>
void with_every_instruction_set(F&& f) {
  // Highway's bits ascend from the best to the baseline.
  const std::pair<const char*, int64_t> choices[] = {
      {"best", 0}, {"AVX2", HWY_AVX2 - 1}, {"baseline", 2 * HWY_AVX2 - 1}};
  for (const auto& [name, disabled] : choices) {
    hwy::DisableTargets(disabled);
    hwy::GetChosenTarget().DeInit();
    INFO("instruction set: " << name);
    f(name);
  }
  hwy::DisableTargets(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace

TEST_CASE("The models give every published vector of real tensor cores") {
  const char* data = std::getenv("WEFT_TEST_DATA");
  const std::string archive = std::string(data ? data : "") + "/tensor_core_vectors.tar.xz";
  if (!data || !std::filesystem::exists(archive)) {
    WEFT_SKIP("tensor core vectors: no tensor_core_vectors.tar.xz in WEFT_TEST_DATA");
  }
  const char* scratch = std::getenv("TEST_TMPDIR");
  const std::string folder = std::string(scratch ? scratch : "/tmp") + "/tensor_core_vectors_test";
  std::filesystem::create_directories(folder);
  REQUIRE(std::system(fmt::format("tar xf '{}' -C '{}'", archive, folder).c_str()) == 0);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".txt") continue;
    ++files;
    const std::string name = entry.path().stem();
    const size_t split = name.find('_');
    const DType input = parse_operand_format(name.substr(split + 1));
    std::ifstream stream(entry.path());
    TensorCoreVectorReader reader(stream, name);
    TensorCoreVector vector;
    int rows = 0, outputs = 0, mismatches = 0;
    while (reader.next(vector)) {
      ++rows;
      for (DType output : {DType::f32, DType::f16}) {
        if (!vector.d(output)) continue;
        ++outputs;
        const TensorCoreModel model = tensor_core_model(name.substr(0, split), input, output);
        mismatches += bits(model_result(model, vector)) != bits(*vector.d(output));
      }
    }
    INFO(name << ": " << rows << " rows, " << outputs << " outputs");
    CHECK(rows == 2500);
    CHECK(outputs >= rows);
    CHECK(mismatches == 0);
  }
  CHECK(files == 22);
  std::filesystem::remove_all(folder);
}

TEST_CASE("A fused step truncates aligned terms, and rounds once") {
  // 2^-24 below a leading 1 is kept where F = 24, and lost in the rounding toward zero; two of them
  // make 2^-23, which an f32 holds.
  for (const char* gpu : {"v100", "a100", "h100"}) {
    const TensorCoreModel model = tensor_core_model(gpu, DType::f16);
    INFO(gpu);
    const float tiny = 0x1p-12f;
    CHECK(dot(model, {1, tiny}, {1, tiny}) == 1);
    const bool keeps_24_bits = std::string(gpu) != "v100";
    CHECK(dot(model, {1, tiny, tiny}, {1, tiny, tiny}) == (keeps_24_bits ? 1 + 0x1p-23f : 1));
    // Four times 2^-25: only the adder with F = 25 sees them.
    const float tinier = 0x1p-13f;
    const float sum = dot(model, {1, tiny, tinier, tinier}, {1, tiny, tiny, tiny});
    CHECK(sum == (std::string(gpu) == "h100" ? 1 + 0x1p-23f : 1));
    // Toward zero for either sign.
    CHECK(dot(model, {-1, -tiny}, {1, tiny}) == -1);
  }
  const TensorCoreModel half = tensor_core_model("h100", DType::f16, DType::f16);
  CHECK(dot(half, {1, 0x1p-6f}, {1, 0x1p-5f}) == 1);  // a tie, to even
  CHECK(dot(half, {1, 0x1p-6f, 0x1p-9f}, {1, 0x1p-5f, 0x1p-9f}) == 1 + 0x1p-10f);
  CHECK(dot(half, {-1, -0x1p-6f, -0x1p-10f}, {1, 0x1.8p-4f, 1}) == -1 - 0x1p-9f);  // a tie
}

TEST_CASE("Products are not normalised before they are aligned") {
  // 1.5 * 1.5 = 2.25 has exponent 0 here: 2^-24 stands 24 bits below it, and 2^-23 survives twice.
  const TensorCoreModel model = tensor_core_model("a100", DType::f16);
  CHECK(dot(model, {1.5f, 0x1p-12f, -1.5f}, {1.5f, 0x1p-12f, 1.5f}) == 0x1p-24f);
  CHECK(dot(model, {2, 0x1p-12f, -2}, {1, 0x1p-12f, 1}) == 0);
}

TEST_CASE("fp8 on Ada and Hopper keeps 13 bits, and Blackwell all of them") {
  const std::vector<float> a = {1, 0x1p-7f}, b = {1, 0x1p-7f};
  for (const char* gpu : {"ada", "h100"}) {
    INFO(gpu);
    const TensorCoreModel model = tensor_core_model(gpu, DType::f8e5m2);
    CHECK(dot(model, a, b) == 1);
    CHECK(dot(model, {1}, {1}, 0x1p-13f) == 1 + 0x1p-13f);
    CHECK(dot(model, {}, {}, 1 + 0x1p-20f) == 1 + 0x1p-20f);
    CHECK(dot(model, {0}, {0}, 1 + 0x1p-20f) == 1);  // c passes the adder, too
  }
  CHECK(dot(tensor_core_model("b200", DType::f8e5m2), a, b) == 1 + 0x1p-14f);
}

TEST_CASE("Special values: NaN, infinities, cancellation, signed zero, subnormals, overflow") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const TensorCoreModel& model : all_models()) {
    INFO(describe(model));
    const uint32_t nan_bits = model.output == DType::f16 ? 0x7fffe000u : 0x7fffffffu;
    const bool has_infinity = model.input != DType::f8e4m3;
    CHECK(bits(dot(model, {-nan}, {1})) == nan_bits);
    CHECK(bits(dot(model, {1}, {1}, -nan)) == nan_bits);
    CHECK(dot(model, {1}, {1}, -kInf) == -kInf);
    CHECK(bits(dot(model, {nan, 1}, {0, 1})) == nan_bits);
    if (has_infinity) {
      CHECK(dot(model, {kInf, 1}, {2, 1}) == kInf);
      CHECK(dot(model, {kInf, 1}, {-2, 1}) == -kInf);
      CHECK(bits(dot(model, {kInf}, {0})) == nan_bits);
      CHECK(bits(dot(model, {kInf, kInf}, {1, -1})) == nan_bits);
      CHECK(bits(dot(model, {kInf}, {1}, -kInf)) == nan_bits);
    }
    // Exact cancellation and zeros of either sign give +0.
    CHECK(bits(dot(model, {1.5f, -1.5f}, {1, 1})) == 0);
    CHECK(bits(dot(model, {-0.0f}, {1}, -0.0f)) == 0);
    CHECK(bits(dot(model, {0}, {-1}, 0)) == 0);
  }
  for (const char* gpu : {"v100", "a100", "ada", "h100", "b200"}) {
    INFO(gpu);
    const TensorCoreModel model = tensor_core_model(gpu, DType::f16);
    CHECK(dot(model, {0x1p-24f}, {0x1p-24f}) == 0x1p-48f);  // subnormal operands
    CHECK(dot(model, {0}, {0}, 0x1p-149f) == 0x1p-149f);    // subnormal c and d
    CHECK(dot(model, {65504, 65504}, {65504, 65504}, 1e38f) == 1e38f);
    const TensorCoreModel half = tensor_core_model(gpu, DType::f16, DType::f16);
    CHECK(dot(half, {0x1p-12f, 0x1p-12f}, {0x1p-12f, 0x1p-12f}) == 0x1p-23f);
    CHECK(dot(half, {0x1p-12f}, {0x1p-13f}) == 0);  // a tie, to even
    CHECK(dot(half, {0x1.8p-12f}, {0x1p-13f}) == 0x1p-24f);
    CHECK(dot(half, {65504, 8}, {1, 1}) == 65504);
    CHECK(dot(half, {65504, 16}, {1, 1}) == kInf);  // 65520 rounds to 65536
    CHECK(dot(half, {-256, -256}, {256, 1}) == -kInf);
  }
  const TensorCoreModel wide = tensor_core_model("h100", DType::bf16);
  CHECK(dot(wide, {0x1p127f}, {2}) == kInf);
  CHECK(dot(wide, {0x1p127f, -0x1p127f}, {2, 2}) == 0);  // no product overflows by itself
  CHECK(dot(wide, {0x1p127f, 0x1p127f}, {2, -1}) == 0x1p127f);
  CHECK(dot(wide, {-0x1p127f}, {0x1p127f}) == -kInf);
  CHECK(dot(wide, {0x1p-133f}, {1}) == 0x1p-133f);
  CHECK(dot(wide, {0x1p-100f}, {0x1p-50f}) == 0);
}

TEST_CASE("tf32 operands lose their low 13 bits toward zero") {
  const TensorCoreModel model = tensor_core_model("a100", DType::tf32);
  const float almost = std::bit_cast<float>(0x3f801fffu);
  CHECK(dot(model, {almost, -almost}, {1, 2}) == -1);
  CHECK(dot(model, {std::bit_cast<float>(0x7f800001u)}, {1}) != kInf);
}

TEST_CASE("Aliases share a model; unknown GPUs and formats are refused") {
  CHECK(tensor_core_model("h200", DType::bf16).gpu == "h100");
  CHECK(tensor_core_model("a2", DType::bf16).gpu == "a100");
  CHECK(tensor_core_model("l40s", DType::bf16).gpu == "ada");
  CHECK_THROWS_WITH(tensor_core_model("h1000", DType::f16),
                    "unknown GPU \"h1000\": expected one of v100 a2 a100 ada l40s h100 h200 b200; "
                    "did you mean \"h100\"?");
  CHECK_THROWS_WITH(tensor_core_model("v100", DType::bf16),
                    Contains("v100 take no bf16 operands: expected f16"));
  CHECK_THROWS_WITH(tensor_core_model("a100", DType::f8e4m3), Contains("no f8e4m3 operands"));
  CHECK_THROWS_WITH(tensor_core_model("h100", DType::f32), Contains("no f32 operands"));
  CHECK_THROWS_WITH(tensor_core_model("h100", DType::bf16, DType::f16),
                    Contains("give no f16 results for bf16 operands: expected f32"));
}

TEST_CASE("A long dot product is a chain of steps") {
  Philox random(3);
  for (const TensorCoreModel& model : all_models()) {
    if (model.split_block != 0) continue;
    INFO(describe(model));
    std::vector<float> a(101), b(101);
    for (float& x : a) x = draw(random, model.input, 3);
    for (float& x : b) x = draw(random, model.input, 3);
    float c = 0.5f;
    for (size_t i = 0; i < a.size(); i += model.step.terms) {
      const size_t n = std::min<size_t>(model.step.terms, a.size() - i);
      c = tensor_core_step(model, std::span(a).subspan(i, n), std::span(b).subspan(i, n), c);
    }
    CHECK(bits(tensor_core_dot(model, a, b, 0.5f)) == bits(c));
  }
}

TEST_CASE("The vectorised product equals the scalar one, on adversarial operands") {
  Philox random(4);
  for (const TensorCoreModel& model : all_models()) {
    for (int spread : {0, 6, 60}) {
      const bool narrow = model.input == DType::f8e4m3 || model.input == DType::f8e5m2;
      if (spread == 60 && narrow) continue;
      for (const auto [m, n, k] :
           {std::array{5, 37, 67}, std::array{1, 1, 1}, std::array{34, 16, 128}}) {
        std::vector<float> a(m * k), b(k * n), c(m * n), d(m * n, NAN);
        for (float& x : a) x = draw(random, model.input, spread);
        for (float& x : b) x = draw(random, model.input, spread);
        for (float& x : c) {
          x = random.below(3) ? static_cast<float>(std::ldexp(random.normal(), spread)) : 0.0f;
        }
        if (k > 100) {
          a[3 * k + 5] = kInf;
          b[9] = kInf;
          a[7 * k + 2] = NAN;
          b[11 * n + 4] = NAN;
          c[20 * n + 1] = -kInf;
          c[21 * n + 2] = NAN;
        }
        std::vector<float> expected(m * n);
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n; ++j) {
            const std::span row(a.data() + i * k, k), column(b.data() + j * k, k);
            expected[i * n + j] = tensor_core_dot(model, row, column, c[i * n + j]);
          }
        }
        with_every_instruction_set([&](const char*) {
          // b is stored transposed.
          tensor_core_gemm(model, {.m = m,
                                   .n = n,
                                   .k = k,
                                   .a = {a.data(), DType::f32, k, 1},
                                   .b = {b.data(), DType::f32, 1, k},
                                   .c = {c.data(), DType::f32, n, 1},
                                   .d = d.data(),
                                   .d_row_stride = n});
          int different = 0;
          for (int i = 0; i < m * n; ++i) different += bits(expected[i]) != bits(d[i]);
          INFO(describe(model) << ", " << m << " x " << n << " x " << k << ", spread " << spread);
          CHECK(different == 0);
        });
      }
    }
  }
}

TEST_CASE("The product reads strided bf16 and f16 in place, and writes where it is told") {
  Philox random(5);
  const int m = 3, n = 5, k = 33;
  std::vector<bf16> a(2 * m * k, bf16(NAN));
  std::vector<f16> b(k * n);
  std::vector<float> d(n * m, NAN), row(k), column(k);
  for (int i = 0; i < m * k; ++i) a[2 * i] = bf16(static_cast<float>(random.normal()));
  for (f16& x : b) x = f16(static_cast<float>(random.normal()));
  const TensorCoreModel model = tensor_core_model("h100", DType::bf16);
  tensor_core_gemm(model, {.m = m,
                           .n = n,
                           .k = k,
                           .a = {a.data(), DType::bf16, 2 * k, 2},
                           .b = {b.data(), DType::f16, n, 1},
                           .d = d.data(),
                           .d_row_stride = 1,
                           .d_column_stride = m});
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int x = 0; x < k; ++x) {
        row[x] = static_cast<float>(a[2 * (i * k + x)]);
        column[x] = static_cast<float>(bf16(static_cast<float>(b[x * n + j])));
      }
      CHECK(bits(d[j * m + i]) == bits(tensor_core_dot(model, row, column, 0)));
    }
  }
}

TEST_CASE("Promotion adds partial sums to an f32 accumulator, rounded to nearest") {
  Philox random(6);
  const int k = 300;
  std::vector<float> a(k), b(k);
  for (float& x : a) x = draw(random, DType::f8e4m3, 0);
  for (float& x : b) x = draw(random, DType::f8e4m3, 0);
  const TensorCoreModel model = tensor_core_model("h100", DType::f8e4m3);
  float expected = 0.1f, d = NAN;
  for (int i = 0; i < k; i += 128) {
    const size_t count = std::min(128, k - i);
    expected +=
        tensor_core_dot(model, std::span(a).subspan(i, count), std::span(b).subspan(i, count), 0);
  }
  const float c = 0.1f;
  TensorCoreGemm gemm = {.m = 1,
                         .n = 1,
                         .k = k,
                         .a = {a.data(), DType::f32, k, 1},
                         .b = {b.data(), DType::f32, 1, 1},
                         .c = {&c, DType::f32, 1, 1},
                         .d = &d,
                         .promotion_interval = 128};
  tensor_core_gemm(model, gemm);
  CHECK(bits(d) == bits(expected));
  gemm.promotion_interval = 100;
  CHECK_THROWS_WITH(tensor_core_gemm(model, gemm),
                    Contains("promotion after a multiple of 32 products, got 100"));
}

TEST_CASE("The product's bits do not depend on the number of threads; empty products") {
  Philox random(7);
  const int size = 100;
  const TensorCoreModel model = tensor_core_model("a100", DType::f16);
  std::vector<float> a(size * size), b(size * size), one(size * size), three(size * size);
  for (float& x : a) x = draw(random, DType::f16, 4);
  for (float& x : b) x = draw(random, DType::f16, 4);
  TensorCoreGemm gemm = {.m = size,
                         .n = size,
                         .k = size,
                         .a = {a.data(), DType::f32, size, 1},
                         .b = {b.data(), DType::f32, size, 1},
                         .d = one.data(),
                         .d_row_stride = size};
  const int threads = num_threads();
  set_num_threads(1);
  tensor_core_gemm(model, gemm);
  set_num_threads(3);
  gemm.d = three.data();
  tensor_core_gemm(model, gemm);
  set_num_threads(threads);
  CHECK(std::memcmp(one.data(), three.data(), one.size() * sizeof(float)) == 0);
  gemm.k = 0;
  tensor_core_gemm(model, gemm);
  CHECK(three == std::vector<float>(three.size(), 0.0f));
  gemm.a.dtype = DType::f64;
  CHECK_THROWS_WITH(tensor_core_gemm(model, gemm), Contains("narrower than f64, got f64"));
}

TEST_CASE("A product of 512 cubed takes a fraction of a second") {
  const int size = 512;
  Philox random(8);
  std::vector<float> a(size * size), b(size * size), d(size * size);
  for (float& x : a) x = static_cast<float>(f16(static_cast<float>(random.normal())));
  for (float& x : b) x = static_cast<float>(f16(static_cast<float>(random.normal())));
  for (const char* gpu : {"v100", "h100"}) {
    const TensorCoreModel model = tensor_core_model(gpu, DType::f16);
    const TensorCoreGemm gemm = {.m = size,
                                 .n = size,
                                 .k = size,
                                 .a = {a.data(), DType::f32, size, 1},
                                 .b = {b.data(), DType::f32, size, 1},
                                 .d = d.data(),
                                 .d_row_stride = size};
    with_every_instruction_set([&](const char* instruction_set) {
      double best = 1e9;
      for (int i = 0; i < 3; ++i) {
        const auto start = std::chrono::steady_clock::now();
        tensor_core_gemm(model, gemm);
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        best = std::min(best, time.count());
      }
      std::printf("%s, %s: 512^3 in %.3f s\n", gpu, instruction_set, best);
      // Generous for a shared machine; the promise is 0.1 s on two AVX-512 cores, 0.5 s elsewhere.
      CHECK(best < 5);
    });
  }
}

TEST_CASE("Vector files name the line of what is wrong") {
  const auto read = [](const std::string& text) {
    std::istringstream stream(text);
    TensorCoreVectorReader reader(stream, "vectors.txt");
    TensorCoreVector vector;
    int rows = 0;
    while (reader.next(vector)) ++rows;
    return rows;
  };
  const std::string good = "3f800000 40000000 | 3f800000 3f800000 | 00000000 | 40400000 | -\n";
  CHECK(read(good + "\n# a comment\n" + good) == 2);
  CHECK_THROWS_WITH(
      read(good + "3f800000 | 3f800000 | 00000000\n"),
      "vectors.txt, line 2: expected five fields, a | b | c | d as f32 | d as f16, got 3");
  CHECK_THROWS_WITH(
      read(good + good + "3f80000g | 3f800000 | 00000000 | - | -\n"),
      "vectors.txt, line 3: \"3f80000g\" is not the eight hexadecimal digits of a float");
  CHECK_THROWS_WITH(read("3f8 | 3f800000 | 00000000 | - | -\n"), Contains("line 1: \"3f8\""));
  CHECK_THROWS_WITH(read("3f800000 | | 00000000 | - | -\n"), Contains("got 1 and 0"));
  CHECK_THROWS_WITH(read("3f800000 | 3f800000 | | - | -\n"), Contains("one value of c, got 0"));
  CHECK_THROWS_WITH(read("3f800000 | 3f800000 | - | - | -\n"), Contains("\"-\""));

  std::istringstream stream(good);
  TensorCoreVectorReader reader(stream, "");
  TensorCoreVector vector;
  REQUIRE(reader.next(vector));
  CHECK(format_vector(vector) + "\n" == good);
  CHECK_THROWS_WITH(parse_operand_format("fp32"), Contains("fp16 bf16 tf32 e4m3 e5m2"));
}
