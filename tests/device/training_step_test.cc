// A whole training step of a small vision transformer on a CUDA device, real or emulated.
//
// Beside the CPU. The truth is the same step in f64. A step is a sequence of R kernels; each
// returns what exact arithmetic would make of operands that are off by gamma_K of themselves at
// most, K being the longest sum (the references of the kernels, and Higham, section 3.1). To first
// order the error of a result is the sum over the kernels of that times the result's sensitivity to
// relative changes of the kernel's operands. The sensitivity to changes of the step's own inputs,
// images and parameters, every one of which is the operand of some kernel, is measured: the largest
// change of any element of a result over relative perturbations of 2^-20 with random signs. So R
// gamma_K A bounds the error wherever intermediate results matter no more than inputs do. The CPU's
// f32 step is held to the same bound.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/graph.h"
#include "core/philox.h"
#include "core/transfer.h"
#include "kernels/gemm/matmul_numerics.h"
#include "kernels/op.h"
#include "kernels/testing/emulation.h"
#include "models/vit.h"
#include "numerics/error_bounds.h"
#include "numerics/tensor_core_bounds.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/grad_scaler.h"
#include "optim/layerwise.h"
#include "optim/optimizer_state.h"
#include "optim/registry.h"
#include "optim/sgd.h"
#include "tests/skip.h"

namespace weft {
namespace {

const Device kCuda{DeviceType::cuda, 0};
constexpr int64_t kBatch = 3, kSize = 8, kClasses = 5;

models::VitConfig tiny() {
  return {.image_size = kSize,
          .patch = 4,
          .classes = kClasses,
          .encoder = {.layers = 2, .heads = 2, .width = 32, .hidden = 48}};
}
// The longest sums: over 3 * 4 * 4 pixels of a patch or 48 hidden units; 15 tokens make fewer.
constexpr double kLongestSum = 48;
// Of a kernel under autocast, in units of the 16-bit type: an operand's, the result's, and that of
// P or dS inside attention.
constexpr double kRoundings = 3;
// In TF32, whose results are f32: an operand's and that of P or dS, each 2^-10 at most.
constexpr double kTf32Cut = 2 * 0x1p-10;

/// Products as a precision has them: autocast to a 16-bit one, or f32 with or without TF32.
struct Precision {
  explicit Precision(DType precision)
      : cast(precision == DType::tf32 ? DType::f32 : precision),
        numerics({.allow_tf32 = precision == DType::tf32}) {}
  Autocast cast;
  kernels::MatmulScope numerics;
};

double error_of_operands(DType precision) {
  if (precision == DType::f32) return 0;
  return precision == DType::tf32 ? kTf32Cut : kRoundings * unit_roundoff(precision);
}

class Recorder : public kernels::LaunchHook {
 public:
  Recorder() { kernels::set_launch_hook(this); }
  ~Recorder() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view, std::string_view variant, Device, const std::string&) override {
    ++count;
    fp8_products += variant.starts_with("gemm") && variant.ends_with("fp8");
    variants.emplace(variant);
  }
  void end() noexcept override {}
  int count = 0, fp8_products = 0;
  std::set<std::string> variants;
};

/// The model, its images and labels on a device in a dtype. `change`: relative perturbation of
/// every image and parameter, its signs drawn from `draw`.
struct Setup {
  Setup(Device device, DType dtype, double change = 0, uint64_t draw = 0) {
    manual_seed(7);
    model = std::make_unique<models::VisionTransformer>(tiny());
    // PyTorch starts the head at zero, which would leave nothing to compare.
    Philox random(99);
    for (auto& [name, tensor] : model->named_parameters()) {
      float* values = tensor.data<float>();
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        values[i] += 0.1f * static_cast<float>(random.normal());
      }
    }
    images = ops::randn({kBatch, 3, kSize, kSize});
    model->to(dtype);
    images = ops::cast(images, dtype);
    if (change != 0) {
      Philox signs(1234, draw);
      const auto perturb = [&](const Tensor& t) {
        double* values = t.data<double>();
        for (int64_t i = 0; i < t.numel(); ++i) {
          values[i] *= 1 + (signs.next_u32() & 1 ? change : -change);
        }
      };
      perturb(images);
      for (const Tensor& parameter : model->parameters()) perturb(parameter);
    }
    model->to(device);
    images = ops::to(images, device);
    labels = ops::to(Tensor::from(std::vector<int64_t>{1, 4, 0}, {kBatch}), device);
  }

