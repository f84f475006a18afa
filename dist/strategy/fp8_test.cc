// fp8 in layers that are cut over ranks. (With dp, pipelines and the sharded strategies:
// tests/program/ranks_precision_test.cc.)
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/strategy.h"
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
