// Tensors of more than 2^31 elements go through the ops: what their last rows become is, bit for
// bit, what these rows alone become. Elements are counted in 64 bits everywhere.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "tests/skip.h"

using namespace weft;

namespace {

constexpr int64_t kWidth = 64, kRows = (int64_t{1} << 25) + 1;  // 2^31 + 64 elements
constexpr int64_t kLast = 3;                                    // rows that are not 0

double available_gib() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    if (double kib = 0; word == "MemAvailable:" && file >> kib) return kib / (1 << 20);
  }
  return 0;
}

/// Rows of small integers and halves, with signs, none twice in a row.
Tensor last_rows() {
  std::vector<float> values(kLast * kWidth);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<int64_t>(i) * 37) % 101 - 50) / 2;
  }
  return ops::cast(Tensor::from(values, {kLast, kWidth}), DType::bf16);
}

/// bf16 [kRows, kWidth]: zeros, and the last rows.
Tensor large() {
  Tensor x = Tensor::zeros({kRows, kWidth}, DType::bf16);
  Tensor end = ops::narrow(x, 0, kRows - kLast, kLast);
  ops::copy_(end, last_rows());
  return x;
}

bool is_same(const Tensor& a, const Tensor& b) {
  const Tensor x = ops::contiguous(a), y = ops::contiguous(b);
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

/// Row by row, so that rows may be cut out before or after.
using RowOp = std::function<Tensor(const Tensor&)>;

Tensor as_images(const Tensor& x) { return ops::view(x, {x.size(0), 1, 8, 8}); }

const std::vector<std::pair<const char*, RowOp>> kRowOps = {
    {"relu", [](const Tensor& x) { return ops::relu(x); }},
    {"gelu", [](const Tensor& x) { return ops::gelu(x); }},
    {"add", [](const Tensor& x) { return x + x; }},
    {"mul by a row",
     [](const Tensor& x) { return x * ops::cast(ops::arange(0, kWidth), DType::bf16); }},
    {"gt", [](const Tensor& x) { return ops::gt(x, Tensor::scalar(1, DType::bf16)); }},
    {"where",
     [](const Tensor& x) {
       const Tensor one = Tensor::scalar(1, DType::bf16);
       return ops::where(ops::gt(x, one), x, one);
     }},
    {"masked_fill",
     [](const Tensor& x) {
       return ops::masked_fill(x, ops::gt(x, Tensor::scalar(1, DType::bf16)), 7);
     }},
    {"cast", [](const Tensor& x) { return ops::cast(x, DType::f16); }},
    {"clone", [](const Tensor& x) { return ops::clone(x); }},
    {"slice with a step", [](const Tensor& x) { return ops::clone(ops::slice(x, 1, 1, 64, 3)); }},
    {"flip", [](const Tensor& x) { return ops::flip(x, {1}); }},
    {"roll", [](const Tensor& x) { return ops::roll(x, {5}, {1}); }},
    {"pad",
     [](const Tensor& x) {
       return ops::pad(x, {1, 2});
     }},
    {"cat",
     [](const Tensor& x) {
       return ops::cat({x, ops::narrow(x, 1, 0, 1)}, 1);
     }},
    {"sum", [](const Tensor& x) { return ops::sum(x, {1}); }},
    {"max", [](const Tensor& x) { return ops::max(x, {1}); }},
    {"argmax", [](const Tensor& x) { return ops::argmax(x, 1); }},
    {"var", [](const Tensor& x) { return ops::var(x, {1}); }},
    {"logsumexp", [](const Tensor& x) { return ops::logsumexp(x, {1}); }},
    {"cumsum", [](const Tensor& x) { return ops::cumsum(x, 1); }},
    {"topk", [](const Tensor& x) { return ops::topk(x, 2, 1).first; }},
    {"softmax", [](const Tensor& x) { return ops::softmax(x, 1); }},
    {"log_softmax", [](const Tensor& x) { return ops::log_softmax(x, 1); }},
    {"layer_norm",
     [](const Tensor& x) {
       return ops::layer_norm(x, ops::ones({kWidth}), Tensor::zeros({kWidth}));
     }},
    {"rms_norm", [](const Tensor& x) { return ops::rms_norm(x); }},
    {"matmul",
     [](const Tensor& x) { return ops::matmul(x, ops::cast(ops::eye(kWidth), DType::bf16)); }},
    {"conv2d",
     [](const Tensor& x) {
       return ops::conv2d(as_images(x), ops::ones({1, 1, 4, 4}, DType::bf16), {}, {.stride = 4});
     }},
    {"max_pool2d", [](const Tensor& x) { return ops::max_pool2d(as_images(x)); }},
    {"avg_pool2d", [](const Tensor& x) { return ops::avg_pool2d(as_images(x)); }},
    {"batch_norm",
     [](const Tensor& x) {
       const Tensor one = ops::ones({1}), zero = Tensor::zeros({1});
       return ops::batch_norm(as_images(x), one, zero, zero, one, false);
     }},
    {"interpolate", [](const Tensor& x) { return ops::interpolate(as_images(x), {.size = 4}); }},
    {"attention",
     [](const Tensor& x) {
       const Tensor heads = ops::view(x, {x.size(0), 1, 4, 16});
       return ops::attention(heads, heads, heads);
     }},
};

}  // namespace