  Tensor forward_backward() {
    const Tensor loss = ops::cross_entropy((*model)(images), labels, {.label_smoothing = 0.1});
    backward(loss);
    return loss;
  }

  std::unique_ptr<models::VisionTransformer> model;
  Tensor images, labels;
};

/// The loss, then the gradient of every parameter.
std::vector<std::vector<double>> results_of(Setup&& setup) {
  const Tensor loss = setup.forward_backward();
  std::vector<std::vector<double>> results = {loss.to_vector()};
  for (const Tensor& parameter : setup.model->parameters()) {
    results.push_back(parameter.grad().to_vector());
  }
  return results;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) : INFINITY);
  }
  return largest;
}

std::vector<uint8_t> bits_of(const std::vector<Tensor>& tensors) {
  std::vector<uint8_t> bits;
  for (const Tensor& tensor : tensors) {
    const Tensor here = to_device(tensor, Device{});
    const auto* first = static_cast<const uint8_t*>(here.raw());
    bits.insert(bits.end(), first, first + here.nbytes());
  }
  return bits;
}

/// How far each result of the step moves, as a multiple of a relative change of its inputs: the
/// largest of four random changes of 2^-20.
std::vector<double> sensitivity_of(const std::vector<std::vector<double>>& truth) {
  std::vector<double> sensitivity(truth.size());
  constexpr double kChange = 0x1p-20;
  for (uint64_t draw = 0; draw < 4; ++draw) {
    const auto changed = results_of(Setup({}, DType::f64, kChange, draw));
    for (size_t k = 0; k < truth.size(); ++k) {
      sensitivity[k] = std::max(sensitivity[k], largest_difference(changed[k], truth[k]) / kChange);
    }
  }
  return sensitivity;
}

TEST_CASE("a training step on a device lies within the derived bound of the exact one") {
  const auto truth = results_of(Setup({}, DType::f64));
  const std::vector<double> sensitivity = sensitivity_of(truth);
  const auto check = [&](Device device, DType precision) {
    Recorder kernels_run;
    const Precision mode(precision);
    const auto results = results_of(Setup(device, DType::f32));
    const double factor =
        kernels_run.count * (numerics::gamma(kLongestSum, 0x1p-24) + error_of_operands(precision));
    REQUIRE(results.size() == truth.size());
    for (size_t k = 0; k < truth.size(); ++k) {
      INFO("result " << k << " in " << name(precision) << " on " << to_string(device));
      CHECK(largest_difference(results[k], truth[k]) <= factor * sensitivity[k]);
    }
    return kernels_run.variants;
  };
  check({}, DType::f32);
  check({}, DType::tf32);
  check({}, DType::bf16);
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  check(kCuda, DType::f32);
  for (DType precision : {DType::tf32, DType::bf16}) {
    CHECK(check(kCuda, precision).contains("attention_cuda_short"));
  }
}

TEST_CASE("two runs of the same steps on a device give the same bits") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const DType precision = GENERATE(DType::f32, DType::tf32, DType::bf16);
  std::vector<std::vector<uint8_t>> runs;
  for (int schedule : {0, 1}) {
    kernels::use_schedule(schedule);
    Setup setup(kCuda, DType::f32);
    optim::AdamW optimizer(setup.model->named_parameters(), {.lr = 1e-3});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const Precision mode(precision);
      setup.forward_backward();
      optimizer.step();
    }
    runs.push_back(bits_of(setup.model->parameters()));
  }
  kernels::use_schedule(0);
  CHECK(runs[0] == runs[1]);
}

