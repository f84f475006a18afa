#include "autograd/fused.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <string>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/parallel.h"
#include "kernels/op.h"

namespace weft {
namespace {

using namespace ops;
using Catch::Matchers::Contains;
using Function = std::function<Tensor(const Tensors&)>;

/// Counts kernels by op while it lives.
class Launches : kernels::LaunchHook {
 public:
  Launches() { kernels::set_launch_hook(this); }
  ~Launches() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view, Device, const std::string&) override {
    ++counts_[std::string(op)];
  }
  void end() noexcept override {}
  std::map<std::string, int> take() { return std::exchange(counts_, {}); }

 private:
  std::map<std::string, int> counts_;
};

void check_same_bits(const Tensor& a, const Tensor& b) {
  REQUIRE(a.defined() == b.defined());
  if (!a.defined()) return;
  REQUIRE(a.shape() == b.shape());
  REQUIRE(a.dtype() == b.dtype());
  const Tensor x = contiguous(a), y = contiguous(b);
  // memcmp takes no null pointers, and an empty tensor has one.
  CHECK((x.numel() == 0 || std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0));
}

Tensors leaves(const Tensors& inputs) {
  Tensors result;
  for (const Tensor& x : inputs) {
    result.push_back(clone(x));
    if (is_floating(x.dtype())) result.back().set_requires_grad(true);
  }
  return result;
}

/// Results and gradients of f alone and of fused f.
void check_function(const Function& f, const Tensors& inputs) {
  const Tensors plain = leaves(inputs), joined = leaves(inputs);
  const Tensor y = f(plain), z = fused(f, joined);
  check_same_bits(detach(y), detach(z));
  {
    const NoGrad guard;
    check_same_bits(detach(y), fused(f, joined));
  }
  manual_seed(3);
  const Tensor dy = cast(randn(y.shape()), y.dtype());
  backward(y, dy);
  backward(z, dy);
  for (size_t i = 0; i < inputs.size(); ++i) {
    INFO("input " << i);
    check_same_bits(plain[i].grad(), joined[i].grad());
  }
}

Tensor chain(const Tensors& t) { return sigmoid(t[0] * t[1] + t[2]) * t[0] - t[1]; }

struct Named {
  const char* name;
  Function f;
};

const std::vector<Named> kFunctions = {
    {"chain", chain},
    {"one op", [](const Tensors& t) { return t[0] + t[1]; }},
    {"an input", [](const Tensors& t) { return t[1]; }},
    {"twice the same", [](const Tensors& t) { return t[0] * t[0]; }},
    {"four uses", [](const Tensors& t) { return t[0] * t[0] + exp(-t[0]) * tanh(t[0]); }},
    {"numbers", [](const Tensors& t) { return 1.0 / (2.0 + square(t[0])) - t[1] * 0.5; }},
    {"numbers that 16 bits do not hold",
     [](const Tensors& t) { return t[0] * 1e-8 + (0.1 - t[1]) / 1.7 * (3e5 / (t[2] + 70000.0)); }},
    {"activations",
     [](const Tensors& t) {
       return relu(t[0]) + gelu(t[1]) * silu(t[2]) + gelu(t[0], Gelu::kTanh) - elu(t[1], 0.7) +
              leaky_relu(t[2]) * hardswish(t[0]) + softplus(t[1]);
     }},
    {"roots and logarithms",
     [](const Tensors& t) {
       const Tensor p = square(t[0]) + 0.5;
       return sqrt(p) * log(p) + rsqrt(p) - log1p(p) / reciprocal(p);
     }},
    {"choices",
     [](const Tensors& t) {
       const Tensor larger = where(gt(t[0], t[1]), t[0], square(t[1]));
       return maximum(larger, t[2]) * minimum(t[0], t[1]) + clamp(t[2], -0.5, 0.5) + abs(t[0]);
     }},
    {"powers", [](const Tensors& t) { return pow(abs(t[0]) + 0.1, t[1]) + atan2(t[1], t[2]); }},
    {"casts",
     [](const Tensors& t) { return cast(cast(t[0], DType::f32) * 3.0, t[0].dtype()) + t[1]; }},
    {"a sum in its midst",
     [](const Tensors& t) {
       const Tensor e = exp(t[0] - max(t[0], {-1}, true));
       return e / sum(e, {-1}, true) * t[1];
     }},
    {"a product of matrices in its midst",
     [](const Tensors& t) { return matmul(t[0] * 2.0, transpose(t[1] + 1.0, 0, 1)) * 0.5; }},
    {"a sum at its end", [](const Tensors& t) { return mean(square(t[0] - t[1])); }},
    {"views",
     [](const Tensors& t) {
       const Tensor x = t[0] * t[1];
       return cat({slice(x, 1, 0, 3) * 2.0, transpose(transpose(x, 0, 1) + 1.0, 0, 1)}, 1);
     }},
    {"in place",
     [](const Tensors& t) {
       Tensor x = t[0] * t[1];
       const Tensor before = x + t[2];
       add_(x, t[2], 3);
       return x * before;
     }},
};

Tensors normal_inputs(const std::vector<Shape>& shapes, DType dtype) {
  manual_seed(1);
  Tensors inputs;
  for (const Shape& shape : shapes) inputs.push_back(cast(randn(shape), dtype));
  return inputs;
}

}  // namespace

