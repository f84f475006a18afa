// Fabric's loop under every strategy and precision, with ranks as threads.
#include "train/fabric.h"

#include <catch2/catch.hpp>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "data/sets/open.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/aliases.h"
#include "io/files.h"
#include "io/safetensors.h"
#include "nn/meta.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "tests/json_damage.h"
#include "tests/skip.h"
#include "train/exact_text.h"
#include "train/testing/every_strategy.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

std::unique_ptr<nn::Sequential> make_model() {
  auto model = std::make_unique<nn::Sequential>();
  model->append<nn::Linear>(6, 12);
  model->append<nn::GELU>();
  model->append<nn::Linear>(12, 4);
  return model;
}

struct Result {
  std::vector<double> losses, norms;
  NamedTensors state;
  int64_t skipped = 0;
};

dist::CommunicatorPtr borrowed(dist::Communicator& c) {
  return {&c, [](dist::Communicator*) {}};
}

/// What the loop of train() does besides its plain words.
enum class Loop : uint8_t {
  kPlain,    // model(x), optim::clip_grad_norm(), optimizer.step()
  kFabric,   // the same by Fabric's functions
  kTwice,    // a step of two backward passes over half of the rows each
  kLocal,    // the first of them without a sum over the ranks
  kRounds,   // the same by accumulate(), in two rounds
  kChanged,  // a plain one that changes parameters in place, wherever it may
  kAsks,     // a plain one that asks for gradients by grad() before and behind backward()
};

/// This rank's rows out of 12 in a step; of half of them where `part` is 0 or 1.
std::pair<Tensor, Tensor> rows_of(const Fabric& fabric, int step, int part = -1) {
  const NoGrad guard;
  Philox random(7, static_cast<uint64_t>(step));
  std::vector<float> values(12 * 6);
  for (float& v : values) v = static_cast<float>(random.normal());
  const Tensor x = Tensor::from(values, {12, 6});
  const Tensor labels =
      Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3}, {12});
  const int begin = part == 1 ? 6 : 0, all = part < 0 ? 12 : 6;
  const int rows = all / fabric.data_size(), first = begin + fabric.data_rank() * rows;
  return {ops::contiguous(ops::narrow(x, 0, first, rows)),
          ops::to(ops::contiguous(ops::narrow(labels, 0, first, rows)), fabric.device())};
}

nn::ModelStructure structure_of_model(nn::Sequential& model) {
  nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
  structure.mlps = {{dynamic_cast<nn::Linear*>(&model[0]), dynamic_cast<nn::Linear*>(&model[2])}};
  structure.segments = model.structure().segments;
  structure.replica = make_model;
  return structure;
}

/// In place, of what this rank has of them.
void scale_parameters(const Fabric& fabric, nn::Module& model, double factor) {
  const NoGrad guard;
  const bool has_stages = fabric.options().strategy.name == "pipeline";
  for (Tensor& p : model.parameters()) {
    if (has_stages && !nn::has_memory(p)) continue;
    ops::mul_(p, ops::full({}, factor, p.dtype()));
  }
}

/// The gradient of the model's input, by grad().
Tensor input_gradient(nn::Module& model, const Tensor& x) {
  const Tensor leaf = ops::clone(x).set_requires_grad(true);
  return grad({ops::sum(model(leaf))}, {leaf})[0];
}

/// Three steps on 12 rows; each data rank takes its share of them.
Result train(FabricOptions options, const dist::CommunicatorPtr& world, Loop loop) {
  if (loop == Loop::kRounds) options.accumulate = 2;
  Fabric fabric(options);
  fabric.launch(world);
  fabric.seed_everything(1);
  const auto model = make_model();
  optim::AdamW optimizer(model->named_parameters(), {.lr = 0.01});
  fabric.setup(*model, optimizer, structure_of_model(*model));
  Result result;
  const bool changes = loop == Loop::kChanged;
  if (changes) scale_parameters(fabric, *model, 1.25);
  for (int step = 0; step < 3; ++step) {
    const bool asks = loop == Loop::kAsks;
    const bool is_whole = loop == Loop::kPlain || loop == Loop::kFabric || changes || asks;
    if (loop != Loop::kRounds) optimizer.zero_grad();
    Tensor loss;
    for (int part = is_whole ? -1 : 0; part < (is_whole ? 0 : 2); ++part) {
      const auto [x, labels] = rows_of(fabric, step, part);
      const auto scope = loop == Loop::kRounds  ? fabric.accumulate(*model)
                         : loop == Loop::kLocal ? fabric.no_backward_sync(*model, part == 0)
                                                : std::shared_ptr<void>();
      if (loop == Loop::kRounds) optimizer.zero_grad();
      if (asks) input_gradient(*model, x);
      const Tensor output = loop == Loop::kFabric ? fabric.forward(x) : (*model)(x);
      const Tensor mean = ops::cross_entropy(output, labels);
      const bool is_half = loop == Loop::kTwice || loop == Loop::kLocal;
      fabric.backward(is_half ? mean * 0.5 : mean);
      if (asks) input_gradient(*model, x);
      if (changes && step != 1) scale_parameters(fabric, *model, 0.75);
      const Tensor share = is_whole ? detach(mean) : detach(mean) * 0.5;
      loss = loss.defined() ? loss + share : share;
      if (loop != Loop::kRounds) continue;
      const double norm = optim::clip_grad_norm(model->parameters(), 0.5);
      if (fabric.sync_gradients()) result.norms.push_back(norm);
      WEFT_CHECK(optimizer.step() == fabric.sync_gradients(), "a step in the middle");
    }
    if (loop == Loop::kFabric) {
      result.norms.push_back(fabric.clip_gradients(optimizer, 0.5));
      result.skipped += !fabric.step(optimizer);
    } else if (loop != Loop::kRounds) {
      // By the model's parameters or by the optimizer's: the same gradients.
      const Tensors clipped = step == 1 ? optimizer.parameters() : model->parameters();
      result.norms.push_back(optim::clip_grad_norm(clipped, 0.5));
      result.skipped += !optimizer.step();
    }
    if (changes) scale_parameters(fabric, *model, 0.875);
    if (changes && step == 1) {  // and once more, when a model has been evaluated
      const NoGrad guard;
      (*model)(rows_of(fabric, step).first);
      scale_parameters(fabric, *model, 0.5);
    }
    const Tensor mean = detach(loss);
    fabric.all_reduce(mean);
    result.losses.push_back(mean.item());
  }
  const std::string path =
      std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") +
      "/fabric.safetensors";
  fabric.save(path);
  result.state = io::read_safetensors(path).tensors;
  // What was saved can be taken up by all.
  fabric.load(path);
  fabric.barrier();
  return result;
}