// fp16 with loss scaling. Beside the sums in f32, every kernel's operands and result are rounded to
// f16, 2^-11 of themselves: twice that and gamma_K for each of R kernels, times the sensitivity as
// above. Values below f16's normal range, whose rounding is absolute, are what the loss scale is
// for; this model's gradients times 2^10 stay in range on both sides.
TEST_CASE("fp16 steps with loss scaling run on a device") {
  constexpr double kScale = 1024;
  const auto truth = results_of(Setup({}, DType::f64));
  const std::vector<double> sensitivity = sensitivity_of(truth);
  const auto check = [&](Device device) {
    Setup setup(device, DType::f32);
    optim::SGD optimizer(setup.model->named_parameters(), {.lr = 0.1});
    const auto scaled_backward = [&](optim::GradScaler& scaler) {
      optimizer.zero_grad();
      const Autocast mode(DType::f16);
      const Tensor loss =
          ops::cross_entropy((*setup.model)(setup.images), setup.labels, {.label_smoothing = 0.1});
      backward(scaler.scale(loss));
      return loss;
    };
    INFO("on " << to_string(device));
    {
      optim::GradScaler scaler({.init_scale = kScale});
      Recorder kernels_run;
      const Tensor loss = scaled_backward(scaler);
      const double norm = scaler.unscale(optimizer);
      const double factor = kernels_run.count * (0x1p-10 + numerics::gamma(kLongestSum, 0x1p-24));
      double squares = 0;
      CHECK(std::abs(loss.item() - truth[0][0]) <= factor * sensitivity[0]);
      const Tensors parameters = setup.model->parameters();
      for (size_t k = 0; k < parameters.size(); ++k) {
        const std::vector<double> gradient = parameters[k].grad().to_vector();
        for (double g : gradient) squares += g * g;
        INFO("parameter " << k);
        CHECK(largest_difference(gradient, truth[k + 1]) <= factor * sensitivity[k + 1]);
      }
      CHECK(norm == Approx(std::sqrt(squares)).epsilon(1e-12));
      const std::vector<uint8_t> before = bits_of(parameters);
      CHECK(scaler.step(optimizer, 0.5));
      CHECK(bits_of(parameters) != before);
      scaler.update();
      CHECK(scaler.get_scale() == kScale);
    }
    {
      // Gradients beyond 65504 are infinite: nothing moves, and the scale is halved.
      optim::GradScaler scaler({.init_scale = 0x1p30});
      scaled_backward(scaler);
      const std::vector<uint8_t> before = bits_of(setup.model->parameters());
      CHECK_FALSE(scaler.step(optimizer));
      CHECK(bits_of(setup.model->parameters()) == before);
      scaler.update();
      CHECK(scaler.get_scale() == 0x1p29);
    }
  };
  check({});
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  check(kCuda);
}

// fp8 linear layers in a step that is otherwise in bf16. Each of their products has operands that
// were rounded to an fp8 format, 2^-4 of themselves to e4m3, 2^-3 to e5m2; Hopper's tensor cores,
// emulated bit for bit, add an error of their own. Codes below a format's normal range err by
// 2^-10 of 448 (e4m3) of the tensor's largest magnitude and less: the scales see to it that they
// weigh little.
TEST_CASE("fp8 steps run on a device") {
  const auto truth = results_of(Setup({}, DType::f64));
  const std::vector<double> sensitivity = sensitivity_of(truth);
  const double tensor_core = numerics::tensor_core_dot_bound(
      numerics::tensor_core_model("h100", DType::f8e4m3), kLongestSum, 1);
  const auto check = [&](Device device) {
    INFO("on " << to_string(device));
    Fp8Scaling scaling;
    Recorder kernels_run;
    const Autocast mode(DType::bf16);
    const Fp8Scope fp8(scaling);
    const auto results = results_of(Setup(device, DType::f32));
    // Four layers in each of two blocks, the patches' and the head, three products each; the
    // patches need no gradient of the images.
    CHECK(kernels_run.fp8_products >= 24);
    const double factor =
        kernels_run.count * (numerics::gamma(kLongestSum, 0x1p-24) + kRoundings * 0x1p-8) +
        kernels_run.fp8_products * (0x1p-4 + 0x1p-3 + tensor_core);
    for (size_t k = 0; k < truth.size(); ++k) {
      INFO("result " << k);
      CHECK(largest_difference(results[k], truth[k]) <= factor * sensitivity[k]);
    }
    return kernels_run.variants;
  };
  CHECK(check({}).contains("gemm_cpu_fp8"));
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const auto variants = check(kCuda);
  CHECK(variants.contains("fp8_quantize_cuda_elements"));
  if (runtime::is_emulated()) CHECK(variants.contains("gemm_cuda_wgmma_fp8"));
  // Three steps learn, and give the same bits again.
  const auto train = [&](int schedule) {
    kernels::use_schedule(schedule);
    Setup setup(kCuda, DType::f32);
    optim::SGD optimizer(setup.model->named_parameters(), {.lr = 0.05});
    Fp8Scaling scaling({.scaling = Fp8Options::Scaling::kDelayed});
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Autocast mode(DType::bf16);
      const Fp8Scope fp8(scaling);
      losses.push_back(setup.forward_backward().item());
      optimizer.step();
      scaling.update();
    }
    kernels::use_schedule(0);
    CHECK(losses.back() < losses.front());
    return bits_of(setup.model->parameters());
  };
  CHECK(train(0) == train(1));
}

