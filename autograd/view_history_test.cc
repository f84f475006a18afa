// Views and in-place ops on one storage, as PyTorch has them; see also view_programs_test.cc.
#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/allocator.h"

namespace weft {
namespace {

using Values = std::vector<double>;

Tensor tensor(const Values& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}
Tensor leaf(const Values& values) { return tensor(values).set_requires_grad(true); }

TEST_CASE("what is written into a view of a constant tensor reaches its base") {
  Tensor w = leaf({3}), base = tensor({0, 0});
  Tensor v = ops::narrow(base, 0, 1, 1);
  ops::copy_(v, w);
  CHECK(base.requires_grad());
  backward(ops::sum(base) * 2);
  CHECK(w.grad().to_vector() == Values{2});
}

TEST_CASE("a view follows an in-place change of its base") {
  Tensor x = leaf({3, 5}), w = leaf({7});
  Tensor h = x * 1.0;
  Tensor v = ops::narrow(h, 0, 0, 1);
  ops::mul_(h, w);
  backward(ops::sum(v));
  CHECK(x.grad().to_vector() == Values{7, 0});
  CHECK(w.grad().to_vector() == Values{3});
}

TEST_CASE("a base, and other views of it, follow an in-place change of a view") {
  Tensor x = leaf({3, 5, 6}), w = leaf({7});
  Tensor h = x * 1.0;
  const Tensor seen = ops::narrow(h, 0, 1, 2);
  Tensor changed = ops::select(h, 0, 1);
  ops::mul_(changed, ops::select(w, 0, 0));
  SECTION("through the base") {
    backward(h, tensor({1, 10, 100}));
    CHECK(x.grad().to_vector() == Values{1, 70, 100});
    CHECK(w.grad().to_vector() == Values{50});
  }
  SECTION("through another view") {
    backward(seen, tensor({10, 100}));
    CHECK(x.grad().to_vector() == Values{0, 70, 100});
    CHECK(w.grad().to_vector() == Values{50});
  }
  SECTION("through the view itself") {
    backward(changed);
    CHECK(x.grad().to_vector() == Values{0, 7, 0});
  }
  SECTION("with a gradient asked for at the base, as it is now") {
    CHECK(grad({ops::sum(seen)}, {seen}, {}, {.allow_unused = true})[0].to_vector() ==
          Values{1, 1});
    CHECK_FALSE(grad({ops::sum(h)}, {seen}, {}, {.allow_unused = true})[0].defined());
  }
}

TEST_CASE("views of views, transposed and expanded, follow their base") {
  Tensor x = leaf({1, 2, 3, 4, 5, 6}), w = leaf({2, 3});
  Tensor h = x * 1.0;
  const Tensor rows =
      ops::expand(ops::slice(ops::transpose(ops::view(h, {2, 3}), 0, 1), 0, 0, 3, 2),
                  {2, 2, 2});  // twice [[1, 4], [3, 6]]
  Tensor column = ops::select(ops::view(h, {2, 3}), 1, 2);
  ops::mul_(column, w);  // 3 and 6 become 6 and 18
  CHECK(rows.to_vector() == Values{1, 4, 6, 18, 1, 4, 6, 18});
  backward(rows, Tensor::from(Values{1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2}));
  CHECK(x.grad().to_vector() == Values{6, 0, 10 * 2, 8, 0, 12 * 3});
  CHECK(w.grad().to_vector() == Values{30, 72});
}

TEST_CASE("a tensor's product with itself in place") {
  Tensor x = leaf({3, 5});
  Tensor h = x * 1.0;
  ops::mul_(h, h);
  backward(ops::sum(h));
  CHECK(x.grad().to_vector() == Values{6, 10});
}

TEST_CASE("changes through views have gradients of gradients") {
  const Tensor x = leaf({0.3, -0.5, 0.7}), w = leaf({1.1});
  const DifferentiableFunction f = [](const Tensors& in) {
    Tensor h = ops::sin(in[0]);
    const Tensor kept = ops::narrow(h, 0, 1, 2);
    Tensor first = ops::narrow(h, 0, 0, 2);
    ops::mul_(first, in[1]);
    ops::mul_(h, h);
    ops::add_(first, in[1], 0.5);
    return ops::add(ops::sum(h), ops::sum(ops::mul(kept, kept)));
  };
  gradcheck(f, {x, w});
  gradgradcheck(f, {x, w});
}

TEST_CASE("a base that is not contiguous") {
  Tensor x = leaf({1, 2, 3, 4, 5, 6}), w = leaf({10, 20});
  // A detached transpose is a base of its own.
  Tensor base = detach(ops::transpose(ops::view(x * 1.0, {2, 3}), 0, 1));  // [3, 2]
  Tensor row = ops::select(base, 0, 1);
  ops::mul_(row, w);
  CHECK(base.to_vector() == Values{1, 4, 20, 100, 3, 6});
  backward(ops::sum(base));
  CHECK(w.grad().to_vector() == Values{2, 5});
}

TEST_CASE("a detached tensor shares values, not history") {
  Tensor x = leaf({3, 5}), w = leaf({7});
  const Tensor h = x * 1.0;
  Tensor d = detach(h);
  Tensor v = ops::narrow(d, 0, 0, 1);
  ops::mul_(v, w);
  CHECK(h.to_vector() == Values{21, 5});
  backward(ops::sum(h));
  CHECK(x.grad().to_vector() == Values{1, 1});
  CHECK_FALSE(w.grad().defined());
  backward(ops::sum(d));
  CHECK(w.grad().to_vector() == Values{3});
}

TEST_CASE("an in-place change that is not recorded leaves histories alone") {
  Tensor x = leaf({3, 5});
  Tensor h = x * 2.0;
  Tensor v = ops::narrow(h, 0, 0, 1);
  {
    const NoGrad guard;
    ops::mul_(v, Tensor::scalar(10, DType::f64));
  }
  CHECK(h.to_vector() == Values{60, 10});
  backward(ops::sum(v));
  CHECK(x.grad().to_vector() == Values{2, 0});
}

TEST_CASE("leaves, their views and views taken under NoGrad refuse what would lose gradients") {
  Tensor x = leaf({1, 2}), w = leaf({3});
  CHECK_THROWS_WITH(ops::add_(x, w), Catch::Contains("leaf that requires a gradient"));
  Tensor part = ops::narrow(x, 0, 0, 1);
  CHECK_THROWS_WITH(ops::fill_(part, 0),
                    Catch::Contains("fill_: f64 [1] on cpu is a view of a leaf "
                                    "that requires a gradient"));
  Tensor h = x * 2.0;
  const auto unrecorded = [](const Tensor& of) {
    const NoGrad guard;
    return ops::narrow(of, 0, 0, 1);
  };
  Tensor v = unrecorded(h);
  CHECK_FALSE(v.requires_grad());
  CHECK_THROWS_WITH(ops::copy_(v, w),
                    Catch::Contains("copy_: f64 [1] on cpu is a view taken while nothing was "
                                    "recorded"));
  Tensor of_v = ops::narrow(v, 0, 0, 1);
  CHECK_THROWS_WITH(ops::copy_(of_v, w), Catch::Contains("view taken while nothing was recorded"));
  CHECK((v * w).item() == 6);
  ops::mul_(h, w);
  CHECK_THROWS_WITH(v * w, Catch::Contains("a view taken while nothing was recorded, f64 [1] on "
                                           "cpu, is used after a recorded op changed"));
  CHECK((unrecorded(h) * w).item() == 18);
}

TEST_CASE("targets and operands that share elements are refused") {
  Tensor x = leaf({1, 2, 3, 4});
  Tensor h = x * 1.0;
  for (const bool is_recorded : {true, false}) {
    const GradMode mode(is_recorded);
    Tensor repeated = ops::expand(ops::narrow(h, 0, 0, 1), {3});
    CHECK_THROWS_WITH(ops::add_(repeated, tensor({1, 2, 3})),
                      Catch::Contains("add_: several elements of the target, f64 [3] on cpu with "
                                      "strides [0], share memory"));
    Tensor target = ops::narrow(h, 0, 1, 3);
    CHECK_THROWS_WITH(ops::copy_(target, ops::narrow(h, 0, 0, 3)),
                      Catch::Contains("copy_: f64 [3] on cpu and the target, f64 [3] on cpu, share "
                                      "some of their elements"));
    CHECK_THROWS_WITH(ops::mul_(h, ops::narrow(h, 0, 2, 1)), Catch::Contains("share some"));
  }
  CHECK(h.to_vector() == Values{1, 2, 3, 4});
  // Neighbours and interleaved elements are no such thing.
  Tensor even = ops::slice(h, 0, 0, 4, 2);
  ops::add_(even, ops::slice(h, 0, 1, 4, 2));
  CHECK(h.to_vector() == Values{3, 2, 7, 4});
  backward(ops::sum(h));
  CHECK(x.grad().to_vector() == Values{1, 2, 1, 2});
}

TEST_CASE("a view of a tensor whose elements share memory is not written to") {
  Tensor w = leaf({3});
  Tensor base = detach(ops::expand(tensor({1}), {2}));
  Tensor v = ops::narrow(base, 0, 0, 1);
  CHECK_THROWS_WITH(ops::copy_(v, w), Catch::Contains("several of whose elements share memory"));
}

TEST_CASE("a graph that was never run backward is freed, whatever it was changed by") {
  const Tensor x = leaf({1, 2});
  const size_t live = allocator(Device{}).stats().live;
  {
    Tensor h = x * 1.0;
    Tensor first = ops::narrow(h, 0, 0, 1);
    const Tensor second = ops::narrow(h, 0, 1, 1);
    ops::mul_(first, second);
    ops::add_(h, ops::sin(h));
    ops::mul_(h, h);
  }
  CHECK(allocator(Device{}).stats().live == live);
}

TEST_CASE("a parameter that is a view, and a tensor given other data, are views no longer") {
  Tensor flat = tensor({1, 2}), w = leaf({3});
  Tensor parameter = ops::narrow(flat, 0, 0, 1);
  parameter.set_requires_grad(true);
  backward(parameter * 5.0);
  CHECK(parameter.grad().item() == 5);
  ops::mul_(flat, w);
  CHECK_THROWS_WITH(parameter * 5.0, Catch::Contains("used after a recorded op changed"));

  Tensor v = ops::narrow(tensor({1, 2}), 0, 0, 1);
  v.set_data(tensor({7}));
  ops::mul_(v, w);
  backward(v);
  CHECK(w.grad().item() == 7);
}

}  // namespace
}  // namespace weft