Result train_ranks(const FabricOptions& options, Loop loop = Loop::kPlain) {
  if (options.devices.count == 1 || options.strategy.name == "dp") {
    return train(options, nullptr, loop);
  }
  Result result;
  dist::run_ranks(options.devices.count, [&](dist::Communicator& c) {
    Result mine = train(options, borrowed(c), loop);
    if (c.rank() == 0) result = std::move(mine);
  });
  return result;
}

double largest_difference(const Result& a, const Result& b) {
  double largest = 0;
  REQUIRE(a.state.size() == b.state.size());
  for (size_t i = 0; i < a.state.size(); ++i) {
    REQUIRE(a.state[i].first == b.state[i].first);
    const auto x = a.state[i].second.to_vector(), y = b.state[i].second.to_vector();
    for (size_t j = 0; j < x.size(); ++j) largest = std::max(largest, std::abs(x[j] - y[j]));
  }
  return largest;
}

}  // namespace

TEST_CASE("a plain loop, every strategy: the weights of one device in f64") {
  const Result one = train_ranks({.precision = "64-true"});
  for (const FabricOptions& options : every_strategy()) {
    FabricOptions double_options = options;
    double_options.precision = "64-true";
    INFO(options.strategy.name << " on " << options.devices.count);
    const Result result = train_ranks(double_options);
    CHECK(largest_difference(result, one) < 1e-12);
    for (int step = 0; step < 3; ++step) {
      CHECK(std::abs(result.losses[step] - one.losses[step]) < 1e-12);
      CHECK(std::abs(result.norms[step] - one.norms[step]) < 1e-12);
    }
    // By Fabric's words: the same operations.
    CHECK(largest_difference(result, train_ranks(double_options, Loop::kFabric)) == 0);
  }
}

TEST_CASE("trap: parameters that the program changes in place stay so under every strategy") {
  const Result one = train_ranks({.precision = "64-true"}, Loop::kChanged);
  CHECK(largest_difference(one, train_ranks({.precision = "64-true"})) > 0.1);
  for (FabricOptions options : every_strategy()) {
    INFO(options.strategy.name << " on " << options.devices.count);
    options.precision = "64-true";
    CHECK(largest_difference(train_ranks(options, Loop::kChanged), one) < 1e-12);
  }
}

TEST_CASE("trap: grad() leaves the parameters' gradients as they are under every strategy") {
  const Result one = train_ranks({.precision = "64-true"});
  for (FabricOptions options : every_strategy()) {
    INFO(options.strategy.name << " on " << options.devices.count);
    options.precision = "64-true";
    CHECK(largest_difference(train_ranks(options, Loop::kAsks), one) < 1e-12);
  }
}

TEST_CASE("trap: a model's input has its gradient under every strategy") {
  const auto gradient = [](const FabricOptions& options, const dist::CommunicatorPtr& world) {
    Fabric fabric(options);
    fabric.launch(world);
    fabric.seed_everything(1);
    const auto model = make_model();
    optim::AdamW optimizer(model->named_parameters(), {.lr = 0.01});
    fabric.setup(*model, optimizer, structure_of_model(*model));
    const auto batch = rows_of(fabric, 0);
    const Tensor leaf = ops::cast(batch.first, DType::f64).set_requires_grad(true);
    // The model's input is a result, as where one model feeds another.
    const auto loss = [&] { return ops::cross_entropy((*model)(leaf * 2.0), batch.second); };
    const Tensor asked = grad({loss()}, {leaf})[0];
    WEFT_CHECK(!leaf.grad().defined(), "grad() has set a gradient");
    fabric.backward(loss());
    const NoGrad guard;
    const double off =
        ops::max(ops::abs(asked - leaf.grad() * static_cast<double>(fabric.data_size()))).item();
    WEFT_CHECK(off < 1e-12, "grad() is {} off", off);
    return std::pair(leaf.grad(), fabric.data_rank());
  };
  const Tensor one = gradient({.precision = "64-true"}, nullptr).first;
  for (FabricOptions options : every_strategy()) {
    options.precision = "64-true";
    INFO(options.strategy.name << " on " << options.devices.count);
    const auto check = [&](const dist::CommunicatorPtr& world) {
      const auto [dx, place] = gradient(options, world);
      WEFT_CHECK(dx.defined(), "no gradient");
      const NoGrad guard;
      const int64_t count = dx.size(0);
      const Tensor expected = ops::narrow(one, 0, place * count, count);
      const double off = ops::max(ops::abs(dx - expected)).item();
      WEFT_CHECK(off < 1e-12, "{} off", off);
    };
    if (options.strategy.name == "dp") {
      check(nullptr);
    } else {
      dist::run_ranks(options.devices.count, [&](dist::Communicator& c) { check(borrowed(c)); });
    }
  }
}

TEST_CASE("trap: load_state_dict() of a model that was set up loads what is kept") {
  for (const FabricOptions& options : every_strategy()) {
    if (options.strategy.name == "dp") continue;
    INFO(options.strategy.name << " on " << options.devices.count);
    dist::run_ranks(options.devices.count, [&](dist::Communicator& c) {
      Fabric fabric(options);
      fabric.launch(borrowed(c));
      const auto model = make_model(), other = make_model();
      optim::SGD optimizer(model->named_parameters(), {.lr = 0});
      fabric.setup(*model, optimizer, structure_of_model(*model));
      NamedTensors state = other->state_dict();
      for (auto& [name, tensor] : state) tensor = Tensor::full(tensor.shape(), 0.25);
      model->load_state_dict(state);
      // A step takes the model back to what its parts say.
      const auto [x, labels] = rows_of(fabric, 0);
      fabric.backward(ops::cross_entropy((*model)(x), labels));
      optimizer.step();
      const NamedTensors whole = fabric.strategy().model_state(*model);
      for (const auto& [name, tensor] : whole) {
        for (double v : tensor.to_vector()) WEFT_CHECK(v == 0.25, "{}: {}", name, v);
      }
      bool throws = false;
      try {
        model->load_state_dict(state, {.strict = false});
      } catch (const Error& error) {
        throws = std::string(error.what()).find("before setup()") != std::string::npos;
      }
      WEFT_CHECK(throws, "load_state_dict() that is not strict");
    });
  }
}

