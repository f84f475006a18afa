// Tensor-core and TMA operations against plain loops, under all schedules and both arithmetics.
// Operands are small integers, so that every sum is exact.
#include "kernels/simt/operations_test.h"

#include <bit>
#include <catch2/catch.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "core/float_formats.h"
#include "core/philox.h"
#include "kernels/simt/memory.h"
#include "numerics/tensor_core.h"

using namespace weft;
using namespace weft::simt;
using namespace weft::kernels;

namespace {

template <class F>
void in_all_schedules(F&& f) {
  for (std::string_view tensor_core : {"", "a100", "h100", "b200"}) {
    for (Completion completion : {Completion::kEager, Completion::kOnWait}) {
      for (Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
        options() = {.order = order, .completion = completion, .tensor_core = tensor_core};
        f();
      }
    }
  }
  options() = {};
}

template <class T>
struct Matrix {
  int rows, cols;
  std::vector<T> bits;
  std::vector<float> values;
  DeviceView view;

  Matrix(int n_rows, int n_cols, int seed)
      : rows(n_rows),
        cols(n_cols),
        bits(n_rows * n_cols),
        values(n_rows * n_cols),
        view(bits.data(), bits.size() * sizeof(T)) {
    Philox random(seed);
    for (size_t i = 0; i < bits.size(); ++i) {
      values[i] = static_cast<float>(static_cast<int>(random.below(7)) - 3);
    }
  }
  template <class Format>
  void encode() {
    for (size_t i = 0; i < bits.size(); ++i) {
      const Format x(values[i]);
      std::memcpy(&bits[i], &x, sizeof(T));
    }
  }
  float at(int i, int j) const { return values[i * cols + j]; }
};

/// The elements of c that are not a(i, k) b(k, j) summed over k.
template <class A, class B>
int wrong(const std::vector<float>& c, int n, int k, A&& a, B&& b) {
  int count = 0;
  for (size_t i = 0; i < c.size() / n; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum += a(static_cast<int>(i), l) * b(l, j);
      count += c[i * n + j] != sum;
    }
  }
  return count;
}

template <class Format, class T, class Run>
void check_mma(int k, Run&& run) {
  Matrix<T> a(16, k, 1), b(8, k, 2);
  a.template encode<Format>();
  b.template encode<Format>();
  in_all_schedules([&] {
    std::vector<float> c(128, -1);
    const DeviceView view(c.data(), c.size() * sizeof(float));
    run(a.bits.data(), b.bits.data(), c.data());
    CHECK(wrong(
              c, 8, k, [&](int i, int l) { return a.at(i, l); },
              [&](int l, int j) { return b.at(j, l); }) == 0);
  });
}

}  // namespace

TEST_CASE("mma.sync multiplies fragments of every type") {
  check_mma<bf16, uint16_t>(16, run_mma_bf16);
  check_mma<f16, uint16_t>(8, run_mma_f16_k8);
  check_mma<tf32, float>(8, run_mma_tf32);
  check_mma<f8e4m3, uint8_t>(32, run_mma_e4m3);
}

TEST_CASE("mma.sync gives the bits of the chosen GPU's tensor cores") {
  Matrix<uint16_t> a(16, 16, 1), b(8, 16, 2);
  Philox random(3);
  for (auto* x : {&a, &b}) {
    for (float& value : x->values) {
      value = static_cast<float>(bf16(static_cast<float>(random.normal())));
    }
    x->encode<bf16>();
  }
  std::set<std::vector<float>> all_bits;
  for (std::string_view gpu : {"a100", "ada", "h100", "b200"}) {
    CAPTURE(gpu);
    options() = {.tensor_core = gpu};
    std::vector<float> c(128, -1);
    const DeviceView view(c.data(), c.size() * sizeof(float));
    run_mma_bf16(a.bits.data(), b.bits.data(), c.data());
    const numerics::TensorCoreModel model = numerics::tensor_core_model(gpu, DType::bf16);
    int different = 0;
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        different += c[8 * i + j] != numerics::tensor_core_dot(model, {&a.values[16 * i], 16},
                                                               {&b.values[16 * j], 16}, 0);
      }
    }
    CHECK(different == 0);
    all_bits.insert(c);
  }
  options() = {};
  CHECK(all_bits.size() == 2);  // steps of 8 on an A100 and Ada, of 16 on later ones
}

TEST_CASE("ldmatrix loads and transposes") {
  Matrix<uint16_t> a(16, 16, 1), b(16, 8, 2);
  a.encode<bf16>();
  b.encode<bf16>();
  in_all_schedules([&] {
    std::vector<float> c(128, -1);
    const DeviceView view(c.data(), c.size() * sizeof(float));
    run_ldmatrix(a.bits.data(), b.bits.data(), c.data());
    CHECK(wrong(
              c, 8, 16, [&](int i, int l) { return a.at(i, l); },
              [&](int l, int j) { return b.at(l, j); }) == 0);
  });
}

TEST_CASE("wgmma multiplies swizzled tiles of either major order") {
  for (int n : {64, 128, 256}) {
    for (bool a_mn : {false, true}) {
      for (bool b_mn : {false, true}) {
        CAPTURE(n, a_mn, b_mn);
        Matrix<uint16_t> a(a_mn ? 32 : 64, a_mn ? 64 : 32, 1), b(b_mn ? 32 : n, b_mn ? n : 32, 2);
        a.encode<bf16>();
        b.encode<bf16>();
        for (Completion completion : {Completion::kEager, Completion::kOnWait}) {
          options() = {.order = Order::kRandom, .completion = completion};
          std::vector<float> c(64 * n, -1);
          const DeviceView view(c.data(), c.size() * sizeof(float));
          run_wgmma(a.bits.data(), b.bits.data(), c.data(), n, a_mn, b_mn);
          CHECK(wrong(
                    c, n, 32, [&](int i, int l) { return a_mn ? a.at(l, i) : a.at(i, l); },
                    [&](int l, int j) { return b_mn ? b.at(l, j) : b.at(j, l); }) == 0);
        }
      }
    }
  }
  options() = {};
}

