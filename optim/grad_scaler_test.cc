#include "optim/grad_scaler.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/view.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/sgd.h"

namespace weft::optim {
namespace {

using Values = std::vector<double>;
const double inf = std::numeric_limits<double>::infinity();

/// A parameter and an optimizer that subtracts half of its gradient.
struct Setup {
  Tensor p = Tensor::from(std::vector<float>{1, 2}, {2}).set_requires_grad(true);
  SGD sgd{Tensors{p}, {.lr = 0.5}};

  /// Backward of sum(p * c): p's gradient is the scale times c.
  void scaled_backward(GradScaler& scaler, double c0, double c1 = 0.25) {
    const Tensor c = Tensor::from(Values{c0, c1}, {2});
    sgd.zero_grad();
    backward(scaler.scale(ops::sum(ops::mul(p, ops::cast(c, DType::f32)))));
  }
  bool step(GradScaler& scaler, double c0) {
    scaled_backward(scaler, c0);
    const bool stepped = scaler.step(sgd);
    scaler.update();
    return stepped;
  }
};

int64_t tracker(const GradScaler& scaler) { return scaler.state_dict().at("_growth_tracker"); }

TEST_CASE("the scale, its tracker and the parameters follow PyTorch's step for step") {
  // torch 2.15, torch.amp.GradScaler('cpu', growth_interval=3), SGD with lr 0.5.
  struct Line {
    double c, scale;
    int64_t tracker;
    Values p;
  };
  const Line lines[] = {
      {1, 65536, 1, {0.5, 1.875}},    {1, 65536, 2, {0, 1.75}},       {inf, 32768, 0, {0, 1.75}},
      {1, 32768, 1, {-0.5, 1.625}},   {1, 32768, 2, {-1, 1.5}},       {1, 65536, 0, {-1.5, 1.375}},
      {NAN, 32768, 0, {-1.5, 1.375}}, {inf, 16384, 0, {-1.5, 1.375}}, {1, 16384, 1, {-2, 1.25}},
      {1, 16384, 2, {-2.5, 1.125}},   {1, 32768, 0, {-3, 1}},         {1, 32768, 1, {-3.5, 0.875}}};
  Setup s;
  GradScaler scaler({.growth_interval = 3});
  for (const Line& line : lines) {
    CHECK(s.step(scaler, line.c) == std::isfinite(line.c));
    CHECK(scaler.get_scale() == line.scale);
    CHECK(tracker(scaler) == line.tracker);
    CHECK(s.p.to_vector() == line.p);
  }
  CHECK(scaler.state_dict() == nlohmann::json::parse(
                                   R"({"scale": 32768.0, "growth_factor": 2.0,
      "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 1})"));
}

TEST_CASE("defaults are PyTorch's") {
  const GradScaler scaler;
  CHECK(scaler.get_scale() == 65536);
  CHECK(scaler.options().growth_factor == 2);
  CHECK(scaler.options().backoff_factor == 0.5);
  CHECK(scaler.options().growth_interval == 2000);
  CHECK(scaler.is_enabled());
}

TEST_CASE("the scale grows only while it is finite") {
  Setup s;
  GradScaler scaler({.init_scale = 0x1p127, .growth_interval = 1});
  CHECK(s.step(scaler, 0.5));
  CHECK(scaler.get_scale() == 0x1p127);
  CHECK(tracker(scaler) == 0);
}

TEST_CASE("gradients are multiplied by the inverse in f32; a scale of one leaves their bits") {
  Setup s;
  GradScaler scaler({.init_scale = 3});
  s.scaled_backward(scaler, 0.1);
  const float scaled = s.p.grad().data<float>()[0];
  scaler.unscale(s.sgd);
  CHECK(s.p.grad().data<float>()[0] == scaled * static_cast<float>(1.0 / 3));

  GradScaler one({.init_scale = 1});
  s.scaled_backward(one, 0.1);
  const uint64_t version = s.p.grad().version();
  one.unscale(s.sgd);
  CHECK(s.p.grad().version() == version);
  CHECK(s.p.grad().data<float>()[0] == 0.1f);
  CHECK(one.found_inf(s.sgd) == 0);
  s.scaled_backward(one, inf);
  one.step(s.sgd);
  one.update();
  s.scaled_backward(one, inf);
  one.unscale(s.sgd);
  CHECK(one.found_inf(s.sgd) == 1);
}

TEST_CASE("unscale returns the norm that clipping needs") {
  Setup s;
  GradScaler scaler;
  s.scaled_backward(scaler, 3, 4);
  const double norm = scaler.unscale(s.sgd);
  CHECK(norm == 5);
  CHECK(scaler.step(s.sgd, clip_coefficient(norm, 2.5)));
  // 1 - 0.5 * 3 * 2.5 / (5 + 1e-6), after a rounding of each factor.
  CHECK(s.p.to_vector()[0] == Approx(0.25).epsilon(1e-6));
}

TEST_CASE("scaled training in powers of two equals unscaled training bit for bit") {
  const auto train = [](bool enabled) {
    Setup s;
    AdamW adam(Tensors{s.p}, {.lr = 0.1});
    GradScaler scaler({.enabled = enabled});
    for (int i = 0; i < 5; ++i) {
      adam.zero_grad();
      backward(scaler.scale(ops::sum(ops::square(s.p))));
      const double norm = enabled ? scaler.unscale(adam) : grad_norm({s.p});
      scaler.step(adam, clip_coefficient(norm, 0.5));
      scaler.update();
    }
    return s.p.to_vector();
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("gradients of any strides are unscaled, and optimizers without an infinity still step") {
  Setup s;
  Tensor q = Tensor::zeros({2, 2}).set_requires_grad(true);
  SGD other(Tensors{q}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  s.scaled_backward(scaler, inf);
  q.set_grad(view::transpose(Tensor::from(std::vector<float>{4, 8, 12, 16}, {2, 2}), 0, 1));
  CHECK_FALSE(scaler.step(s.sgd));
  CHECK(scaler.step(other));
  CHECK(q.to_vector() == Values{-1, -3, -2, -4});
  scaler.update();
  CHECK(scaler.get_scale() == 2);
}

TEST_CASE("every call out of turn is refused") {
  Setup s;
  GradScaler scaler;
  CHECK_THROWS_WITH(scaler.step(s.sgd), Catch::Contains("no loss was scaled yet"));
  CHECK_THROWS_WITH(scaler.unscale(s.sgd), Catch::Contains("no loss was scaled yet"));
  CHECK_THROWS_WITH(scaler.update(), Catch::Contains("no loss was scaled yet"));
  s.scaled_backward(scaler, 1);
  CHECK_THROWS_WITH(scaler.update(), Catch::Contains("no inf checks were recorded"));
  scaler.unscale(s.sgd);
  CHECK_THROWS_WITH(scaler.unscale(s.sgd),
                    "GradScaler::unscale: called a second time for this optimizer since the last "
                    "update");
  scaler.step(s.sgd);
  CHECK_THROWS_WITH(scaler.unscale(s.sgd), "GradScaler::unscale: called after step");
  CHECK_THROWS_WITH(scaler.step(s.sgd),
                    Catch::Contains("step: called a second time for this optimizer"));
  const Values after = s.p.to_vector();
  scaler.update();
  CHECK(s.p.to_vector() == after);
  s.sgd.zero_grad();
  CHECK_THROWS_WITH(scaler.step(s.sgd), Catch::Contains("none of its parameters has a gradient"));
  CHECK_THROWS_WITH(scaler.update(0),
                    "GradScaler::update: the scale must be positive and finite, "
                    "got 0");
  scaler.update(128);
  CHECK(scaler.get_scale() == 128);
}

TEST_CASE("fp16 gradients are refused") {
  Tensor p = Tensor::zeros({2}, DType::f16).set_requires_grad(true);
  p.set_grad(Tensor::zeros({2}, DType::f16));
  SGD sgd(NamedTensors{{"w", p}}, {.lr = 1});
  GradScaler scaler;
  scaler.scale(Tensor::scalar(1));
  CHECK_THROWS_WITH(scaler.step(sgd), Catch::Contains("the gradient of \"w\" is f16 [2]"));
}

TEST_CASE("options out of range are named, unless the scaler is disabled") {
  CHECK_THROWS_WITH(GradScaler({.growth_factor = 1}),
                    "GradScaler: growth_factor must be greater than 1, got 1");
  CHECK_THROWS_WITH(GradScaler({.backoff_factor = 1}),
                    "GradScaler: backoff_factor must lie between 0 and 1, got 1");
  CHECK_THROWS_WITH(GradScaler({.init_scale = 0}), Catch::Contains("init_scale"));
  CHECK_THROWS_WITH(GradScaler({.growth_interval = 0}), Catch::Contains("growth_interval"));
  CHECK_THROWS_WITH(GradScaler({.hysteresis = 0}), Catch::Contains("hysteresis"));
  CHECK_THROWS_WITH(GradScaler({.init_scale = 2, .min_scale = 4}), Catch::Contains("min_scale"));
  CHECK_NOTHROW(GradScaler({.growth_factor = 1, .enabled = false}));
}

TEST_CASE("a disabled scaler passes everything through") {
  Setup s;
  GradScaler scaler({.enabled = false});
  const Tensor loss = Tensor::scalar(3);
  CHECK(scaler.scale(loss).is_same(loss));
  CHECK(scaler.get_scale() == 1);
  s.scaled_backward(scaler, 2);
  CHECK(scaler.step(s.sgd));
  CHECK(s.p.to_vector()[0] == 0);
  scaler.update();
  CHECK(scaler.state_dict() == nlohmann::json::object());
  CHECK_NOTHROW(scaler.load_state_dict(nlohmann::json::object()));
}

TEST_CASE("hysteresis takes several infinities to shrink, and growth gives them back") {
  // DeepSpeed 0.14's DynamicLossScaler(init_scale=2**16, scale_window=2, delayed_shift=2).
  Setup s;
  GradScaler scaler({.growth_interval = 2, .hysteresis = 2, .min_scale = 1});
  const double c[] = {inf, 1, inf, inf, 1, 1, inf, inf};
  const double scale[] = {65536, 65536, 32768, 16384, 16384, 32768, 32768, 16384};
  for (int i = 0; i < 8; ++i) {
    s.step(scaler, c[i]);
    INFO("step " << i);
    CHECK(scaler.get_scale() == scale[i]);
  }
  CHECK(scaler.state_dict().at("_hysteresis_tracker") == 1);
}

TEST_CASE("a scale that sticks at its minimum is an error that changes nothing") {
  Setup s;
  GradScaler scaler({.init_scale = 4, .min_scale = 1.5});
  s.step(scaler, inf);
  s.step(scaler, inf);
  CHECK(scaler.get_scale() == 1.5);
  const nlohmann::json before = scaler.state_dict();
  CHECK_THROWS_WITH(s.step(scaler, NAN),
                    Catch::Contains("infinite at the smallest loss scale, 1.5"));
  CHECK(scaler.state_dict() == before);
}

TEST_CASE("a sharded scaler decides on what all ranks found") {
  Setup s;
  GradScaler scaler;
  CHECK_THROWS_WITH(scaler.set_found_inf(s.sgd, 1),
                    "GradScaler::set_found_inf: to be called between unscale and step");
  s.scaled_backward(scaler, 1);
  scaler.unscale(s.sgd);
  CHECK(scaler.found_inf(s.sgd) == 0);
  scaler.set_found_inf(s.sgd, 1);  // another rank's
  CHECK_FALSE(scaler.step(s.sgd));
  scaler.update();
  CHECK(scaler.get_scale() == 32768);
  CHECK(s.p.to_vector() == Values{1, 2});
  // A rank whose shard has no gradients at all.
  s.sgd.zero_grad();
  scaler.unscale(s.sgd);
  scaler.set_found_inf(s.sgd, 0);
  CHECK(scaler.step(s.sgd));
  scaler.update();
  CHECK(tracker(scaler) == 1);
}

TEST_CASE("a state continues where it was taken, and malformed ones change nothing") {
  Setup a, b;
  GradScaler first({.growth_interval = 3, .hysteresis = 2}), second({.hysteresis = 2});
  for (double c : {1.0, inf, 1.0, 1.0}) a.step(first, c);
  const std::string text = first.state_dict().dump();
  second.load_state_dict(nlohmann::json::parse(text));
  CHECK(second.state_dict().dump() == text);
  for (double c : {1.0, inf, inf}) {
    a.step(first, c);
    b.step(second, c);
    CHECK(first.state_dict() == second.state_dict());
  }
  const nlohmann::json before = second.state_dict();
  CHECK_THROWS_WITH(second.load_state_dict(nlohmann::json::object()),
                    Catch::Contains("the state is empty"));
  nlohmann::json bad = before;
  bad.erase("scale");
  CHECK_THROWS_WITH(second.load_state_dict(bad), Catch::Contains("malformed state"));
  bad = before;
  bad["growth_factor"] = 0.5;
  CHECK_THROWS_WITH(second.load_state_dict(bad), Catch::Contains("growth_factor"));
  bad = before;
  bad["_growth_tracker"] = 3;
  CHECK_THROWS_WITH(second.load_state_dict(bad), Catch::Contains("_growth_tracker"));
  CHECK(second.state_dict() == before);
}

}  // namespace
}  // namespace weft::optim