TEST_CASE("trap: gradients of several backward passes add up under every strategy") {
  const Result one = train_ranks({.precision = "64-true"});
  std::vector<FabricOptions> all = every_strategy();
  all.push_back({.devices = 1});
  for (FabricOptions options : all) {
    options.precision = "64-true";
    for (Loop loop : {Loop::kTwice, Loop::kLocal, Loop::kRounds}) {
      INFO(options.strategy.name << " on " << options.devices.count << ", loop "
                                 << static_cast<int>(loop));
      const Result result = train_ranks(options, loop);
      CHECK(largest_difference(result, one) < 1e-12);
      REQUIRE(result.norms.size() == 3);
      for (int step = 0; step < 3; ++step) {
        CHECK(std::abs(result.norms[step] - one.norms[step]) < 1e-12);
      }
    }
  }
}

TEST_CASE("Fabric's precisions train on one rank and on several") {
  const Result exact = train_ranks({.precision = "32-true"});
  for (const std::string precision : {"16-mixed", "bf16-mixed", "16-true", "bf16-true"}) {
    for (const std::string strategy : {"single", "ddp", "fsdp", "zero2", "tp", "pipeline"}) {
      INFO(precision << " " << strategy);
      const int devices = strategy == "single" ? 1 : 2;
      const Result result =
          train_ranks({.devices = devices, .precision = precision, .strategy = {.name = strategy}});
      // 8 bits of bf16, and of 16-mixed's gradients none lost to the loss scale of 65536.
      CHECK(std::abs(result.losses[0] - exact.losses[0]) < 0.02 * exact.losses[0]);
      CHECK(std::abs(result.norms[0] - exact.norms[0]) < 0.05 * exact.norms[0]);
      CHECK(result.skipped == 0);
      const bool is_true = precision.ends_with("-true");
      const DType expected = !is_true ? DType::f32 : precision[0] == 'b' ? DType::bf16 : DType::f16;
      CHECK(result.state[0].second.dtype() == expected);
      CHECK(largest_difference(result, exact) > 0);
    }
  }
  CHECK_THROWS_WITH(Fabric({.precision = "17-mixed"}), Contains("precision: \"17-mixed\""));
  CHECK_THROWS_WITH(Fabric({.devices = 3, .strategy = {.name = "fsdp+tp"}}),
                    Contains("no mesh of 2"));
}

TEST_CASE("on CUDA devices every strategy has the weights of one CPU in f64") {
  CHECK_THROWS_WITH(Fabric({.device = "cuda:1", .devices = 2}),
                    "fabric: 2 devices, but device \"cuda:1\" is one of them; expected \"cuda\"");
  if (runtime::device_count() == 0) {
    CHECK_THROWS_WITH(train_ranks({.device = "cuda"}), Contains("device cuda:0 is not available"));
    WEFT_SKIP(runtime::no_device_reason().c_str());
  }
  const Result one = train_ranks({.precision = "64-true"});
  for (const FabricOptions& options :
       {FabricOptions{.devices = 1, .strategy = {.name = "single"}},
        {.devices = 3, .strategy = {.name = "dp"}},
        {.devices = 2, .strategy = {.name = "ddp"}},
        {.devices = 3, .strategy = {.name = "fsdp"}},
        {.devices = 2, .strategy = {.name = "fsdp", .cpu_offload = true}},
        {.devices = 4, .strategy = {.name = "zero1"}},
        {.devices = 2, .strategy = {.name = "zero2"}},
        {.devices = 2, .strategy = {.name = "zero3"}},
        {.devices = 4, .strategy = {.name = "hsdp"}},
        {.devices = 2, .strategy = {.name = "tp"}},
        {.devices = 4, .strategy = {.name = "fsdp+tp"}},
        {.devices = 3, .strategy = {.name = "pipeline"}}}) {
    FabricOptions there = options;
    there.device = "cuda";
    there.precision = "64-true";
    INFO(options.strategy.name << " on " << options.devices.count);
    const Result result = train_ranks(there);
    CHECK(largest_difference(result, one) < 1e-10);
    for (int step = 0; step < 3; ++step) {
      CHECK(std::abs(result.losses[step] - one.losses[step]) < 1e-10);
      CHECK(std::abs(result.norms[step] - one.norms[step]) < 1e-10);
    }
    there.precision = "16-mixed";
    CHECK(std::abs(train_ranks(there).losses[0] - one.losses[0]) < 0x1p-8 * one.losses[0]);
  }
}

TEST_CASE("trap: an infinite gradient of one rank makes all of them leave the step out") {
  for (const std::string strategy : {"ddp", "fsdp", "zero1", "pipeline"}) {
    dist::run_ranks(2, [&](dist::Communicator& c) {
      Fabric fabric({.devices = 2, .precision = "16-mixed", .strategy = {.name = strategy}});
      fabric.launch(borrowed(c));
      fabric.seed_everything(1);
      const auto model = make_model();
      optim::AdamW optimizer(model->named_parameters(), {.lr = 0.01});
      nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
      structure.segments = model->structure().segments;
      fabric.setup(*model, optimizer, structure);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        // The first step's gradients leave fp16's range behind the last layer, on one rank
        // alone where ranks have samples of their own.
        const bool overflows = step == 0 && (strategy == "pipeline" || c.rank() == 1);
        const Tensor logits = (*model)(Tensor::full({4, 6}, 1));
        fabric.backward(ops::sum(logits) * (overflows ? 1e6 : 1.0));
        const bool is_taken = optimizer.step();
        WEFT_CHECK(is_taken == (step == 1), "{}: step {} on rank {}", strategy, step, c.rank());
      }
    });
  }
}

TEST_CASE("trap: clipping by hand, in 16-mixed, means the gradients without their scale") {
  const Result exact = train_ranks({.precision = "32-true"});
  for (const std::string strategy : {"single", "ddp", "fsdp", "zero1", "tp"}) {
    const int devices = strategy == "single" ? 1 : 2;
    const Result plain =
        train_ranks({.devices = devices, .precision = "16-mixed", .strategy = {.name = strategy}});
    INFO(strategy);
    for (int step = 0; step < 3; ++step) {
      CHECK(std::abs(plain.norms[step] - exact.norms[step]) < 0.02 * exact.norms[step]);
    }
  }
  Fabric fabric({.precision = "16-mixed"});
  fabric.launch(nullptr);
  const auto model = make_model();
  optim::AdamW optimizer(model->named_parameters(), {});
  fabric.setup(*model, optimizer);
  fabric.backward(ops::mean((*model)(Tensor::full({4, 6}, 1))));
  const double scaled = optim::grad_norm_here(model->parameters());
  const double norm = optim::grad_norm(model->parameters());
  CHECK(norm * 65536 == Approx(scaled).epsilon(1e-6));
  optim::clip_grad_value(model->parameters(), 0.1);
  for (const Tensor& p : model->parameters()) {
    for (double g : p.grad().to_vector()) CHECK(std::abs(g) <= 0.1f);
  }
  CHECK(optimizer.step());
  // Of gradients that a step has used, further ones cannot be made under another scale.
  fabric.backward(ops::mean((*model)(Tensor::full({4, 6}, 1))));
  CHECK_THROWS_WITH(optimizer.step(), Contains("zero_grad() was not called since the last step()"));
  model->zero_grad();
  fabric.backward(ops::mean((*model)(Tensor::full({4, 6}, 1))));
  CHECK(optimizer.step());
}