TEST_CASE("fused functions have the bits of their ops one by one, and so have their gradients") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const Tensors inputs = normal_inputs({{23, 67}, {23, 67}, {23, 67}}, dtype);
    for (const auto& [name, f] : kFunctions) {
      INFO(name << ", " << weft::name(dtype));
      check_function(f, inputs);
    }
  }
}

TEST_CASE("rows, columns and numbers broadcast, and get their sums") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensors inputs = normal_inputs({{5, 7, 1}, {7, 33}, {}}, dtype);
    for (const char* name : {"chain", "numbers", "choices", "four uses", "powers"}) {
      INFO(name << ", " << weft::name(dtype));
      const auto f = std::ranges::find_if(
          kFunctions, [&](const Named& n) { return std::string_view(n.name) == name; });
      check_function(f->f, inputs);
    }
  }
  // What is computed of the row alone is not computed once more for each row of the matrix.
  const Tensors inputs = normal_inputs({{64, 40}, {40}}, DType::f32);
  Launches launches;
  const NoGrad guard;
  fused([](const Tensors& t) { return t[0] * exp(t[1] + 1.0) + t[0]; }, inputs);
  CHECK(launches.take() == std::map<std::string, int>{{"fill", 1}, {"fused", 2}});
}

TEST_CASE("mixed dtypes are promoted") {
  manual_seed(1);
  const Tensor x = cast(randn({999}), DType::bf16), y = randn({999});
  const Tensor mask = gt(y, full({}, 0)), counts = cast(y * 4.0, DType::i32);
  check_function([](const Tensors& t) { return where(t[2], t[0] * t[1], t[1]) + t[3]; },
                 {x, y, mask, counts});
}

TEST_CASE("one pass forward and one backward") {
  const Tensors inputs = leaves(normal_inputs({{64, 40}, {64, 40}, {64, 40}}, DType::f32));
  const Tensor dy = ones({64, 40});
  Launches launches;
  const Tensor y = fused(chain, inputs);
  CHECK(launches.take() == std::map<std::string, int>{{"fused", 1}});
  backward(y, dy);
  CHECK(launches.take() == std::map<std::string, int>{{"fused", 1}});
  for (const Tensor& x : inputs) CHECK(x.grad().storage()->is_owner());
  // Nothing is computed for an input that needs no gradient.
  const Tensor z = fused([](const Tensors& t) { return t[0] * exp(t[1]); }, {inputs[0], dy});
  launches.take();
  inputs[0].set_grad({});
  backward(z, dy);
  CHECK(launches.take() == std::map<std::string, int>{{"fused", 1}});
}

TEST_CASE("derivatives of large tensors take one pass, with the bits of small ones") {
  const std::vector<Named> functions = {
      {"atan", [](const Tensors& t) { return atan(t[0]); }},
      {"hardswish", [](const Tensors& t) { return hardswish(t[0]); }},
      {"elu", [](const Tensors& t) { return elu(t[0], 0.7); }},
      {"atan2", [](const Tensors& t) { return atan2(t[0], t[1]); }},
  };
  constexpr int64_t kParts = 8, kPart = 4099;
  manual_seed(5);
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensors x = {cast(randn({kParts, kPart}), dtype), cast(randn({kParts, kPart}), dtype)};
    const Tensor dy = cast(randn({kParts, kPart}), dtype);
    for (const Named& named : functions) {
      INFO(named.name << " of " << name(dtype));
      const Tensors whole = leaves(x);
      const Tensor y = named.f(whole);
      Launches launches;
      backward(y, dy);
      CHECK(launches.take()["fused"] > 0);
      for (int64_t i = 0; i < kParts; ++i) {
        const Tensors part = leaves({select(x[0], 0, i), select(x[1], 0, i)});
        backward(named.f(part), select(dy, 0, i));
        check_same_bits(select(whole[0].grad(), 0, i), part[0].grad());
        if (part[1].grad().defined()) {
          check_same_bits(select(whole[1].grad(), 0, i), part[1].grad());
        }
      }
    }
  }
}