/// Casts between f32 and bf16, as the problems of kernels/copy are described.
struct Casts : kernels::LaunchHook {
  Casts() { kernels::set_launch_hook(this); }
  ~Casts() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view, Device, const std::string& problem) override {
    const auto has = [&](const char* part) { return problem.find(part) != std::string::npos; };
    const bool is_cast =
        (has("(f32 [") && has(" to bf16 [")) || (has("(bf16 [") && has(" to f32 ["));
    if (op == "copy" && is_cast) all.push_back(problem);
  }
  void end() noexcept override {}
  std::vector<std::string> all;
};

TEST_CASE("a bf16 step casts no weight: the optimizer has written it narrow") {
  const Device device = runtime::device_count() > 0 ? kCuda : Device{};
  const std::string kind = GENERATE("adamw", "sgd", "lars", "lamb", "muon");
  INFO(kind);
  Setup setup(device, DType::f32);
  const auto optimizer =
      optim::make_optimizer(kind, setup.model->named_parameters(), {{"lr", 1e-3}});
  const auto step = [&] {
    optimizer->zero_grad();
    {
      const Autocast mode(DType::bf16);
      const Tensor logits = ops::cast((*setup.model)(setup.images), DType::f32);
      backward(ops::cross_entropy(logits, setup.labels));
    }
    optimizer->step();
  };
  {
    const Casts casts;
    step();
    CHECK(casts.all.size() > 10);  // of each weight at least
  }
  const auto check = [&](const Casts& casts) {
    for (const std::string& cast : casts.all) {
      INFO(cast);
      for (const auto& [name, weight] : setup.model->named_parameters()) {
        INFO(name);
        CHECK(cast.find("copy(" + describe(weight) + " to bf16") == std::string::npos);
      }
    }
    // Whatever the depth: images on their way in, the patches' tokens on theirs into the f32
    // stream, logits on theirs out, and the gradients of the last two.
    CHECK(casts.all.size() == 5);
  };
  {
    const Casts casts;
    step();
    check(casts);
  }
  // LAMB's step is not captured; the CPU has no graphs.
  if (device != kCuda || kind == "lamb") return;
  DeviceGraph graph(kCuda);
  const Casts casts;
  graph.capture(step);
  check(casts);
}

TEST_CASE("a captured training step repeats what eager steps compute") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const auto [kind, precision] = GENERATE(table<std::string, DType>({{"adamw", DType::f32},
                                                                     {"adamw", DType::bf16},
                                                                     {"sgd", DType::bf16},
                                                                     {"lars", DType::bf16},
                                                                     {"muon", DType::bf16}}));
  INFO(kind);
  // Four steps, the last two by a graph; AdamW's each with a learning rate and a gradient scale of
  // its own. The weights change by hand before the last one.
  constexpr std::pair<double, double> kSteps[] = {{0.1, 1}, {0.02, 0.5}, {0.05, 1}, {0.01, 0.25}};
  const auto run = [&](bool captured) {
    Setup setup(kCuda, DType::f32);
    const auto made = optim::make_optimizer(
        kind, optim::without_decay_of_vectors(setup.model->named_parameters()), {});
    optim::Optimizer& optimizer = *made;
    double scale = 1;
    const auto step = [&] {
      optimizer.zero_grad();
      const Precision mode(precision);
      setup.forward_backward();
      optimizer.step(scale);
    };
    DeviceGraph graph(kCuda);
    for (int i = 0; i < 4; ++i) {
      optimizer.set_lr(kSteps[kind == "adamw" ? i : 3].first);
      scale = kSteps[kind == "adamw" ? i : 3].second;
      if (captured && i == 2) graph.capture(step);
      if (i == 3) {
        const NoGrad guard;
        for (Tensor& weight : setup.model->parameters())
          ops::mul_(weight, ops::full({}, 0.5, DType::f32, kCuda));
      }
      if (captured && i >= 2) {
        optimizer.advance(scale);
        graph.launch();
      } else {
        step();
      }
    }
    Tensors all = setup.model->parameters();
    for (const auto& [name, tensor] : optimizer.state_dict().tensors) all.push_back(tensor);
    return bits_of(all);
  };
  CHECK(run(true) == run(false));
}