TEST_CASE("trap: what cannot be led to the precision and the shards throws") {
  const Tensor x = Tensor::full({4, 6}, 1);
  dist::run_ranks(2, [&](dist::Communicator& c) {
    const auto model = make_model();
    optim::AdamW optimizer(model->named_parameters(), {});
    {
      Fabric fabric({.devices = 2, .strategy = {.name = "ddp"}});
      fabric.launch(borrowed(c));
      fabric.setup(*model, optimizer);
      const auto message = [](const auto& call) -> std::string {
        try {
          call();
        } catch (const Error& error) {
          return error.what();
        }
        return "";
      };
      const auto expect = [&](const std::string& part, const auto& call) {
        const std::string what = message(call);
        WEFT_CHECK(what.find(part) != std::string::npos, "expected \"{}\", got \"{}\"", part, what);
      };
      expect("was set up already", [&] { fabric.setup(*model, optimizer); });
      expect("before the optimizer is set up", [&] {
        optimizer.add_group({.parameters = {{"more", Tensor::zeros({2})}}});
      });
      {
        const auto local = fabric.no_backward_sync(*model);
        fabric.backward(ops::sum((*model)(x)));
      }
      expect("outside of no_backward_sync()", [&] { optimizer.step(); });
      expect("outside of no_backward_sync()",
             [&] { optim::clip_grad_norm(model->parameters(), 1.0); });
      Tensors mixed = model->parameters();
      mixed.push_back(Tensor::zeros({2}));
      expect("clip them apart", [&] { optim::clip_grad_norm(mixed, 1.0); });
      model->zero_grad();
      const auto other = make_model();
      optim::AdamW stranger(other->named_parameters(), {});
      expect("is of no model that was set up", [&] { fabric.setup_optimizer(stranger); });
      expect("of an optimizer that was not set up", [&] { fabric.step(stranger); });
      optim::AdamW beside(model->named_parameters(), {});
      expect("expected fabric.setup(model, optimizer)", [&] { beside.step(); });
      expect("expected fabric.setup(model, optimizer)", [&] { beside.zero_grad(); });
      expect("call fabric.backward(loss)", [&] { backward(ops::sum((*model)(x))); });
    }
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { (*model)(x); }, [&] { model->zero_grad(); }, [&] { optimizer.step(); },
             [&] { optimizer.zero_grad(); }}) {
      bool throws = false;
      try {
        call();
      } catch (const Error&) {
        throws = true;
      }
      WEFT_CHECK(throws, "a call after the Fabric's end");
    }
  });
}

TEST_CASE("two models and optimizers share one loss scale, whoever is first to overflow") {
  Fabric fabric({.precision = "16-mixed", .numerics = {.loss_scale = {.init_scale = 1024}}});
  fabric.launch(nullptr);
  const auto a = make_model(), b = make_model();
  optim::SGD first(a->named_parameters(), {.lr = 1}), second(b->named_parameters(), {.lr = 1});
  fabric.setup(*a, first);
  fabric.setup(*b, second);
  CHECK_THROWS_WITH(fabric.forward(Tensor::zeros({1, 6})), Contains("2 were set up"));
  const Tensor x = Tensor::full({4, 6}, 1);
  const auto weights = [&] {
    std::vector<double> all;
    for (const Tensor& p : b->parameters()) {
      for (double v : p.to_vector()) all.push_back(v);
    }
    return all;
  };
  const std::vector<double> begin = weights();
  // b's gradients wait, scaled by 1024, while a's overflow halves the scale.
  fabric.backward(ops::sum((*b)(x)));
  fabric.backward(ops::sum((*a)(x)) * 1e6);
  CHECK(!first.step());
  CHECK(first.was_skipped());
  CHECK(fabric.scaler().get_scale() == 512);
  CHECK(second.step());
  const std::vector<double> end = weights();

  Fabric plain({.precision = "16-mixed", .numerics = {.loss_scale = {.init_scale = 512}}});
  plain.launch(nullptr);
  size_t place = 0;
  const NoGrad guard;
  for (Tensor p : b->parameters()) {
    std::vector<float> values;
    for (int64_t i = 0; i < p.numel(); ++i) values.push_back(static_cast<float>(begin[place++]));
    ops::copy_(p, Tensor::from(values, p.shape()));
  }
  const GradMode records(true);
  const auto again = make_model();
  again->load_state_dict(b->state_dict());
  optim::SGD third(again->named_parameters(), {.lr = 1});
  plain.setup(*again, third);
  plain.backward(ops::sum((*again)(x)));
  third.step();
  place = 0;
  for (const Tensor& p : again->parameters()) {
    for (double v : p.to_vector()) CHECK(v == Approx(end[place++]).margin(1e-5));
  }
  // Clipped both before either steps: the scale waits for the second.
  first.zero_grad();
  second.zero_grad();
  fabric.backward(ops::sum((*a)(x)));
  fabric.backward(ops::sum((*b)(x)));
  optim::clip_grad_norm(a->parameters(), 1.0);
  optim::clip_grad_norm(b->parameters(), 1.0);
  CHECK_THROWS_WITH(fabric.backward(ops::sum((*a)(x))), Contains("before step()"));
  CHECK(first.step());
  CHECK(second.step());
}

TEST_CASE("a schedule counts steps, not rounds or skipped steps") {
  Fabric fabric({.precision = "16-mixed", .accumulate = 2});
  fabric.launch(nullptr);
  const auto model = make_model();
  optim::SGD optimizer(model->named_parameters(), {.lr = 1e-3});
  fabric.setup(*model, optimizer);
  optim::Scheduler scheduler(optimizer, optim::exponential(0.5));
  const auto round = [&](double factor) {
    const auto scope = fabric.accumulate(*model);
    fabric.backward(ops::mean((*model)(Tensor::full({4, 6}, 1))) * factor);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  };
  round(1);
  CHECK(scheduler.step_count() == 0);
  round(1);
  CHECK(scheduler.step_count() == 1);
  round(1e6);
  round(1);
  CHECK(scheduler.step_count() == 1);  // the step was skipped
  round(1);
  round(1);
  CHECK(scheduler.step_count() == 2);
  CHECK(optimizer.lr() == 0.25e-3);
}