TEST_CASE("programs longer and wider than a kernel takes are cut") {
  const Function longer = [](const Tensors& t) {
    Tensor x = t[0];
    for (int i = 0; i < 300; ++i) x = tanh(x * t[i % 3]) + t[(i + 1) % 3];
    return x;
  };
  check_function(longer, normal_inputs({{301}, {301}, {301}}, DType::f32));
  const Function wider = [](const Tensors& t) {
    Tensor x = t[0];
    for (size_t i = 1; i < t.size(); ++i) x = x * 0.5 + t[i] * t[i - 1];
    return x;
  };
  check_function(wider, normal_inputs(std::vector<Shape>(70, Shape{17}), DType::f32));
  check_function(chain, normal_inputs({{0, 3}, {0, 3}, {3}}, DType::f32));
}

TEST_CASE("first and second derivatives of fused functions") {
  manual_seed(5);
  Tensors inputs;
  for (const Shape& shape : {Shape{3, 4}, Shape{4}, Shape{3, 1}}) {
    inputs.push_back(cast(randn(shape), DType::f64).set_requires_grad(true));
  }
  const Function f = [](const Tensors& t) { return fused(chain, t); };
  gradcheck(f, inputs);
  gradgradcheck(f, inputs);
  // One input made of another: each is a variable of its own.
  const Function dependent = [](const Tensors& t) {
    return fused(chain, {t[0], tanh(t[0]), t[1]});
  };
  gradcheck(dependent, inputs);
  gradgradcheck(dependent, inputs);
  gradcheck(
      [](const Tensors& t) { return fused([](const Tensors& u) { return fused(chain, u); }, t); },
      inputs);
}

TEST_CASE("what a fused function leaves outside is computed") {
  const Tensors inputs = normal_inputs({{5}, {5}, {5}}, DType::f32);
  Tensor kept;
  const Tensor y = fused(
      [&](const Tensors& t) {
        kept = t[0] * t[1];
        return kept + t[2];
      },
      inputs);
  check_same_bits(kept, inputs[0] * inputs[1]);
  check_same_bits(y, kept + inputs[2]);

  kept = {};
  const auto failing = [&](const Tensors& t) -> Tensor {
    kept = t[0] * t[1];
    throw std::runtime_error("enough");
  };
  CHECK_THROWS_WITH(fused(failing, inputs), "enough");
  CHECK_THROWS_WITH(kept.to_vector(), Contains("of a function that failed"));
  check_same_bits(inputs[0] + inputs[1], add(inputs[0], inputs[1]));
}

TEST_CASE("a gradient that would be lost is an error") {
  const Tensors inputs = leaves(normal_inputs({{2, 3}, {2, 3}}, DType::f32));
  const auto captures = [w = inputs[1]](const Tensors& t) { return t[0] * w; };
  CHECK_THROWS_WITH(fused(captures, {inputs[0]}),
                    "fused: mul uses f32 [2, 3], which requires a gradient and is not among the "
                    "inputs");
  // By other than elementwise ops, too.
  Tensor matrix = Tensor::full({3, 3}, 1).set_requires_grad(true);
  const auto multiplies = [&](const Tensors& t) { return relu(matmul(t[0], matrix)); };
  CHECK_THROWS_WITH(fused(multiplies, {inputs[0]}),
                    Contains("fused: matmul uses f32 [3, 3], which requires a gradient"));
  CHECK_THROWS_WITH(fused([&](const Tensors&) { return matrix; }, {inputs[0]}),
                    Contains("fused: the function uses f32 [3, 3]"));
  CHECK_NOTHROW(backward(
      sum(fused([](const Tensors& t) { return relu(matmul(t[0], t[1])); }, {inputs[0], matrix}))));
  const NoGrad guard;
  CHECK_NOTHROW(fused(captures, {inputs[0]}));
  CHECK_NOTHROW(fused(multiplies, {inputs[0]}));
}

TEST_CASE("autocast and random numbers are the same in the second run") {
  const Tensors inputs = leaves(normal_inputs({{8, 8}, {8, 8}}, DType::f32));
  const auto run = [&](bool is_fused) {
    manual_seed(9);
    const Function f = [](const Tensors& t) {
      return dropout(matmul(t[0], t[1]), 0.5) * t[0] + exp(t[1]);
    };
    Tensor y;
    {
      const Autocast mode(DType::bf16);
      y = is_fused ? fused(f, inputs) : f(inputs);
    }
    randn({3});
    backward(y, ones(y.shape(), y.dtype()));
    Tensors results = {detach(y)};
    for (const Tensor& x : inputs) {
      results.push_back(x.grad());
      x.set_grad({});
    }
    return results;
  };
  const Tensors plain = run(false), joined = run(true);
  for (size_t i = 0; i < plain.size(); ++i) check_same_bits(plain[i], joined[i]);
}

}  // namespace weft