// A capture refuses whatever waits for the device, and so proves that nothing does.
TEST_CASE("a step is clipped, or left out, by a norm that the host has not seen") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const auto run = [&](bool captured, double last) {
    constexpr double kMost = 0.25;
    Setup setup(kCuda, DType::f32);
    const Tensor usual = to_device(setup.images, Device{});
    optim::AdamW optimizer(optim::without_decay_of_vectors(setup.model->named_parameters()));
    const auto step = [&](bool waits) {
      optimizer.zero_grad();
      setup.forward_backward();
      const Tensor norm = optim::unread_norm(setup.model->parameters());
      if (!waits)
        return (void)optimizer.step(1, {.norm = norm, .max_norm = kMost, .needs_finite = true});
      CHECK(!(norm.item() <= kMost));
      if (std::isfinite(norm.item())) optimizer.step(optim::clip_coefficient(norm.item(), kMost));
    };
    step(true);
    DeviceGraph graph(kCuda);
    if (captured) graph.capture([&] { step(false); });
    for (const double factor : {1.0, last, 2.0}) {
      copy_same_layout(ops::mul(usual, ops::full({}, factor)), setup.images);
      if (captured) {
        optimizer.advance();
        graph.launch();
        if (!std::isfinite(factor)) optimizer.retract();
      } else {
        step(true);
      }
    }
    Tensors all = setup.model->parameters();
    for (const auto& [name, tensor] : optimizer.state_dict().tensors) all.push_back(tensor);
    return bits_of(all);
  };
  for (const double last : {3.0, static_cast<double>(INFINITY)})
    CHECK(run(true, last) == run(false, last));
}

// Of eight steps three meet images that f16 does not hold: one before the capture, two after. The
// scale grows after two steps without, so that it moves both ways on the device.
TEST_CASE("a captured fp16 step is skipped, and its loss scale moves, as in eager steps") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  enum class Mode { kEager, kSettled, kDeferred };
  struct Outcome {
    std::vector<uint8_t> bits;
    std::vector<nlohmann::json> scales;  // after each step
  };
  const auto run = [](Mode mode) {
    constexpr int kCaptured = 3;
    Setup setup(kCuda, DType::f32);
    const Tensor usual = to_device(setup.images, Device{});
    const Tensor huge = ops::mul(usual, ops::full({}, 1e6));
    optim::AdamW optimizer(optim::without_decay_of_vectors(setup.model->named_parameters()));
    optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
    const auto step = [&] {
      optimizer.zero_grad();
      const Autocast cast(DType::f16);
      const Tensor logits = ops::cast((*setup.model)(setup.images), DType::f32);
      backward(scaler.scale(ops::cross_entropy(logits, setup.labels)));
      scaler.step(optimizer);
      scaler.update();
    };
    Outcome outcome;
    DeviceGraph graph(kCuda);
    for (int i = 0; i < 8; ++i) {
      const bool overflows = i == 1 || i == 4 || i == 5;
      copy_same_layout(overflows ? huge : usual, setup.images);
      optimizer.set_lr(0.05 / (i + 1));
      if (mode == Mode::kEager || i < kCaptured) {
        step();
      } else {
        if (i == kCaptured) graph.capture(step);
        scaler.advance(optimizer);
        graph.launch();
        if (mode == Mode::kSettled) CHECK(scaler.settle(optimizer) == !overflows);
      }
      outcome.scales.push_back(scaler.state_dict());
    }
    CHECK(scaler.settle(optimizer));
    outcome.scales.back() = scaler.state_dict();
    Tensors all = setup.model->parameters();
    for (const auto& [name, tensor] : optimizer.state_dict().tensors) all.push_back(tensor);
    outcome.bits = bits_of(all);
    return outcome;
  };
  const Outcome eager = run(Mode::kEager);
  const std::vector<double> expected = {1024, 512, 512, 1024, 512, 256, 256, 512};
  for (size_t i = 0; i < expected.size(); ++i) CHECK(eager.scales[i]["scale"] == expected[i]);
  const Outcome settled = run(Mode::kSettled), deferred = run(Mode::kDeferred);
  CHECK(settled.scales == eager.scales);
  CHECK((settled.bits == eager.bits));
  CHECK(deferred.scales.back() == eager.scales.back());
  CHECK((deferred.bits == eager.bits));
}