TEST_CASE("all_gather has a gradient; gather_for_metrics has each sample once") {
  dist::run_ranks(3, [&](dist::Communicator& c) {
    Fabric fabric({.devices = 3, .strategy = {.name = "ddp"}});
    fabric.launch(borrowed(c));
    const double r = c.rank();
    const Tensor x = Tensor::full({2}, r + 1).set_requires_grad(true);
    // Rank r multiplies row s by 10 r + s: the gradient of x_s is the sum over the ranks.
    const Tensor factors =
        Tensor::from(std::vector<float>{static_cast<float>(10 * r), static_cast<float>(10 * r + 1),
                                        static_cast<float>(10 * r + 2)},
                     {3, 1});
    const Tensor all = fabric.all_gather(x);
    WEFT_CHECK(all.shape() == Shape({3, 2}), "{}", all);
    backward(ops::sum(all * factors));
    for (double g : x.grad().to_vector()) WEFT_CHECK(g == 30 + 3 * r, "{} on rank {}", g, r);

    // Five rows of a tensor on three ranks: 2, 2 and 1; then one row, with fillers on two ranks.
    struct Source {
      std::vector<Tensor> batches;
      size_t at = 0;
      std::optional<std::pair<Tensor, Tensor>> next() {
        if (at == batches.size()) {
          at = 0;
          return std::nullopt;
        }
        const Tensor& x = batches[at++];
        return std::pair(x, x * 2.0);
      }
    };
    Source source{{Tensor::from(std::vector<int64_t>{1, 2, 3, 4, 5}, {5}),
                   Tensor::from(std::vector<int64_t>{6}, {1})}};
    for (const bool splits : {true, false}) {
      Fabric shares({.devices = 3, .strategy = {.name = "ddp"}, .split_batches = splits});
      shares.launch(borrowed(c));
      auto loader = shares.share(source);
      for (int epoch = 0; epoch < 2; ++epoch) {
        std::vector<double> seen;
        int batches = 0;
        while (const auto batch = loader.next()) {
          WEFT_CHECK(batch->first.size(0) > 0, "an empty share");
          const Tensor whole = shares.gather_for_metrics(batch->second);
          for (double v : whole.to_vector()) seen.push_back(v / 2);
          ++batches;
        }
        WEFT_CHECK(seen == std::vector<double>({1, 2, 3, 4, 5, 6}) && batches == (splits ? 2 : 1),
                   "{} samples in {} batches", seen.size(), batches);
        // Behind the epoch there is no batch to have fillers, or to be the last.
        const Tensor rank = Tensor::full({1}, static_cast<double>(c.rank()));
        WEFT_CHECK(shares.gather_for_metrics(rank).to_vector() == std::vector<double>({0, 1, 2}),
                   "behind the epoch");
        WEFT_CHECK(!shares.latest_batch().is_last, "behind the epoch");
      }
    }
  });
}

TEST_CASE("trap: a validation in the midst of training leaves its rounds and its fillers alone") {
  struct Source {
    int64_t batches, rows, at = 0;
    std::optional<Tensor> next() {
      if (at == batches) {
        at = 0;
        return std::nullopt;
      }
      ++at;
      return Tensor::full({rows, 6}, static_cast<double>(at));
    }
  };
  for (const bool validates : {false, true}) {
    INFO("validates: " << validates);
    Fabric fabric({.accumulate = 3});
    fabric.launch(nullptr);
    const auto model = make_model();
    optim::SGD optimizer(model->named_parameters(), {.lr = 0.01});
    fabric.setup(*model, optimizer);
    Source data{8, 2}, others{2, 2};
    auto loader = fabric.share(data), validation = fabric.share(others);
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::string steps;
      while (const auto batch = loader.next()) {
        while (validates && validation.next()) {
        }
        CHECK(fabric.latest_batch().is_last == (steps.size() == 7));
        const auto round = fabric.accumulate(*model);
        fabric.backward(ops::mean((*model)(*batch)));
        steps += optimizer.step() ? 'S' : '.';
        optimizer.zero_grad();
      }
      CHECK(steps == "..S..S.S");
    }
  }
  // One row for two ranks: rank 1 has it as a filler.
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Fabric fabric({.devices = 2, .strategy = {.name = "ddp"}, .split_batches = true});
    fabric.launch(borrowed(c));
    Source data{1, 1}, others{1, 2};
    auto loader = fabric.share(data), validation = fabric.share(others);
    const auto batch = loader.next();
    while (const auto held_out = validation.next()) {
      WEFT_CHECK(fabric.gather_for_metrics(*held_out).size(0) == 2, "of the validation");
    }
    WEFT_CHECK(fabric.gather_for_metrics(*batch).size(0) == 1, "a filler counts");
  });
}

TEST_CASE("batches of different numbers of tensors are refused where they would be put together") {
  struct Source {
    int64_t tensors = 0;
    std::optional<Tensors> next() {
      if (tensors == 2) return std::nullopt;
      return Tensors(static_cast<size_t>(++tensors), Tensor::zeros({4}));
    }
  };
  Source source;
  SharedLoader<Source> loader(source, {.ranks = 3, .batches = 3});
  CHECK_THROWS_WITH(loader.next(), Contains("batches of 1 and 2 parts cannot be shared out"));
}

