#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/random.h"

namespace weft {
namespace {

using Values = std::vector<double>;

Tensor leaf(const std::vector<float>& values) {
  Tensor x = Tensor::from(values, {static_cast<int64_t>(values.size())});
  x.set_requires_grad(true);
  return x;
}

TEST_CASE("backward accumulates into leaves, and only there") {
  Tensor x = leaf({1, 2, 3});
  const Tensor y = x * x;
  backward(ops::sum(y));
  CHECK(x.grad().to_vector() == Values{2, 4, 6});
  CHECK_FALSE(y.grad().defined());
  backward(ops::sum(x * 3.0));
  CHECK(x.grad().to_vector() == Values{5, 7, 9});
}

TEST_CASE("leaves that receive one gradient do not share it") {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  backward(a + b, Tensor::from(std::vector<float>{1, 1}, {2}));
  {
    NoGrad guard;
    Tensor g = a.grad();
    ops::mul_(g, Tensor::scalar(5));
  }
  CHECK(b.grad().to_vector() == Values{1, 1});
}

TEST_CASE("nothing is recorded under NoGrad or for inputs that need no gradient") {
  Tensor x = leaf({1});
  {
    NoGrad guard;
    CHECK_FALSE((x * x).requires_grad());
    GradMode on(true);
    CHECK((x * x).requires_grad());
  }
  CHECK_FALSE((detach(x) * 2.0).requires_grad());
  CHECK_THROWS_WITH(backward(detach(x)), Catch::Contains("does not require a gradient"));
}

TEST_CASE("results of operators take the memory of temporaries, and of nothing else") {
  const Tensor a = Tensor::full({3}, 2), b = Tensor::full({3}, 5);
  Tensor t = a * b;
  const void* const memory = t.raw();
  t = 1 - std::move(t) / 4 + b;
  CHECK(t.raw() == memory);
  CHECK(t.to_vector() == Values(3, 3.5));
  CHECK((b - std::move(t)).raw() == memory);
  CHECK((a + b).raw() != a.raw());
  CHECK(a.to_vector() == Values(3, 2));

  SECTION("not where somebody else looks on") {
    const Tensor whole = a * b;
    const Tensor y = ops::narrow(whole, 0, 0, 2) + 1;
    CHECK(whole.to_vector() == Values(3, 10));
    CHECK(y.to_vector() == Values(2, 11));
  }
  SECTION("not where the memory is someone else's, a mapped file's say") {
    float file[3] = {1, 2, 3};
    const auto mapped = [&] {
      return Tensor::view_of(std::make_shared<Storage>(file, sizeof(file), Device{}, [] {}), {3},
                             {1}, 0, DType::f32);
    };
    CHECK((mapped() + a).to_vector() == Values{3, 4, 5});
    CHECK(file[0] == 1);
  }
  SECTION("not where the result has another shape or dtype") {
    CHECK((Tensor::full({1}, 2) + a).to_vector() == Values(3, 4));
    const Tensor wide = Tensor::full({3}, 2, DType::bf16) + a;
    CHECK(wide.dtype() == DType::f32);
    const Tensor quotient = Tensor::full({3}, 3, DType::i64) / Tensor::full({3}, 2, DType::i64);
    CHECK(quotient.to_vector() == Values(3, 1.5));
  }
  SECTION("not while gradients are recorded, nor of what has a history") {
    Tensor x = Tensor::full({3}, 3);
    x.set_requires_grad(true);
    const Tensor y = (x * x + 1) * (x - 1);
    backward(ops::sum(y));
    CHECK(x.grad().to_vector() == Values(3, 22));
    const NoGrad guard;
    Tensor leaf = Tensor::full({3}, 3);
    leaf.set_requires_grad(true);
    CHECK_FALSE((std::move(leaf) + 1).requires_grad());
  }
}

TEST_CASE("a second backward needs retain_graph") {
  Tensor x = leaf({2});
  Tensor y = ops::exp(x);
  backward(y, {}, {.retain_graph = true});
  backward(y);
  CHECK(x.grad().item() == Approx(2 * std::exp(2.0)));
  CHECK_THROWS_WITH(backward(y), Catch::Contains("exp: backward was run through it already") &&
                                     Catch::Contains("retain_graph"));
}

TEST_CASE("an in-place change of a saved tensor is named") {
  Tensor x = leaf({1, 2});
  Tensor h = x * 2.0;
  const Tensor y = ops::square(h);
  {
    NoGrad guard;
    ops::add_(h, Tensor::scalar(1));
  }
  CHECK_THROWS_WITH(backward(ops::sum(y)),
                    Catch::Contains("square: a tensor needed for its gradient, f32 [2]") &&
                        Catch::Contains("version 1, was saved at version 0"));
}

TEST_CASE("hooks may register hooks, for the next pass") {
  Tensor x = Tensor::full({3}, 1).set_requires_grad(true);
  int leaf_hooks = 0, node_hooks = 0, ready_hooks = 0;
  const Tensor y = x * 2.0;
  for (int i = 0; i < 32; ++i) {
    register_hook(x, [&, i](const Tensor&) {
      ++leaf_hooks;
      if (i == 0) {
        for (int k = 0; k < 64; ++k) register_hook(x, [](const Tensor&) { return Tensor(); });
      }
      return Tensor();
    });
    register_hook(y, [&](const Tensor&) {
      ++node_hooks;
      register_hook(y, [](const Tensor&) { return Tensor(); });
      return Tensor();
    });
    register_ready_hook(x, [&] {
      ++ready_hooks;
      register_ready_hook(x, [] {});
    });
  }
  backward(ops::sum(y));
  CHECK(leaf_hooks == 32);
  CHECK(node_hooks == 32);
  CHECK(ready_hooks == 32);
}

TEST_CASE("what a hook returns has the gradient's shape and dtype") {
  for (const Tensor& returned : {Tensor::full({1}, 1), Tensor::full({3}, 1, DType::f64)}) {
    Tensor x = Tensor::full({3}, 1).set_requires_grad(true);
    const Tensor y = x * 2.0;
    register_hook(y, [&](const Tensor&) { return returned; });
    CHECK_THROWS_WITH(backward(ops::sum(y)),
                      Catch::Contains("register_hook: a hook of mul returned "));
    Tensor z = Tensor::full({3}, 1).set_requires_grad(true);
    register_hook(z, [&](const Tensor&) { return returned; });
    CHECK_THROWS_WITH(backward(ops::sum(z * 2.0)), Catch::Contains("a hook of a leaf returned "));
  }
}

TEST_CASE("a gradient function that runs backward through itself is an error") {
  Tensor x = Tensor::full({3}, 1).set_requires_grad(true);
  Tensor sum;
  const Tensor y =
      record("mine", {x}, Tensor::full({3}, 1), {x}, [&](const Backward& b) -> Tensors {
        backward(sum);
        return {b.dy()};
      });
  sum = ops::sum(y);
  CHECK_THROWS_WITH(backward(sum), "mine: its gradient function ran backward through itself");
}

TEST_CASE("hooks see and replace gradients; ready hooks run once, when the gradient is complete") {
  Tensor x = leaf({1, 2});
  int ready = 0;
  Values seen;
  register_ready_hook(x, [&, weak = x.autograd()] {
    ++ready;
    seen = weak->grad.to_vector();
  });
  Tensor h = x * 2.0;
  register_hook(h, [](const Tensor& g) { return g * 10.0; });
  backward(ops::sum(h) + ops::sum(x * x));
  CHECK(ready == 1);
  CHECK(seen == Values{22, 24});
}

TEST_CASE("retain_grad keeps an intermediate gradient") {
  Tensor x = leaf({3});
  Tensor h = x * x;
  retain_grad(h);
  backward(h * 5.0);
  CHECK(h.grad().item() == 5);
}

TEST_CASE("grad() leaves .grad() alone and names unused inputs") {
  Tensor x = leaf({3}), z = leaf({1});
  const Tensor h = x * x;
  const Tensors g = grad({h * 2.0}, {x, h});
  CHECK(g[0].item() == 12);
  CHECK(g[1].item() == 2);
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH(grad({x * 1.0}, {z}), Catch::Contains("played no part"));
  CHECK_FALSE(grad({x * 1.0}, {z}, {}, {.allow_unused = true})[0].defined());
}

TEST_CASE("third derivatives") {
  Tensor x = leaf({2});
  Tensor d = x * x * x * x;
  for (int order = 0; order < 3; ++order) d = grad({d}, {x}, {}, {.create_graph = true})[0];
  CHECK(d.item() == 48);
}

TEST_CASE("a user-defined function is an op like ours") {
  const auto cube = [](const Tensor& x) {
    return record(
        "cube", {x}, x.alias() * x.alias() * x.alias(), {x},
        [](const Backward& b) -> Tensors { return {b.dy() * b.saved(0) * b.saved(0) * 3.0}; });
  };
  Tensor x = leaf({2});
  const Tensor g = grad({cube(x)}, {x}, {}, {.create_graph = true})[0];
  CHECK(g.item() == 12);
  CHECK(grad({g}, {x})[0].item() == 12);  // 6 x
}

TEST_CASE("what a gradient function returns has its inputs' shapes") {
  using Catch::Matchers::Contains;
  Tensor w = ops::full({4, 3}, 2).set_requires_grad(true);
  const auto doubled = [](const Tensor& x, const Shape& returned) {
    return record("doubled", {x}, detach(x) * 2.0, {},
                  [=](const Backward&) -> Tensors { return {ops::full(returned, 2)}; });
  };
  // Of an input in the middle, too, where one number would spread over all the others.
  for (const Shape& wrong : {Shape{}, Shape{1}, Shape{3, 4}, Shape{4, 1}, Shape{12}}) {
    CHECK_THROWS_WITH(backward(ops::sum(doubled(w, wrong))),
                      Contains("doubled: its gradient function returned") &&
                          Contains("for input 0, expected the shape [4, 3]"));
    CHECK_THROWS_WITH(backward(ops::sum(doubled(w * 3.0, wrong))), Contains("doubled: its"));
  }
  CHECK_FALSE(w.grad().defined());
  backward(ops::sum(doubled(w * 3.0, {4, 3})));
  CHECK(w.grad().to_vector() == std::vector<double>(12, 6));
}

TEST_CASE("a gradient of another dtype is cast to its input's") {
  Tensor w = leaf({1, 2});
  const Tensor wide = record("widened", {w}, detach(w) * 2.0, {}, [](const Backward&) -> Tensors {
    return {ops::full({2}, 2, DType::f64)};
  });
  backward(ops::sum(wide));
  CHECK(w.grad().dtype() == DType::f32);
  backward(w * 1.0, ops::full({2}, 3, DType::f64));
  CHECK(w.grad().dtype() == DType::f32);
  CHECK(w.grad().to_vector() == Values{5, 5});
}

TEST_CASE("with create_graph, too, leaves and retained gradients are nobody else's") {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor s = a + b;
  backward(ops::sum(s * s), {}, {.create_graph = true});
  {
    const NoGrad guard;
    Tensor g = a.grad();
    ops::mul_(g, Tensor::scalar(0));
  }
  CHECK(b.grad().to_vector() == Values{8, 12});
  for (Tensor& x : std::vector{a, b}) x.set_grad({});  // which come from a and b, and keep them
  Tensor x = leaf({1}), y = x * 2.0, z = x * 3.0;
  retain_grad(y);
  retain_grad(z);
  const Tensor sum = y + z;
  backward(sum, {}, {.retain_graph = true});
  backward(sum);
  CHECK(y.grad().item() == 2);
  const NoGrad guard;
  Tensor of_y = y.grad();
  ops::zero_(of_y);
  CHECK(z.grad().item() == 2);
}

TEST_CASE("a pass records where a graph is asked for, whatever its caller does") {
  Tensor x = leaf({2});
  const Tensor h = ops::square(x), y = h * h;
  Tensor g;
  {
    const NoGrad guard;
    g = grad({y}, {x}, {}, {.create_graph = true})[0];
  }
  CHECK(grad({g}, {x})[0].item() == 48);  // 12 x^2
  Tensor w = leaf({3});
  register_hook(x, [&](const Tensor& gradient) { return gradient * w; });
  for (int i = 0; i < 2; ++i) backward(x * 2.0);
  CHECK(x.grad().item() == 12);
  CHECK_FALSE(x.grad().requires_grad());
}

TEST_CASE("what no gradient needs may be changed in place") {
  Tensor x = leaf({1, 2});
  Tensor h = x * 1.0;
  const Tensor y = ops::div(h, Tensor::full({2}, 4)), z = ops::matmul(h, Tensor::full({2, 1}, 3));
  ops::add_(h, Tensor::full({2}, 1));
  backward(ops::sum(y) + ops::sum(z));
  CHECK(x.grad().to_vector() == Values{3.25, 3.25});
}

TEST_CASE(
    "layers whose weights are frozen do not ask for their inputs, nor trained ones for weights") {
  const Tensor x = leaf({1, 2}), bias = leaf({0, 0, 0}), trained = leaf({1, 1, 1, 1, 1, 1});
  const Tensor image = leaf({1, 1, 1, 1}), frozen = Tensor::full({3, 2}, 2);
  const Tensor hidden = Tensor::full({1, 3}, 1);
  const Tensor filter = Tensor::full({1, 1, 1, 1}, 2), data = Tensor::full({1, 2}, 5);
  Tensor h = x * 1.0, pixels = ops::view(image, {1, 1, 2, 2}) * 1.0;
  Tensor w = ops::view(trained, {3, 2}) * 1.0;
  const Tensor sums = ops::sum(ops::linear(h, frozen, bias)) +
                      ops::sum(ops::conv2d(pixels, filter)) + ops::sum(ops::linear(data, w)) +
                      ops::sum(ops::mlp(h, frozen, {}, hidden, {}));
  ops::add_(h, Tensor::full({2}, 1)), ops::add_(pixels, Tensor::full({1}, 1));
  ops::add_(w, Tensor::full({2}, 1));
  backward(sums);
  CHECK(x.grad().to_vector()[0] == Approx(12));  // gelu'(h w) is 1 there, nearly
  CHECK(bias.grad().to_vector() == Values{1, 1, 1});
  CHECK(image.grad().to_vector() == Values{2, 2, 2, 2});
  CHECK(trained.grad().to_vector() == Values{5, 5, 5, 5, 5, 5});
}

TEST_CASE("what a checkpoint hands through is not changed in place unseen") {
  Tensor w = leaf({1, 2});
  const Tensor h = w * 1.0;
  Tensor y = checkpoint([](const Tensors& in) { return ops::view(in[0], {2, 1}); }, {h});
  CHECK_THROWS_WITH(ops::mul_(y, Tensor::scalar(3)), Catch::Contains("would lose its base's"));
  Tensor same = checkpoint([](const Tensors& in) { return in[0]; }, {w});
  CHECK_THROWS_WITH(ops::mul_(same, Tensor::scalar(3)), Catch::Contains("would lose its base's"));
  CHECK(w.to_vector() == Values{1, 2});
  backward(ops::sum(y) + ops::sum(same));
  CHECK(w.grad().to_vector() == Values{2, 2});
  Tensor fresh = checkpoint([](const Tensors& in) { return in[0] * 2.0; }, {h});
  ops::mul_(fresh, Tensor::scalar(3));
}

TEST_CASE("anomaly mode names the forward op that made the first NaN") {
  AnomalyMode anomaly;
  Tensor x = leaf({-1});
  CHECK_THROWS_WITH(ops::exp(ops::log(x)), Catch::Contains("anomaly: log made a NaN"));
  Tensor zero = leaf({0});
  const Tensor y = ops::sqrt(zero) * 0.0;
  CHECK_THROWS_WITH(backward(y), Catch::Contains("anomaly: the gradient of sqrt"));
}

TEST_CASE("checkpointing gives the same bits and replays the random numbers") {
  const auto block = [](const Tensors& in) { return ops::dropout(ops::gelu(in[0] * in[1]), 0.5); };
  const auto run = [&](bool with_checkpoint) {
    manual_seed(11);
    Tensor x = leaf({1, 2, 3, 4, 5, 6, 7, 8}), w = leaf({8, 7, 6, 5, 4, 3, 2, 1});
    Tensor h = with_checkpoint ? checkpoint(block, {x, w}) : block({x, w});
    backward(ops::sum(ops::dropout(h, 0.25)));
    return std::make_tuple(x.grad().to_vector(), w.grad().to_vector(), generator().offset);
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("checkpointing reaches parameters that are not among its inputs") {
  Tensor w = leaf({2});
  const Tensor x = Tensor::from(std::vector<float>{3}, {1});
  backward(checkpoint([&](const Tensors& in) { return in[0] * w; }, {x}));
  CHECK(w.grad().item() == 3);
}

TEST_CASE("grad() through a checkpoint gives what is asked for and changes no .grad") {
  Tensor x = leaf({3}), w = leaf({2}), v = leaf({5});
  const auto product = [&](const Tensors& in) { return in[0] * w * v; };
  const auto nested = [&](const Tensors& in) { return checkpoint(product, in) * w; };
  for (const bool is_nested : {false, true}) {
    const auto y = [&] { return is_nested ? checkpoint(nested, {x}) : nested({x}); };  // x w^2 v
    const Tensors both = grad({y()}, {x, w});
    CHECK(both[0].item() == 20);
    CHECK(both[1].item() == 60);
    CHECK(grad({y()}, {v})[0].item() == 12);
    CHECK(grad({y() * v}, {w})[0].item() == 300);
    for (const Tensor& parameter : {x, w, v}) CHECK_FALSE(parameter.grad().defined());
  }
}

TEST_CASE("a tape of a million ops runs backward and is freed without recursion") {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 1000000; ++i) y = y + x;
  backward(y);
  CHECK(x.grad().item() == 1000001);
}

TEST_CASE(
    "tapes linked through what gradient functions and saved tensors hold are freed likewise") {
  Tensor x = leaf({1});
  Tensor held = x * 1.0;
  for (int i = 0; i < 1000000; ++i) {
    const bool through_saved = i % 2 == 0;
    Tensor y = record("link", {x}, x.alias(), {through_saved ? held : Tensor()},
                      [held = through_saved ? Tensor() : held](const Backward& b) -> Tensors {
                        return {b.dy()};
                      });
    held = y;
  }
  backward(held);
  CHECK(x.grad().item() == 1);
}

TEST_CASE("autocast narrows products and keeps weights' gradients in f32") {
  Tensor x = Tensor::full({4, 8}, 1.0 / 3), w = Tensor::full({2, 8}, 1.0 / 3),
         b = Tensor::zeros({2});
  w.set_requires_grad(true);
  b.set_requires_grad(true);
  {
    Autocast mode(DType::bf16);
    const Tensor y = ops::linear(x, w, b);
    CHECK(y.dtype() == DType::bf16);
    CHECK(ops::softmax(y, 1).dtype() == DType::f32);
    {
      Autocast off(DType::f32);
      CHECK(ops::linear(x, w, b).dtype() == DType::f32);
    }
    backward(ops::sum(y));
  }
  CHECK(autocast_dtype() == DType::f32);
  CHECK(w.grad().dtype() == DType::f32);
  // 4 rows of the bf16 nearest to 1/3.
  CHECK(w.grad().to_vector()[0] == 4 * static_cast<double>(static_cast<float>(bf16(1.0f / 3))));
  CHECK(b.grad().to_vector() == Values{4, 4});
}

TEST_CASE("the same backward twice gives the same bits") {
  const auto run = [] {
    manual_seed(1);
    Tensor x = ops::randn({64, 32}), w = ops::randn({32, 32});
    w.set_requires_grad(true);
    Tensor h = x;
    for (int i = 0; i < 4; ++i) h = ops::softmax(ops::linear(h, w), 1) + h;
    backward(ops::mean(h * h));
    return w.grad().to_vector();
  };
  CHECK(run() == run());
}

TEST_CASE("after_backward runs once the outermost pass is over") {
  std::vector<std::string> events;
  Tensor w = Tensor::scalar(3).set_requires_grad(true);
  Tensor v = Tensor::scalar(2).set_requires_grad(true);
  register_ready_hook(w, [&] {
    events.push_back("w");
    after_backward([&] { events.push_back("after"); });
  });
  register_ready_hook(v, [&] { events.push_back(in_backward() ? "v" : "v outside"); });
  // w's gradient is made in a pass inside the pass; v's comes later.
  const Tensor y = checkpoint([&](const Tensors& x) { return x[0] * w; }, {v * 5.0});
  CHECK_FALSE(in_backward());
  backward(y);
  CHECK_FALSE(in_backward());
  CHECK(events == std::vector<std::string>{"w", "v", "after"});
  CHECK_THROWS_WITH(after_backward([] {}), Catch::Matchers::Contains("no backward is running"));
}

}  // namespace
}  // namespace weft