TEST_CASE("wgmma takes its left operand from registers") {
  for (int n : {64, 80}) {
    Matrix<uint16_t> a(64, 32, 1), b(32, n, 2);
    a.encode<bf16>();
    b.encode<bf16>();
    in_all_schedules([&] {
      std::vector<float> c(64 * n, -1);
      const DeviceView view(c.data(), c.size() * sizeof(float));
      run_wgmma_of_registers(a.bits.data(), b.bits.data(), c.data(), n);
      CHECK(wrong(
                c, n, 32, [&](int i, int l) { return a.at(i, l); },
                [&](int l, int j) { return b.at(l, j); }) == 0);
    });
  }
}

TEST_CASE("wgmma ignores the low bits of f32 as tf32") {
  for (int n : {64, 128}) {
    Matrix<float> a(64, 16, 1), b(n, 16, 2);
    for (Matrix<float>* x : {&a, &b}) {
      x->encode<float>();
      for (float& e : x->bits) e = std::bit_cast<float>(std::bit_cast<uint32_t>(e) | 0x1fffu);
    }
    in_all_schedules([&] {
      std::vector<float> c(64 * n, -1);
      const DeviceView view(c.data(), c.size() * sizeof(float));
      run_wgmma_tf32(a.bits.data(), b.bits.data(), c.data(), n);
      CHECK(wrong(
                c, n, 16, [&](int i, int l) { return a.at(i, l); },
                [&](int l, int j) { return b.at(j, l); }) == 0);
    });
  }
}

TEST_CASE("wgmma multiplies fp8 of either format, and keeps 13 bits of the sums") {
  const auto encode = [](Matrix<uint8_t>& x, bool is_e4m3) {
    is_e4m3 ? x.encode<f8e4m3>() : x.encode<f8e5m2>();
  };
  for (int n : {64, 128}) {
    for (bool a_e4m3 : {false, true}) {
      for (bool b_e4m3 : {false, true}) {
        CAPTURE(n, a_e4m3, b_e4m3);
        Matrix<uint8_t> a(64, 64, 1), b(n, 64, 2);
        encode(a, a_e4m3);
        encode(b, b_e4m3);
        const auto run = [&] {
          std::vector<float> c(64 * n, -1);
          const DeviceView view(c.data(), c.size() * sizeof(float));
          run_wgmma_fp8(a.bits.data(), a_e4m3, b.bits.data(), b_e4m3, c.data(), n);
          return c;
        };
        for (Completion completion : {Completion::kEager, Completion::kOnWait}) {
          options() = {.order = Order::kRandom, .completion = completion};
          CHECK(wrong(
                    run(), n, 64, [&](int i, int l) { return a.at(i, l); },
                    [&](int l, int j) { return b.at(j, l); }) == 0);
        }
        // 256 + 2^-6 needs 15 bits: the small product is lost, alone it is kept.
        std::fill(a.values.begin(), a.values.end(), 0.0f);
        std::fill(b.values.begin(), b.values.end(), 0.0f);
        a.values[0] = 16;
        b.values[0] = 16;
        a.values[1] = a.values[64 + 1] = 0.125f;
        b.values[1] = 0.125f;
        encode(a, a_e4m3);
        encode(b, b_e4m3);
        const std::vector<float> c = run();
        CHECK(c[0] == 256);
        CHECK(c[n] == 0x1p-6f);
      }
    }
  }
  options() = {};
}

TEST_CASE("TMA moves boxes that reach beyond the tensor") {
  constexpr int kRows = 37;
  std::vector<float> x(kRows * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (int swizzle : {0, 1}) {
    in_all_schedules([&] {
      std::vector<float> y(x.size(), -1);
      const DeviceView x_view(x.data(), x.size() * sizeof(float)),
          y_view(y.data(), y.size() * sizeof(float));
      run_tma_copy(x.data(), y.data(), kRows, swizzle);
      CHECK(x == y);
    });
  }
}

TEST_CASE("An mbarrier counts copies that begin after others wait for them") {
  const std::vector<float> x = {1, 2, 3, 4};
  in_all_schedules([&] {
    std::vector<float> y(64);
    const DeviceView x_view(x.data(), x.size() * sizeof(float)),
        y_view(y.data(), y.size() * sizeof(float));
    run_late_arrival(x.data(), y.data());
    for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == x[i % 4]);
  });
}

TEST_CASE("A column of an array with a pitch of 32 meets one bank, with 33 all") {
  std::vector<float> y(32);
  const DeviceView view(y.data(), y.size() * sizeof(float));
  for (int pitch : {32, 33}) {
    options().traffic = true;
    run_columns(y.data(), pitch);
    bool found = false;
    for (const Traffic& traffic : take_traffic()) {
      if (!traffic.is_shared || traffic.access != Access::kRead) continue;
      found = true;
      CHECK(traffic.executions == 1);
      CHECK(traffic.transactions == (pitch == 32 ? 32 : 1));
      CHECK(traffic.ideal == 1);
      CHECK_THAT(traffic.place, Catch::Matchers::Contains("operations_test.cu"));
    }
    CHECK(found);
    options().traffic = false;
  }
}