TEST_CASE("what is no tensor is put together and cut with the samples that it is of") {
  using Sample = std::tuple<Tensor, std::vector<std::string>, std::map<std::string, Tensor>,
                            std::vector<int64_t>, double>;
  struct Source {
    double last = 0.5;
    int64_t batch = 0;
    std::optional<Sample> next() {
      if (batch == 2) return std::nullopt;
      const int64_t begin = 4 * batch++;
      const int64_t end = batch == 2 ? 6 : 4;
      std::vector<std::string> names;
      for (int64_t i = begin; i < end; ++i) names.push_back(std::to_string(i));
      return Sample(ops::arange(begin, end), names, {{"y", ops::arange(begin, end)}},
                    {1, 2, 3, 4, 5, 6}, batch == 2 ? last : 0.5);
    }
  };
  for (int rank = 0; rank < 3; ++rank) {
    Source source;
    SharedLoader<Source> loader(source, {.ranks = 3, .rank = rank, .batches = 3});
    const auto [x, names, more, classes, rate] = *loader.next();
    const int64_t i = 2 * rank;
    CHECK(x.to_vector() == std::vector<double>{double(i), double(i + 1)});
    CHECK(names == std::vector{std::to_string(i), std::to_string(i + 1)});
    CHECK(more.at("y").to_vector() == x.to_vector());
    CHECK(classes == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
    CHECK(rate == 0.5);
  }
  Source source{.last = 0.25};
  SharedLoader<Source> loader(source, {.ranks = 3, .batches = 3});
  CHECK_THROWS_WITH(
      loader.next(),
      Contains("part 5 to have as many, or to be the same in both, got 0.5 and 0.25"));
}

TEST_CASE("the rows of a batch that is cut differ by one at most from rank to rank") {
  struct Source {
    int64_t rows;
    std::optional<Tensor> next() { return Tensor::zeros({rows}); }
  };
  for (const auto& [rows, sizes] : {std::pair(7, std::array<int64_t, 3>{3, 2, 2}),
                                    std::pair(4, std::array<int64_t, 3>{2, 1, 1})}) {
    for (int rank = 0; rank < 3; ++rank) {
      Source source{rows};
      SharedLoader<Source> loader(source, {.ranks = 3, .rank = rank});
      CHECK(loader.next()->size(0) == sizes[rank]);
    }
  }
}

TEST_CASE("an epoch's last batches are cut evenly where the last one is smaller") {
  struct Source {
    std::vector<int64_t> sizes;  // of an epoch's batches, whose rows are 0, 1, ...
    size_t batch = 0;
    int64_t row = 0;
    std::optional<Tensors> next() {
      if (batch == sizes.size()) return std::nullopt;
      const int64_t begin = row;
      row += sizes[batch++];
      return Tensors{ops::arange(begin, row)};
    }
  };
  const auto shares = [](const std::vector<int64_t>& sizes) {
    std::vector<std::vector<double>> all;
    for (int rank = 0; rank < 2; ++rank) {
      Source source{sizes};
      SharedLoader<Source> loader(source, {.ranks = 2, .rank = rank, .batches = 2});
      while (const auto batch = loader.next()) all.push_back(batch->at(0).to_vector());
    }
    return all;
  };
  using Rows = std::vector<std::vector<double>>;
  CHECK(shares({5, 1}) == Rows{{0, 1, 2}, {3, 4, 5}});
  CHECK(shares({2, 2, 2, 1}) == Rows{{0, 1}, {4, 5}, {2, 3}, {6}});
  CHECK(shares({3, 2}) == Rows{{0, 1, 2}, {3, 4}});
}

TEST_CASE("a loader is set up where it stands, and shares each of its samples once") {
  const data::DatasetPtr dataset = data::open_data("builtin", 1).validation;
  const int64_t size = std::min<int64_t>(dataset->size(), 1 << 20);
  dist::run_ranks(3, [&](dist::Communicator& c) {
    for (const bool splits : {true, false}) {
      Fabric fabric({.devices = 3, .strategy = {.name = "fsdp"}, .split_batches = splits});
      fabric.launch(borrowed(c));
      data::Loader loader(dataset, {.batch_size = 64, .preprocess = {.size = 8}});
      fabric.setup_dataloader(loader);
      const int64_t global = splits ? 64 : 192;
      WEFT_CHECK(loader.batches() == (size + global - 1) / global, "{}", loader.batches());
      int64_t samples = 0;
      while (const auto batch = loader.next()) {
        WEFT_CHECK(batch->size() > 0, "an empty share");
        samples += fabric.gather_for_metrics(batch->labels).numel();
      }
      WEFT_CHECK(!fabric.latest_batch().is_last && fabric.latest_batch().fillers == 0,
                 "behind the epoch");
      WEFT_CHECK(samples == size, "{} of {}", samples, size);
    }
  });
}

TEST_CASE("numbers of a saved state are read as they were written, in any locale") {
  const auto check = [] {
    for (const double value : {0.5, -1e-320, 1e300, -0.0, 0.1, HUGE_VAL, -HUGE_VAL}) {
      CHECK(exact_number(exact_text(value)) == value);
    }
    CHECK(std::isnan(exact_number(exact_text(NAN))));
    for (const char* wrong : {"", "0,5", "0.5 ", "x", "1e999"}) {
      CHECK_THROWS_WITH(exact_number(wrong), Contains("not a number"));
    }
  };
  check();
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"}) {
    if (!std::setlocale(LC_NUMERIC, name)) continue;
    check();
    std::setlocale(LC_NUMERIC, "C");
    return;
  }
  WEFT_SKIP("a locale whose numbers have a comma: there is none");
}

