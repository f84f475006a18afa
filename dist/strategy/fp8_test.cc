// fp8 in layers that are cut over ranks, and passes of gradients in fp8. (With dp, pipelines and
// the sharded strategies: tests/program/ranks_precision_test.cc.)
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/fp8_gradients.h"
#include "dist/strategy/strategy.h"
#include "dist/strategy/testing/oracle.h"
#include "nn/layers.h"

using namespace weft;
using namespace weft::dist;

namespace {

struct Mlp : nn::Module {
  Mlp() : fc1(add<nn::Linear>("fc1", 20, 32)), fc2(add<nn::Linear>("fc2", 32, 12)) {}
  Tensor forward(const Tensor& x) override { return fc2(fc1.forward_gelu(x)); }
  nn::Linear &fc1, &fc2;
};

struct Pass {
  Tensor y, dx, dw1, dw2;
};

/// Forward and backward; dy does not depend on y. Largest elements lie in the last rank's parts.
Pass run(const CommunicatorPtr& world) {
  manual_seed(5);
  Mlp mlp;
  mlp.fc1.weight.data<float>()[31 * 20] = 3;
  mlp.fc2.weight.data<float>()[31] = 5;
  Tensor x = ops::randn({6, 20});
  x.set_requires_grad(true);
  const Tensor weights = ops::randn({6, 12});
  ModelStructure structure;
  structure.mlps = {{&mlp.fc1, &mlp.fc2}};
  const auto strategy = world ? make_strategy({.name = "tp"}, world) : nullptr;
  if (strategy) strategy->wrap(mlp, structure);
  Fp8Scaling scaling;
  const Fp8Scope fp8(scaling);
  Pass result;
  result.y = mlp(x);
  backward(ops::sum(result.y * weights));
  result.y = detach(result.y);
  result.dx = x.grad();
  result.dw1 = mlp.fc1.weight.grad();
  result.dw2 = mlp.fc2.weight.grad();
  return result;
}

void check_bits(const Tensor& part, const Tensor& whole, int64_t dim, Communicator& c,
                const char* what) {
  const int64_t n = whole.size(dim) / c.size();
  const Tensor expected = ops::contiguous(ops::narrow(whole, dim, c.rank() * n, n));
  const Tensor got = ops::contiguous(part);
  WEFT_CHECK(
      got.shape() == expected.shape() && std::memcmp(got.raw(), expected.raw(), got.nbytes()) == 0,
      "{} on rank {} of {}", what, c.rank(), c.size());
}

/// Sums of other terms in f32.
void check_close(const Tensor& a, const Tensor& b, const char* what) {
  const double error = ops::max(ops::abs(a - b), {0, 1}).item();
  const double largest = ops::max(ops::abs(b), {0, 1}).item();
  WEFT_CHECK(error <= 32 * 0x1p-24 * largest, "{}: {} of {}", what, error, largest);
}

}  // namespace

// Without an Autocast only codes are narrow. Those of the parts have the scales of the whole, so
// what no sum over ranks enters has the bits of one rank.
TEST_CASE("layers cut over ranks have the codes of the whole layer in fp8") {
  const Pass one = run(nullptr);
  for (int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](Communicator& c) {
      const Pass cut = run({&c, [](Communicator*) {}});
      check_bits(cut.dw1, one.dw1, 0, c, "dW of the first layer");
      check_bits(cut.dw2, one.dw2, 1, c, "dW of the second layer");
      check_close(cut.y, one.y, "y");
      check_close(cut.dx, one.dx, "dx");
    });
  }
}

TEST_CASE("gradients in fp8 know failed passes, overlapping tokens and frozen parameters") {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](Communicator& c) {
      manual_seed(5);
      Mlp mlp;
      mlp.fc1.bias.set_requires_grad(false);
      Fp8Gradients strategy({&c, [](Communicator*) {}});
      strategy.wrap(mlp, {});
      const auto loss = [&] {
        return ops::sum(strategy.forward(mlp, Tensor::full({6, 20}, 1 + c.rank())));
      };
      const auto gradients = [&] {
        std::vector<std::vector<double>> all;
        for (const Tensor& p : mlp.parameters()) {
          all.push_back(p.grad().defined() ? p.grad().to_vector() : std::vector<double>());
        }
        mlp.zero_grad();
        return all;
      };
      const auto pass = [&] {
        backward(loss());
        return gradients();
      };
      const auto first = pass();
      WEFT_CHECK(first[1].empty(), "a frozen parameter has a gradient");
      WEFT_CHECK(first[3][0] == 6 * c.size(), "the last bias has the gradient {}", first[3][0]);

      const Tensor failing = loss();
      fail_at(mlp.fc1.weight);
      expect_error([&] { backward(failing); }, "no memory");
      mlp.zero_grad();
      WEFT_CHECK(pass() == first, "rank {}: the gradients behind a failed pass", c.rank());

      if (c.size() > 1) {
        backward(loss());
        expect_error([&] { backward(loss()); }, "on top of gradients that are summed");
        mlp.zero_grad();
        WEFT_CHECK(pass() == first, "rank {}: the gradients behind a refused pass", c.rank());
      }

      std::shared_ptr<void> local = strategy.no_sync();
      local = strategy.no_sync();
      local = nullptr;
      WEFT_CHECK(pass() == first, "rank {}: the gradients behind no_sync()", c.rank());

      mlp.fc1.bias.set_requires_grad(true);
      mlp.fc2.weight.set_requires_grad(false);
      const auto others = pass();
      WEFT_CHECK(others[2].empty(), "a frozen matrix has a gradient");
      // Of fc1's bias: each rank's own depends on its x.
      const Tensor mine = Tensor::from(others[1], {static_cast<int64_t>(others[1].size())});
      const Tensor largest = ops::clone(mine);
      c.all_reduce(largest, ReduceOp::kMax).wait();
      WEFT_CHECK(others[1].size() == 32 && largest.to_vector() == others[1],
                 "rank {}: the gradient of a bias that was frozen at first", c.rank());
    });
  }
}

TEST_CASE("gradients in fp8 are summed with a rank none of whose parameters a loss reaches") {
  struct Gated : Mlp {
    Tensor forward(const Tensor& x) override { return is_open ? Mlp::forward(x) : x * 2.0; }
    bool is_open = true;
  };
  run_ranks(2,
            [](Communicator& c) {
              manual_seed(5);
              Gated gated;
              Fp8Gradients strategy({&c, [](Communicator*) {}});
              strategy.wrap(gated, {});
              gated.is_open = c.rank() == 0;
              const Tensor x = Tensor::full({6, 20}, 1).set_requires_grad(true);
              for (int pass = 0; pass < 2; ++pass) {
                backward(ops::sum(strategy.forward(gated, x)));
                const Tensor bias = gated.fc2.bias.grad();
                WEFT_CHECK(bias.defined() && bias.to_vector()[0] == 6,
                           "rank {}: the last bias has the gradient {}", c.rank(), bias);
                gated.zero_grad();
              }
            },
            {.host = {.timeout_seconds = 5}});
}
