#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>

#include "autograd/backward.h"
#include "autograd/random.h"
#include "nn/init.h"
#include "nn/layers.h"

namespace weft::nn {
namespace {

/// The definition: heads one by one, scores and their softmax in full.
Tensor composed(const MultiheadAttention& layer, const Tensor& x, bool causal) {
  const int64_t tokens = x.size(1), width = x.size(2), depth = width / layer.heads;
  const Tensor qkv =
      ops::matmul(x, ops::transpose(layer.in_proj_weight, 0, 1)) + layer.in_proj_bias;
  Tensors heads;
  for (int64_t h = 0; h < layer.heads; ++h) {
    const auto part = [&](int64_t i) { return ops::narrow(qkv, 2, i * width + h * depth, depth); };
    Tensor scores = ops::matmul(part(0), ops::transpose(part(1), 1, 2)) / std::sqrt(1.0 * depth);
    if (causal) {
      std::vector<double> mask(tokens * tokens, 0);
      for (int64_t i = 0; i < tokens; ++i) {
        for (int64_t j = i + 1; j < tokens; ++j) mask[i * tokens + j] = -1e300;
      }
      scores = scores + Tensor::from(mask, {tokens, tokens});
    }
    heads.push_back(ops::matmul(ops::softmax(scores, -1), part(2)));
  }
  return ops::linear(ops::cat(heads, 2), layer.out_proj.weight, layer.out_proj.bias);
}

// f64: both sides are within some thousand roundings of 2^-53 of values of size 1.
constexpr double kTolerance = 1e-12;

void check_close(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> va = a.to_vector(), vb = b.to_vector();
  double largest = 0;
  for (size_t i = 0; i < va.size(); ++i) largest = std::max(largest, std::abs(va[i] - vb[i]));
  CHECK(largest < kTolerance);
}

TEST_CASE("MultiheadAttention equals its definition, forward and backward") {
  const bool causal = GENERATE(false, true);
  manual_seed(31);
  MultiheadAttention layer(12, 3, {.causal = causal});
  init::normal(layer.in_proj_bias);
  init::normal(layer.out_proj.bias);
  layer.to(DType::f64);
  const Tensor x = ops::randn({2, 7, 12}, DType::f64).set_requires_grad(true);
  const Tensor weights = ops::randn({2, 7, 12}, DType::f64);

  const Tensor expected = composed(layer, x, causal);
  backward(ops::sum(expected * weights));
  std::vector<Tensor> gradients = {x.grad()};
  x.set_grad({});
  for (const Tensor& p : layer.parameters()) gradients.push_back(p.grad());
  layer.zero_grad();

  const Tensor y = layer(x);
  check_close(y, expected);
  backward(ops::sum(y * weights));
  check_close(x.grad(), gradients[0]);
  for (size_t i = 0; i < 4; ++i) check_close(layer.parameters()[i].grad(), gradients[i + 1]);
}

TEST_CASE("MultiheadAttention has PyTorch's parameters and defaults") {
  manual_seed(32);
  MultiheadAttention layer(8, 2);
  const NamedTensors p = layer.named_parameters();
  REQUIRE(p.size() == 4);
  CHECK(p[0].first == "in_proj_weight");
  CHECK(p[0].second.shape() == Shape{24, 8});
  CHECK(p[1].first == "in_proj_bias");
  CHECK(p[1].second.to_vector() == std::vector<double>(24, 0));
  CHECK(p[2].first == "out_proj.weight");
  CHECK(p[3].first == "out_proj.bias");
  CHECK(p[3].second.to_vector() == std::vector<double>(8, 0));
  for (double v : p[0].second.to_vector()) CHECK(std::abs(v) <= std::sqrt(6.0 / 32));
  CHECK(MultiheadAttention(8, 2, {}, false).parameters().size() == 2);
  CHECK_THROWS_WITH(MultiheadAttention(8, 3),
                    "MultiheadAttention: width 8 is not a multiple of 3 heads");
}

TEST_CASE("streams of the generator drop different weights of attention") {
  // What tells ranks, replicas and epochs apart are high bits of the stream.
  const Tensor q = ops::full({1, 2, 16, 8}, 0);
  const Tensor v = ops::full({1, 2, 16, 8}, 1);
  std::set<std::vector<double>> seen;
  const std::vector<uint64_t> streams = {0, 1, uint64_t{1} << 32, uint64_t{3} << 40, 1ULL << 63};
  for (const uint64_t stream : streams) {
    generator() = {.seed = 1, .stream = stream};
    seen.insert(ops::attention(q, q, v, {.dropout = 0.5}).to_vector());
  }
  CHECK(seen.size() == streams.size());
}

TEST_CASE("masks that add a dtype's least number hide keys, and no query is left without a sum") {
  manual_seed(8);
  const double least = std::numeric_limits<float>::lowest();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t keys : {5, 200}) {
      Tensor q = ops::cast(ops::randn({1, 1, 2, 64}), dtype).set_requires_grad(true);
      Tensor k = ops::cast(ops::randn({1, 1, keys, 64}), dtype).set_requires_grad(true);
      Tensor v = ops::cast(ops::randn({1, 1, keys, 64}), dtype).set_requires_grad(true);
      // Query 0 sees the last key alone, query 1 none.
      std::vector<float> added(2 * keys, static_cast<float>(least));
      added[keys - 1] = 0;
      const Tensor mask = Tensor::from(added, {1, 1, 2, keys});
      const Tensor y = ops::attention(q, k, v, {.mask = mask});
      const std::vector<double> rows = ops::cast(y, DType::f32).to_vector();
      const std::vector<double> last =
          ops::cast(ops::narrow(v, 2, keys - 1, 1), DType::f32).to_vector();
      const std::vector<double> mean = ops::mean(ops::cast(v, DType::f32), {2}).to_vector();
      const double tolerance = dtype == DType::f32 ? 1e-6 : 4e-3;  // a rounding of 16 bits
      for (int64_t d = 0; d < 64; ++d) {
        CHECK(rows[d] == last[d]);
        CHECK(std::abs(rows[64 + d] - mean[d]) <= tolerance);
      }
      backward(ops::sum(ops::cast(y, DType::f32)));
      // The last key has all of query 0 and a share of query 1, the others a share.
      const std::vector<double> dv = ops::cast(v.grad(), DType::f32).to_vector();
      const double share = 1.0 / static_cast<double>(keys);
      CHECK(std::abs(dv[0] - share) <= 1e-2 * share);
      CHECK(std::abs(dv[(keys - 1) * 64] - 1 - share) <= 1e-2);
      for (const Tensor* x : {&q, &k}) {
        for (const double g : ops::cast(x->grad(), DType::f32).to_vector()) CHECK(std::isfinite(g));
      }
    }
  }
}

TEST_CASE("attention dropout acts in training only") {
  manual_seed(33);
  MultiheadAttention layer(8, 2, {.dropout = 0.5});
  const Tensor x = ops::randn({1, 5, 8});
  CHECK(layer(x).to_vector() != layer(x).to_vector());
  layer.eval();
  CHECK(layer(x).to_vector() == layer(x).to_vector());
}

}  // namespace
}  // namespace weft::nn