TEST_CASE("a loss scale of the caller's choice reaches a captured step") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Tensor x = ops::to(ops::full({3}, 2), kCuda);
  x.set_requires_grad(true);
  optim::AdamW optimizer(Tensors{x});
  optim::GradScaler scaler({.init_scale = 8, .min_scale = 4});
  const Tensor weight = ops::to(ops::full({3}, 1), kCuda);
  const auto step = [&] {
    optimizer.zero_grad();
    backward(scaler.scale(ops::sum(ops::mul(x, weight))));
    scaler.step(optimizer);
    scaler.update();
  };
  step();
  DeviceGraph graph(kCuda);
  graph.capture(step);
  const auto launch = [&] {
    scaler.advance(optimizer);
    graph.launch();
    return scaler.settle(optimizer);
  };
  CHECK(launch());
  scaler.update(0x1p127);  // the next gradients are infinite times any weight above 1
  copy_same_layout(ops::full({3}, 4), weight);
  const std::vector<double> before = x.to_vector();
  CHECK_FALSE(launch());
  CHECK(x.to_vector() == before);
  CHECK(scaler.get_scale() == 0x1p126);
  scaler.update(4);
  copy_same_layout(ops::full({3}, INFINITY), weight);
  CHECK_THROWS_WITH(launch(),
                    Catch::Contains("gradients are infinite at the smallest loss scale, 4"));
  copy_same_layout(ops::full({3}, 1), weight);
  CHECK(launch());
  CHECK(scaler.get_scale() == 4);
  CHECK(x.to_vector() != before);
}

TEST_CASE("what a captured step cannot do is refused") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  using Catch::Contains;
  Tensor x = ops::to(ops::randn({3}), kCuda);
  x.set_requires_grad(true);
  const auto step = [&](optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    backward(ops::sum(ops::mul(x, x)));
    optimizer.step();
  };
  optim::AdamW adamw(Tensors{x});
  CHECK_THROWS_WITH(adamw.advance(), Contains("AdamW: advance() without a step inside"));
  {
    DeviceGraph graph(kCuda);
    CHECK_THROWS_WITH(graph.capture([&] { step(adamw); }),
                      Contains("AdamW: take a step before the one that is captured"));
  }
  step(adamw);
  DeviceGraph graph(kCuda), again(kCuda);
  graph.capture([&] { step(adamw); });
  CHECK_THROWS_WITH(again.capture([&] { step(adamw); }), Contains("captured once"));
  CHECK_THROWS_WITH(adamw.load_state_dict(adamw.state_dict()),
                    Contains("before a step is captured"));

  optim::GradScaler scaler;
  CHECK_THROWS_WITH(scaler.advance(adamw), Contains("GradScaler::advance: no step was captured"));
  const auto scaled = [&](optim::Optimizer& optimizer, bool unscales) {
    optimizer.zero_grad();
    backward(scaler.scale(ops::sum(ops::mul(x, x))));
    if (unscales) scaler.unscale(optimizer);
    scaler.step(optimizer);
  };
  DeviceGraph unscaled(kCuda);
  CHECK_THROWS_WITH(unscaled.capture([&] { scaled(adamw, true); }),
                    Contains("GradScaler::unscale: the norm that it returns is not known inside"));
  scaler = optim::GradScaler();
  struct Heedless : optim::SGD {
    using SGD::SGD;
    bool is_fused() const override { return false; }
  } heedless(Tensors{x});
  DeviceGraph skipped(kCuda);
  CHECK_THROWS_WITH(skipped.capture([&] { scaled(heedless, false); }),
                    Contains("SGD: a captured step cannot be skipped"));
  optim::Lamb lamb(Tensors{x});
  step(lamb);
  DeviceGraph of_lamb(kCuda);
  CHECK_THROWS_WITH(of_lamb.capture([&] { step(lamb); }),
                    Contains("LAMB: a captured step would repeat the bias corrections of step 2"));
  optim::SGD sgd(Tensors{x}, {.lr = 0.1});
  DeviceGraph of_sgd(kCuda);
  of_sgd.capture([&] { step(sgd); });
  sgd.advance();
  of_sgd.launch();
  sgd.set_lr(0.2);
  CHECK_THROWS_WITH(sgd.advance(), Contains("SGD: options and gradient scale of a captured step"));
}

}  // namespace
}  // namespace weft