TEST_CASE("the last rows of a large tensor become what they become alone") {
  if (available_gib() < 18) WEFT_SKIP("tensors of 2^31 elements: needs 18 GiB of free memory");
  const NoGrad guard;
  const Tensor x = large(), rows = last_rows();
  for (const auto& [name, op] : kRowOps) {
    INFO(name);
    Tensor result;
    REQUIRE_NOTHROW(result = op(x));
    CHECK(result.size(0) == kRows);
    CHECK(is_same(ops::narrow(result, 0, kRows - kLast, kLast), op(rows)));
  }
}

TEST_CASE("places beyond 2^31 are found, read and written") {
  if (available_gib() < 18) WEFT_SKIP("tensors of 2^31 elements: needs 18 GiB of free memory");
  const NoGrad guard;
  Tensor x = large();
  const Tensor rows = last_rows(), flat = ops::view(x, {kRows * kWidth});
  const int64_t first = (kRows - kLast) * kWidth;
  CHECK(ops::sum(ops::cast(rows, DType::f64)).item() ==
        Approx(ops::sum(flat).item()).epsilon(1. / 128));
  CHECK(ops::max(flat).item() == ops::max(rows).item());
  CHECK(ops::argmax(flat, 0).item() ==
        static_cast<double>(first) + ops::argmax(ops::flatten(rows), 0).item());
  const Tensor places = ops::nonzero(flat);
  CHECK(places.size(0) == ops::nonzero(rows).size(0));
  CHECK(ops::select(places, 0, 0).to_vector()[0] ==
        static_cast<double>(first) + ops::select(ops::nonzero(ops::flatten(rows)), 0, 0).item());

  const Tensor last = Tensor::from(std::vector<int64_t>{kRows - 1, kRows - 3}, {2});
  const Tensor expected = ops::index_select(rows, 0, Tensor::from(std::vector<int64_t>{2, 0}, {2}));
  CHECK(is_same(ops::embedding(x, last), expected));
  CHECK(is_same(ops::index_select(x, 0, last), expected));
  CHECK(is_same(ops::index(x, {last}), expected));
  const Tensor column = ops::gather(x, 0, ops::view(last, {2, 1}));
  CHECK(is_same(column, ops::narrow(expected, 1, 0, 1)));

  Tensor end = ops::narrow(flat, 0, flat.numel() - 1, 1);
  ops::fill_(end, 77);
  CHECK(ops::select(flat, 0, flat.numel() - 1).item() == 77);
  CHECK(ops::select(flat, 0, flat.numel() - 2).item() == rows.to_vector()[kLast * kWidth - 2]);
}

TEST_CASE("dropout draws anew beyond 2^31, and backward reaches there") {
  if (available_gib() < 18) WEFT_SKIP("tensors of 2^31 elements: needs 18 GiB of free memory");
  {
    const NoGrad guard;
    const Tensor dropped = ops::dropout(ops::ones({kRows, kWidth}, DType::bf16), 0.5);
    constexpr int64_t kSome = 1 << 14;
    const Tensor begin = ops::narrow(dropped, 0, 0, kSome);
    const Tensor end = ops::narrow(dropped, 0, kRows - kSome, kSome);
    CHECK_FALSE(is_same(begin, end));
    // Of 2^20 elements, each 0 or 2, the mean is 1 within 6 standard deviations of 2^-10.
    CHECK(std::abs(ops::mean(ops::cast(end, DType::f32)).item() - 1) < 6. / 1024);
  }
  Tensor x = large();
  x.set_requires_grad(true);
  backward(ops::sum(ops::relu(x)));
  Tensor rows = last_rows();
  rows.set_requires_grad(true);
  backward(ops::sum(ops::relu(rows)));
  CHECK(is_same(ops::narrow(x.grad(), 0, kRows - kLast, kLast), rows.grad()));
}