TEST_CASE("any named state is saved whole and taken up by another strategy") {
  const std::string path =
      std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") +
      "/state.safetensors";
  const Tensor x = Tensor::full({4, 6}, 1);
  const auto step = [&](Fabric& fabric, nn::Module& model, optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    fabric.backward(ops::sum(model(x) * model(x)));
    optimizer.step();
  };
  std::vector<double> expected;
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Fabric fabric({.devices = 2, .precision = "64-true", .strategy = {.name = "FSDP"}});
    fabric.launch(borrowed(c));
    fabric.seed_everything(3);
    const auto model = make_model();
    optim::AdamW optimizer(model->named_parameters(), {.lr = 0.01});
    fabric.setup(*model, optimizer);
    optim::Scheduler scheduler(optimizer, optim::exponential(0.5));
    step(fabric, *model, optimizer);
    scheduler.step();
    int64_t epoch = 7;
    double best = INFINITY;
    std::string text = "a \"note\"";
    Tensor mean = Tensor::full({3}, 2.5);
    nlohmann::json own = {{"k", {1, 2}}};
    NamedTensors some = {{"a.b", Tensor::full({2}, 0.5)}, {"c", Tensor::full({}, 4)}};
    fabric.save(path, {{"model", model.get()},
                       {"optimizer", &optimizer},
                       {"scheduler", &scheduler},
                       {"scaler", &fabric.scaler()},
                       {"epoch", &epoch},
                       {"best", &best},
                       {"text", &text},
                       {"mean", &mean},
                       {"some", &some},
                       {"own", &own}});
    step(fabric, *model, optimizer);
    const NamedTensors whole = fabric.strategy().model_state(*model);
    if (c.rank() != 0) return;
    for (const auto& [name, tensor] : whole) {
      for (double v : tensor.to_vector()) expected.push_back(v);
    }
  });
  Fabric fabric({.precision = "64-true"});
  fabric.launch(nullptr);
  const auto model = make_model();
  optim::AdamW optimizer(model->named_parameters(), {.lr = 1});
  fabric.setup(*model, optimizer);
  optim::Scheduler scheduler(optimizer, optim::exponential(0.5));
  int64_t epoch = 0;
  double best = 0;
  std::string text;
  Tensor mean = Tensor::zeros({3});
  NamedTensors some;
  const std::vector<std::string> left = fabric.load(path, {{"model", model.get()},
                                                           {"optimizer", &optimizer},
                                                           {"scheduler", &scheduler},
                                                           {"epoch", &epoch},
                                                           {"best", &best},
                                                           {"text", &text},
                                                           {"mean", &mean},
                                                           {"some", &some}});
  CHECK(left == std::vector<std::string>{"own", "scaler"});
  CHECK(epoch == 7);
  CHECK(best == INFINITY);
  CHECK(text == "a \"note\"");
  CHECK(mean.to_vector() == std::vector<double>{2.5, 2.5, 2.5});
  REQUIRE(some.size() == 2);
  CHECK(some[0].first == "a.b");
  CHECK(some[0].second.to_vector() == std::vector<double>{0.5, 0.5});
  CHECK(some[1].second.item() == 4);
  CHECK(scheduler.step_count() == 1);
  step(fabric, *model, optimizer);
  size_t place = 0;
  for (const auto& [name, tensor] : model->state_dict()) {
    for (double v : tensor.to_vector()) CHECK(std::abs(v - expected.at(place++)) < 1e-12);
  }
  CHECK_THROWS_WITH(fabric.load(path, {{"nothing", &epoch}}),
                    Contains("holds no state \"nothing\""));
  CHECK_THROWS_WITH(fabric.load(path, {{"text", &epoch}}),
                    Contains("\"text\" is of kind text, expected integer"));
  CHECK_THROWS_WITH(fabric.save(path, {{"a", &epoch}, {"a", &best}}), Contains("two states"));
  CHECK_THROWS_WITH(fabric.save(path, {{"a.b", &epoch}}), Contains("dots"));
  CHECK(epoch == 7);
  text.clear();
  const Fabric::StateKinds expected_kinds = {{"model", "model"},         {"optimizer", "optimizer"},
                                             {"scheduler", "scheduler"}, {"scaler", "scaler"},
                                             {"epoch", "integer"},       {"best", "number"},
                                             {"text", "text"},           {"mean", "tensor"},
                                             {"some", "tensors"},        {"own", "json"}};
  fabric.load_by_kinds(path, [&](const Fabric::StateKinds& kinds) {
    CHECK(kinds == expected_kinds);
    return std::vector<NamedState>{{"text", &text}};
  });
  CHECK(text == "a \"note\"");
}

TEST_CASE("a state with a key left out, one too many, or a value of another type") {
  const std::string path =
      std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") +
      "/damaged.safetensors";
  Fabric fabric({.precision = "16-mixed"});
  fabric.launch(nullptr);
  const auto model = make_model();
  optim::AdamW optimizer(model->named_parameters(), {.lr = 1});
  fabric.setup(*model, optimizer);
  optim::Scheduler scheduler(optimizer, optim::exponential(0.5));
  int64_t epoch = 7;
  double best = 0.5;
  std::string text = "note";
  const std::vector<NamedState> states = {{"model", model.get()},
                                          {"optimizer", &optimizer},
                                          {"scheduler", &scheduler},
                                          {"scaler", &fabric.scaler()},
                                          {"epoch", &epoch},
                                          {"best", &best},
                                          {"text", &text}};
  fabric.save(path, states);
  const io::SafeTensors saved = io::read_safetensors(path);
  const nlohmann::json whole = nlohmann::json::parse(saved.metadata.at("weft.state"));
  int errors = 0;
  for_each_damage(whole, [&](const nlohmann::json& damaged, const std::string& key) {
    io::Metadata metadata = saved.metadata;
    metadata["weft.state"] = damaged.dump();
    io::write_safetensors(path, saved.tensors, metadata);
    INFO(damaged.dump());
    std::string message = path;
    try {
      fabric.load(path, states);
    } catch (const Error& error) {
      ++errors;
      message = error.what();
      // The state's name stands for its value, and lists that are too short are told otherwise.
      const bool has_key = key != "value" && key != "parameters" && key != "base_lr";
      CHECK_THAT(message, Contains(has_key ? key : ""));
    }
    CHECK_THAT(message, Contains(path));
  });
  CHECK(errors > 100);
  constexpr size_t kDeep = 200000;
  const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
  io::Metadata nested = saved.metadata;
  nested["weft.state"] = R"({"text": {"kind": "json", "value": )" + deep + "}}";
  io::write_safetensors(path, saved.tensors, nested);
  CHECK_THROWS_WITH(fabric.load(path, states),
                    Contains(path + ": weft.state: JSON nested more than 32 deep"));
  nlohmann::json own;
  for (int i = 0; i < 40; ++i) own = nlohmann::json::array({own});
  CHECK_THROWS_WITH(fabric.save(path, {{"own", &own}}), Contains("nested more than 32 deep"));
  fabric.save(path, states);
  for (uintmax_t size = std::filesystem::file_size(path); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    CHECK_THROWS_WITH(fabric.load(path, states), Contains(path));
  }
}

TEST_CASE("figures go to every logger, and hooks are called where they are") {
  struct Remember : Logger {
    void begin(int64_t step) override { said += fmt::format("begin {};", step); }
    void log_metrics(int64_t step, const NamedValues& values) override {
      for (const auto& [name, value] : values) said += fmt::format("{} {} {};", step, name, value);
    }
    void finish() override { said += "finish"; }
    std::string said;
  };
  struct Epochs : FabricCallback {
    void on_epoch_end(int64_t epoch) { last = epoch; }
    int64_t last = -1;
  };
  struct Other : FabricCallback {};
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string directory = std::string(folder ? folder : "/tmp") + "/logged";
  std::filesystem::remove_all(directory);
  const auto remember = std::make_shared<Remember>();
  const auto epochs = std::make_shared<Epochs>();
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Fabric fabric({.devices = 2,
                   .loggers = {remember, std::make_shared<MetricsLogger>(directory)},
                   .callbacks = {std::make_shared<Other>(), epochs}});
    fabric.launch(borrowed(c));
    fabric.log("loss", 0.5, 1);
    fabric.log_dict({{"loss", 0.25}, {"lr", 2}}, 2);
    if (c.rank() == 0) fabric.call(&Epochs::on_epoch_end, 7);
    fabric.barrier();
  });
  CHECK(remember->said == "begin 1;1 loss 0.5;2 loss 0.25;2 lr 2;finish");
  CHECK(epochs->last == 7);
  CHECK(io::read_text(directory + "/metrics.jsonl") ==
        "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25,\"lr\":2.0}\n");

  Fabric fabric({.loggers = {std::make_shared<MetricsLogger>(directory + "/metrics.csv/below")}});
  fabric.launch(nullptr);
  CHECK_THROWS_WITH(fabric.log("loss", 1, 1), Contains("metrics.csv"));
}

