#include "nn/module.h"

#include <pthread.h>

#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <thread>

#include "autograd/backward.h"
#include "autograd/checkpoint.h"
#include "autograd/random.h"
#include "nn/layers.h"

namespace weft::nn {
namespace {

class Mlp : public Module {
 public:
  Mlp(int64_t width, int64_t hidden)
      : fc1(add<Linear>("fc1", width, hidden)), fc2(add<Linear>("fc2", hidden, width)) {}
  Tensor forward(const Tensor& x) override { return fc2(ops::gelu(fc1(x))); }
  Linear &fc1, &fc2;
};

class Net : public Module {
 public:
  Net()
      : body(add<Mlp>("body", 2, 3)),
        norm(add<BatchNorm2d>("norm", 4)),
        scale(parameter("scale", Tensor::zeros({1}))),
        table(buffer("table", Tensor::from(std::vector<int64_t>{1, 2}, {2}))) {}
  Mlp& body;
  BatchNorm2d& norm;
  Tensor scale, table;
};

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : tensors) result.push_back(name);
  return result;
}

using Names = std::vector<std::string>;

TEST_CASE("names are dotted paths in order of registration, own tensors first") {
  Net net;
  CHECK(names(net.named_parameters()) == Names{"scale", "body.fc1.weight", "body.fc1.bias",
                                               "body.fc2.weight", "body.fc2.bias", "norm.weight",
                                               "norm.bias"});
  CHECK(names(net.named_buffers()) ==
        Names{"table", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"});
  CHECK(names(net.state_dict()) == Names{"scale", "table", "body.fc1.weight", "body.fc1.bias",
                                         "body.fc2.weight", "body.fc2.bias", "norm.weight",
                                         "norm.bias", "norm.running_mean", "norm.running_var",
                                         "norm.num_batches_tracked"});
  Names paths;
  for (const auto& [name, module] : net.named_modules()) paths.push_back(name);
  CHECK(paths == Names{"", "body", "body.fc1", "body.fc2", "norm"});
  CHECK(net.num_parameters() == 1 + (6 + 3) + (6 + 2) + 8);
  CHECK(net.parameters()[1].is_same(net.body.fc1.weight));
}

class Tied : public Module {
 public:
  Tied() : first(add<Linear>("first", 2, 2, false)) { parameter("again", first.weight); }
  Linear& first;
};

TEST_CASE("a tensor under two names is one parameter with two entries in the state") {
  Tied tied;
  CHECK(names(tied.named_parameters()) == Names{"again"});
  CHECK(tied.state_dict().size() == 2);
}

class Clash : public Module {
 public:
  explicit Clash(const std::string& name) {
    add<Identity>("child");
    parameter("weight", Tensor::zeros({1}));
    parameter("bias", Tensor());  // not registered: the name stays free
    buffer(name, Tensor::zeros({1}));
  }
};

TEST_CASE("names are checked when they are registered") {
  CHECK_NOTHROW(Clash("bias"));
  CHECK_THROWS_WITH(Clash("child"), "Module: \"child\" is registered already");
  CHECK_THROWS_WITH(Clash("weight"), "Module: \"weight\" is registered already");
  CHECK_THROWS_WITH(Clash("a.b"), "Module: a name must not be empty or contain a dot, got \"a.b\"");
  CHECK_THROWS_WITH(Module()(Tensor::zeros({1})), Catch::Contains("no forward"));
}

TEST_CASE("a state is loaded whole, into the handles that others hold") {
  manual_seed(1);
  Net net, other;
  const Tensor held = net.body.fc1.weight;
  const uint64_t version = held.version();
  NamedTensors state;
  for (const auto& [name, tensor] : other.state_dict()) {
    state.emplace_back(name, is_floating(tensor.dtype()) ? ops::cast(tensor, DType::f64) : tensor);
  }
  net.load_state_dict(state);
  CHECK(held.dtype() == DType::f32);
  CHECK(held.to_vector() == other.body.fc1.weight.to_vector());
  CHECK(held.version() > version);
  CHECK(held.requires_grad());
  CHECK(net.table.to_vector() == std::vector<double>{1, 2});
}

TEST_CASE("a state that does not fit is refused in one message and changes nothing") {
  manual_seed(2);
  Net net, other;
  NamedTensors state = other.state_dict();
  state.erase(state.begin());                    // scale
  state[1].second = Tensor::zeros({2, 3});       // body.fc1.weight
  state[state.size() - 2].first = "norm.steps";  // norm.running_var
  const std::vector<double> before = net.body.fc2.weight.to_vector();
  CHECK_THROWS_WITH(net.load_state_dict(state),
                    "load_state_dict: missing keys: scale, norm.running_var; unexpected "
                    "keys: norm.steps; shape mismatches: body.fc1.weight (expected [3, 2], got "
                    "[2, 3])");
  CHECK_THROWS_WITH(net.load_state_dict(state, {.strict = false}),
                    "load_state_dict: shape mismatches: body.fc1.weight (expected [3, 2], got "
                    "[2, 3])");
  CHECK(net.body.fc2.weight.to_vector() == before);

  state[1].second = Tensor::zeros({3, 2});
  const LoadResult result = net.load_state_dict(state, {.strict = false});
  CHECK(result.missing == Names{"scale", "norm.running_var"});
  CHECK(result.unexpected == Names{"norm.steps"});
  CHECK(net.body.fc2.weight.to_vector() == other.body.fc2.weight.to_vector());
  state.push_back(state[0]);
  CHECK_THROWS_WITH(net.load_state_dict(state), "load_state_dict: \"table\" occurs twice");
}

TEST_CASE("train and eval reach every module") {
  Net net;
  CHECK(net.norm.is_training());
  net.eval();
  for (const auto& [name, module] : net.named_modules()) CHECK_FALSE(module->is_training());
  net.train();
  CHECK(net.body.fc2.is_training());
}

TEST_CASE("to converts parameters, gradients and floating buffers behind existing handles") {
  manual_seed(3);
  Net net;
  const Tensor held = net.body.fc1.bias;
  const std::vector<double> values = held.to_vector();
  held.set_grad(Tensor::full({3}, 0.5));
  net.to(DType::f64);
  CHECK(held.dtype() == DType::f64);
  CHECK(held.to_vector() == values);
  CHECK(held.requires_grad());
  CHECK(held.grad().dtype() == DType::f64);
  CHECK(held.grad().to_vector() == std::vector<double>{0.5, 0.5, 0.5});
  CHECK(net.norm.running_var.dtype() == DType::f64);
  CHECK(net.table.dtype() == DType::i64);
  net.to(Device{DeviceType::cpu, 1});
  CHECK(held.device() == Device{DeviceType::cpu, 1});
  CHECK(net.table.device().index == 1);
  net.to(Device{}, DType::f32);
  CHECK(held.device() == Device{});
  CHECK(held.dtype() == DType::f32);
  CHECK_THROWS_WITH(net.to(DType::i64), "Module::to: expected a floating dtype, got i64");
}

class Chain : public Module {
 public:
  Chain() : weight(parameter("w", Tensor::zeros({1}))) {}
  void append(std::unique_ptr<Module> child) { add_child("m", std::move(child)); }
  Tensor weight;
};

TEST_CASE("a tree of ten thousand levels is walked and freed without recursion") {
  auto root = std::make_unique<Chain>();
  for (int level = 1; level < 10000; ++level) {
    auto parent = std::make_unique<Chain>();
    parent->append(std::move(root));
    root = std::move(parent);
  }
  CHECK(root->parameters().size() == 10000);
  const auto modules = root->named_modules();
  REQUIRE(modules.size() == 10000);
  CHECK(modules[2].first == "m.m");
  CHECK(modules.back().first.size() == 2 * 9999 - 1);
  root->eval();
  CHECK_FALSE(modules.back().second->is_training());
}

/// What `function` throws in a thread with a stack of 2 MiB.
std::string error_on_small_stack(const std::function<void()>& function) {
  struct Run {
    const std::function<void()>& function;
    std::string error;
  } run{function, {}};
  pthread_attr_t attributes;
  REQUIRE(::pthread_attr_init(&attributes) == 0);
  REQUIRE(::pthread_attr_setstacksize(&attributes, 2 << 20) == 0);
  pthread_t thread = {};
  const auto body = [](void* argument) -> void* {
    auto& run = *static_cast<Run*>(argument);
    try {
      run.function();
    } catch (const Error& error) {
      run.error = error.what();
    }
    return nullptr;
  };
  REQUIRE(::pthread_create(&thread, &attributes, body, &run) == 0);
  ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
  return run.error;
}

TEST_CASE("calls that are nested too deep for the stack are an error") {
  using Catch::Matchers::Contains;
  const Tensor x = Tensor::full({1}, 1).set_requires_grad(true);
  const auto nested = [](int levels) {
    auto root = std::make_unique<Sequential>();
    for (int level = 1; level < levels; ++level) {
      auto parent = std::make_unique<Sequential>();
      parent->append(std::move(root));
      root = std::move(parent);
    }
    return root;
  };
  const auto deep = nested(100000), shallow = nested(100);
  CHECK(error_on_small_stack([&] { (*shallow)(x); }).empty());
  CHECK_THAT(error_on_small_stack([&] { (*deep)(x); }),
             Contains("Module: calls are nested too deep for this thread's stack of 2048 KiB"));

  const std::function<Tensor(const Tensor&, int)> backwards = [&](const Tensor& y, int levels) {
    return record("nested", {y}, detach(y), {}, [&, levels](const Backward& b) -> Tensors {
      const GradMode mode(true);
      if (levels > 0) backward(backwards(Tensor::full({1}, 1).set_requires_grad(true), levels - 1));
      return {b.dy()};
    });
  };
  CHECK(error_on_small_stack([&] { backward(backwards(x, 100)); }).empty());
  CHECK(x.grad().item() == 1);
  CHECK_THAT(error_on_small_stack([&] { backward(backwards(x, 100000)); }),
             Contains("backward: calls are nested too deep"));
}

TEST_CASE("zero_grad drops gradients and requires_grad_ freezes") {
  manual_seed(4);
  Mlp mlp(2, 3);
  const Tensor x = Tensor::full({1, 2}, 0.5);
  backward(ops::sum(mlp(x)));
  for (const Tensor& p : mlp.parameters()) CHECK(p.grad().defined());
  mlp.zero_grad();
  for (const Tensor& p : mlp.parameters()) CHECK_FALSE(p.grad().defined());
  mlp.fc1.requires_grad_(false);
  backward(ops::sum(mlp(x)));
  CHECK_FALSE(mlp.fc1.weight.grad().defined());
  CHECK(mlp.fc2.weight.grad().defined());
}

TEST_CASE("a part is refused but in calls of its model, and in backward") {
  Mlp mlp(2, 3);
  const Tensor x = Tensor::full({1, 2}, 0.5);
  mlp.fc1.set_route({.refuse = [] {
    if (!RoutedCall::is_under_way()) WEFT_FAIL("a stranger");
  }});
  CHECK_THROWS_WITH(mlp.fc1(x), "a stranger");
  CHECK_THROWS_WITH(mlp.fc1.check_call(), "a stranger");
  CHECK_THROWS_WITH(mlp(x), "a stranger");
  CHECK_FALSE(mlp.fc1.has_route());
  // The end of a part's route is no call of its model.
  CHECK_THROWS_WITH(mlp.unrouted(x), "a stranger");
  {
    const RoutedCall call;
    CHECK_NOTHROW(mlp(x));
    std::string other_thread;
    std::thread([&] {
      try {
        mlp(x);
      } catch (const Error& error) {
        other_thread = error.what();
      }
    }).join();
    CHECK(other_thread == "a stranger");
  }
  CHECK_THROWS_WITH(mlp(x), "a stranger");
  mlp.set_route({.forward = [&](const Tensor& in) { return mlp.unrouted(in); }});
  CHECK_NOTHROW(mlp(x));
  mlp.set_stand_in([&](const Tensor& in) {
    CHECK(RoutedCall::is_of(mlp));
    CHECK_FALSE(RoutedCall::is_of(mlp.fc1));
    return mlp.forward(in);
  });
  CHECK_NOTHROW(mlp(x));
  mlp.set_stand_in({});
  CHECK_FALSE(RoutedCall::is_under_way());
  mlp.set_route({});
  Tensor y;
  {
    const RoutedCall call;
    y = checkpoint([&](const Tensors& in) { return mlp(in[0]); }, {x});
  }
  CHECK_NOTHROW(backward(ops::sum(y)));
  CHECK(mlp.fc1.weight.grad().defined());
}

TEST_CASE("a route's state takes the place of the module's own, which it leaves as it is") {
  Mlp mlp(2, 3);
  bool is_led = true;
  mlp.set_route({.state_dict = [&]() -> std::optional<NamedTensors> {
    if (!is_led) return {};
    return NamedTensors{{"whole", Tensor::zeros({1})}};
  }});
  CHECK(names(mlp.state_dict()) == Names{"whole"});
  const Names own = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
  CHECK(names(mlp.unrouted_state()) == own);
  CHECK(mlp.load_state_dict({}, {.strict = false}).missing == own);
  is_led = false;
  CHECK(names(mlp.state_dict()) == own);
}

}  // namespace
}  // namespace weft::nn
