// A rehearsal computes nothing, and ends.
#include "kernels/rehearsal/rehearsal.h"

#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/view.h"
#include "kernels/adam/adam.h"
#include "kernels/copy/copy.h"
#include "kernels/gemm/gemm.h"
#include "kernels/op.h"

using namespace weft;

TEST_CASE("no kernel runs while a rehearsal lives, whatever was forced") {
  const Tensor x = Tensor::full({2, 3}, 2, DType::f32);
  const auto square = [&] { return ops::mul(x, x).to_vector(); };
  const std::vector<double> squares = square();
  CHECK(squares == std::vector<double>(6, 4));
  {
    const kernels::ForcedVariant forced("binary", "binary_cpu_table");
    const kernels::Rehearsal rehearsal;
    Tensor y = ops::clone(x);
    ops::copy_(y, Tensor::full({2, 3}, 7, DType::f32));
    CHECK(ops::sum(x).item() == 0);
    CHECK_THROWS_WITH(kernels::Rehearsal(), Catch::Matchers::Contains("there is one already"));
  }
  CHECK(square() == squares);
}

TEST_CASE("a rehearsal takes memory for no page that nobody writes") {
  MemoryAccount account;
  const MemoryAccount::Joined joined(account);
  const kernels::Rehearsal rehearsal;
  constexpr int64_t kSide = int64_t{1} << 14;  // 1 GiB each
  const Tensor a = Tensor::empty({kSide, kSide}).set_requires_grad(true);
  const Tensor b = ops::matmul(a, detach(a));
  backward(ops::sum(b));
  CHECK(account.total().peak >= 3 * 4 * kSide * kSide);
  CHECK(a.grad().shape() == a.shape());
}

TEST_CASE("a rehearsed kernel tells its operands, each element once") {
  std::vector<std::pair<std::string, std::vector<kernels::Operand>>> kernels;
  const kernels::Rehearsal rehearsal(
      [&](std::string_view op, const auto& operands) { kernels.emplace_back(op, operands); });
  const auto moved = [&](size_t i) {
    int64_t bytes = 0;
    for (const kernels::Operand& operand : kernels.at(i).second) bytes += operand.moved();
    return bytes;
  };
  const Tensor x = Tensor::zeros({3, 1}), y = Tensor::zeros({3, 100}, DType::bf16);
  kernels.clear();
  kernels::copy({.x = view::expand(x, {3, 100}), .y = y});
  REQUIRE(kernels.size() == 1);
  CHECK(kernels[0].first == "copy");
  CHECK(moved(0) == 3 * 4 + 300 * 2);
  CHECK(kernels[0].second[1].storage.lock() == y.storage());

  const auto list = [] { return std::vector<Tensor>{Tensor::empty({10}), Tensor::empty({7})}; };
  const Tensor a = Tensor::empty({4, 4}), c = Tensor::empty({4, 4});
  kernels.clear();
  kernels::adam({.parameters = list(), .gradients = list(), .m = list(), .v = list()});
  kernels::gemm({.a = a, .b = a, .c = c, .accumulate = true});
  kernels::gemm({.a = a, .b = a, .c = c});
  REQUIRE(kernels.size() == 3);
  CHECK(moved(0) == 28 * 17);
  CHECK(moved(1) == 4 * 64);
  CHECK(moved(2) == 3 * 64);
}