TEST_CASE("devices and strategies by the names of others") {
  CHECK(Devices("auto").on(Device{}) == 1);
  CHECK(Devices(-1).on(Device{}) == 1);
  CHECK(Devices("3").on(Device{}) == 3);
  CHECK(Devices("0,2").numbers == std::vector<int>{0, 2});
  CHECK(Devices("0,2").on(parse_device("cuda")) == 2);
  CHECK(Devices("0,2").of_rank(parse_device("cuda"), 1).index == 2);
  CHECK_THROWS_WITH(Devices("many"), Contains("devices: expected a number"));
  const auto refused = [](const std::string& got) {
    return Contains("devices: expected a positive number, \"auto\" or -1, got " + got);
  };
  CHECK_THROWS_WITH(Devices(0), refused("0"));
  CHECK_THROWS_WITH(Devices("0"), refused("0"));
  CHECK_THROWS_WITH(Devices(-2), refused("-2"));
  CHECK_THROWS_WITH(Devices("1,1"), Contains("listed twice"));
  CHECK_THROWS_WITH(Devices("0,1").on(Device{}), Contains("a list of numbers is one of GPUs"));
  for (const auto& [theirs, ours] : {std::pair("FSDP", "fsdp"),
                                     {"deepspeed_stage_3", "zero3"},
                                     {"DEEPSPEED", "zero2"},
                                     {"MULTI_GPU", "ddp"},
                                     {"HYBRID_SHARD", "hsdp"},
                                     {"Zero-1", "zero1"},
                                     {"auto", "auto"}}) {
    CHECK(dist::named_here({.name = theirs}).name == ours);
  }
  CHECK(dist::named_here({.name = "deepspeed_stage_3_offload"}).cpu_offload);
  CHECK(dist::named_here({.name = "SHARD_GRAD_OP"}).shard_grad_op);
  CHECK(dist::named_here({.name = "ddp_find_unused_parameters_true"}).find_unused);
  CHECK_THROWS_WITH(Fabric({.devices = 2, .strategy = {.name = "fdsp"}}),
                    Contains("did you mean \"fsdp\"?"));
  CHECK_THROWS_WITH(Fabric({.devices = 2, .strategy = {.name = "ddp", .wrap = "Linear"}}),
                    Contains("wrap is a setting of"));
  CHECK_THROWS_WITH(Fabric({.devices = 2, .strategy = {.name = "fsdp", .param_dtype = "int8"}}),
                    Contains("param-dtype: expected bf16, fp16 or fp32"));
}

TEST_CASE("what the environment says is read, or named") {
  const auto read = [](const char* name, const char* value) {
    ::setenv(name, value, 1);
    const std::shared_ptr<void> cleared(nullptr, [name](void*) { ::unsetenv(name); });
    return from_environment({.devices = 3, .num_nodes = 2});
  };
  CHECK(read("WEFT_DEVICES", "4").devices.count == 4);
  CHECK(read("WEFT_NUM_NODES", "5").num_nodes == 5);
  CHECK(read("WEFT_PRECISION", "bf16-mixed").devices.count == 3);
  CHECK_THROWS_WITH(read("WEFT_DEVICES", "0"),
                    "WEFT_DEVICES: devices: expected a positive number, \"auto\" or -1, got 0");
  for (const char* nodes : {"x", "0", "-1", "auto", "0,2"}) {
    CHECK_THROWS_WITH(
        read("WEFT_NUM_NODES", nodes),
        fmt::format("WEFT_NUM_NODES: expected a number from 1 to 65536, got \"{}\"", nodes));
  }
}

TEST_CASE("figures without a step are counted") {
  struct Steps : Logger {
    void log_metrics(int64_t step, const NamedValues&) override { seen.push_back(step); }
    std::vector<int64_t> seen;
  };
  const auto steps = std::make_shared<Steps>();
  Fabric fabric({.loggers = {steps}});
  fabric.launch(nullptr);
  fabric.log("loss", 1);
  fabric.log_dict({{"loss", 1}, {"lr", 2}});
  fabric.log("loss", 1, 7);
  fabric.log("loss", 1);
  CHECK(steps->seen == std::vector<int64_t>{0, 1, 7, 8});
}

TEST_CASE("a loader that knows of the ranks stays whole; of a number there is one a rank") {
  struct Source {
    double value;
    int64_t batches = 2;
    std::optional<Tensor> next() {
      return batches-- > 0 ? std::optional(Tensor::full({2}, value)) : std::nullopt;
    }
  };
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Fabric fabric({.devices = 2, .strategy = {.name = "ddp"}});
    fabric.launch(borrowed(c));
    const double rank = c.rank();
    Source source{rank};
    auto loader = fabric.share(source, false);
    for (const bool is_last : {false, true}) {
      const auto batch = loader.next();
      WEFT_CHECK(batch && batch->to_vector() == std::vector<double>({rank, rank}), "not its own");
      WEFT_CHECK(fabric.latest_batch().is_last == is_last, "the wrong one is the last");
      WEFT_CHECK(fabric.gather_for_metrics(*batch).to_vector() == std::vector<double>({0, 0, 1, 1}),
                 "rows");
    }
    WEFT_CHECK(!loader.next(), "a third batch");
    const Tensor numbers = fabric.gather_for_metrics(rank + 0.1);
    WEFT_CHECK(numbers.to_vector() == std::vector<double>({0.1, 1.1}), "numbers");
    const data::DatasetPtr dataset = data::open_data("builtin", 1).validation;
    data::Loader whole(dataset, {.batch_size = 64, .preprocess = {.size = 8}});
    const int64_t batches = whole.batches();
    fabric.setup_dataloader(whole, false);
    WEFT_CHECK(whole.batches() == batches && whole.next()->size() == 64, "a part of it");
  });
}
