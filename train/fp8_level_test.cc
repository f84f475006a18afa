// What the levels of fp8 keep and send, counted, and what they leave of the numbers.
#include "train/fp8_level.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <span>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/resting.h"
#include "core/memory_account.h"
#include "dist/comm/in_process.h"
#include "nn/layers.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/muon.h"
#include "train/fabric.h"

namespace weft::train {
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kWidth = 96;

/// Attention, a pair of linear layers, and a normalisation between them.
class Net : public nn::Module {
 public:
  Net()
      : attention(add<nn::MultiheadAttention>("attention", kWidth, 2)),
        norm(add<nn::LayerNorm>("norm", kWidth)),
        fc1(add<nn::Linear>("fc1", kWidth, 2 * kWidth)),
        fc2(add<nn::Linear>("fc2", 2 * kWidth, kWidth)) {}
  Tensor forward(const Tensor& x) override {
    const Tensor y = x + attention(x);
    return y + fc2(fc1.forward_gelu(norm(y)));
  }
  nn::MultiheadAttention& attention;
  nn::LayerNorm& norm;
  nn::Linear &fc1, &fc2;
};

constexpr int64_t kMatrices = 8 * kWidth * kWidth;          // 3 + 1 of attention, 2 + 2
constexpr int64_t kVectors = (3 + 1 + 2 + 2 + 1) * kWidth;  // biases, and of the normalisation
constexpr int64_t kLargest = 3 * kWidth * kWidth;

struct Counted {
  int64_t parameters = 0, gradients = 0, optimizer = 0;  // bytes between two steps
  int64_t gathered_peak = 0;                             // bytes in a step
  int64_t sent = 0;                                      // bytes in a step, of the first rank
  std::vector<double> weights;                           // that the optimizer updates
  std::vector<double> gradient;  // of the first step; under O3 it is its owner's
  double norm = 0;               // of all gradients, in the first step
};

constexpr double kLr = 1e-2, kLongest = 0.5;  // of the optimizer; norm that is clipped to

/// Rounds a matrix to multiples of 2^-14 of which the largest is 1.75 * 2^-4. These are numbers of
/// f16, and e4m3's largest, 448, is a power of two of it: so fp8's own scale of the matrix is that
/// which it rests under in O3, and products see one and the same matrix in all levels.
void make_alike_in_all_levels(const Tensor& matrix) {
  const std::span<float> x(matrix.data<float>(), static_cast<size_t>(matrix.numel()));
  const auto largest = std::ranges::max_element(x, {}, [](float v) { return std::abs(v); });
  const double factor = 1.75 * 0x1p-4 / std::abs(*largest);
  for (float& v : x) v = static_cast<float>(std::round(v * factor * 0x1p14) * 0x1p-14);
}

/// The last of some steps of some ranks on samples of their own; rank 0's.
Counted run_steps(const std::string& level, int ranks = 1, int64_t rounds = 1, int steps = 3) {
  Counted result;
  const auto train = [&](dist::Communicator* world) {
    MemoryAccount account;
    const MemoryAccount::Joined joined(account);
    Fabric fabric({.devices = ranks,
                   .precision = "fp8",
                   .numerics = {.fp8_level = level},
                   .accumulate = rounds});
    fabric.launch(world ? dist::CommunicatorPtr(world, [](dist::Communicator*) {}) : nullptr);
    fabric.seed_everything(3);
    std::unique_ptr<Net> net;
    {
      const MemoryScope scope(MemoryKind::kParameters);
      net = std::make_unique<Net>();
    }
    for (const auto& [name, parameter] : net->named_parameters()) {
      if (parameter.dim() == 2) make_alike_in_all_levels(parameter);
    }
    optim::AdamW optimizer(net->named_parameters(), {.lr = kLr});
    fabric.setup(*net, optimizer);
    int64_t before = 0;
    Counted mine;
    for (int step = 0; step < steps; ++step) {
      if (world) before = world->family_traffic().sent;
      account.reset_peak();
      for (int64_t round = 0; round < rounds; ++round) {
        const std::shared_ptr<void> part = rounds > 1 ? fabric.accumulate(*net) : nullptr;
        const Tensor x = ops::randn({4, 3, kWidth});
        optimizer.zero_grad();
        fabric.backward(ops::mean(ops::square((*net)(x)-1.0)));
        const double norm = optim::grad_norm(net->parameters());
        const Tensor gradient = net->fc1.weight.grad();
        if (step == 0) mine.norm = norm;
        if (step == 0 && gradient.defined()) mine.gradient = gradient.to_vector();
        optimizer.step(optim::clip_coefficient(norm, kLongest));
      }
    }
    mine.parameters = account.bytes(MemoryKind::kParameters).live;
    mine.gradients = account.bytes(MemoryKind::kGradients).live;
    mine.optimizer = account.bytes(MemoryKind::kOptimizer).live;
    mine.gathered_peak = account.bytes(MemoryKind::kGathered).peak;
    mine.sent = world ? world->family_traffic().sent - before : 0;
    for (const auto& [name, tensor] : fabric.strategy().model_state(*net)) {
      if (name == "fc1.weight") mine.weights = tensor.to_vector();
    }
    const std::vector<double> seen = net->fc1.weight.to_vector();
    if (!world || world->rank() == 0) {
      result = mine;
      const Tensor updated = Tensor::from(mine.weights, net->fc1.weight.shape());
      const Tensor in_layers = ops::cast(updated, DType::f32);
      if (level == "O3") rest_in(DType::f8e4m3, in_layers);
      CHECK(in_layers.to_vector() == seen);
    }
    if (!world) return;
    // Every rank has what rank 0 has.
    const Tensor weight = ops::clone(detach(net->fc1.weight));
    world->broadcast(weight, 0).wait();
    CHECK(weight.to_vector() == seen);
  };
  if (ranks == 1) {
    train(nullptr);
  } else {
    dist::run_ranks(ranks, [&](dist::Communicator& world) { train(&world); });
  }
  return result;
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("a matrix's element takes 13 bytes in O1, 6 in O2, 7 in O3 alone") {
  const Counted none = run_steps(""), o1 = run_steps("O1"), o2 = run_steps("O2");
  const Counted o3 = run_steps("O3");
  CHECK(none.parameters == 4 * (kMatrices + kVectors));
  CHECK(none.optimizer == 8 * (kMatrices + kVectors));
  CHECK(o1.parameters == 4 * (kMatrices + kVectors));
  CHECK(o1.gradients == kMatrices + 4 * kVectors);
  CHECK(o1.optimizer == 8 * (kMatrices + kVectors));
  CHECK(o2.parameters == 2 * kMatrices + 4 * kVectors);
  CHECK(o2.gradients == kMatrices + 4 * kVectors);
  CHECK(o2.optimizer == 3 * kMatrices + 8 * kVectors);
  CHECK(o3.parameters == kMatrices + 4 * kVectors);
  CHECK(o3.gradients == kMatrices + 4 * kVectors);
  CHECK(o3.optimizer == (2 + 3) * kMatrices + 8 * kVectors);
  // In f32 at a time: a weight, its gradient and its moments. Scalars come on top.
  CHECK(o1.gathered_peak <= 4 * kLargest + 16);
  CHECK(o2.gathered_peak <= 16 * kLargest + 16);
  CHECK(o3.gathered_peak <= 16 * kLargest + 16);

  // Later steps see weights and moments that each level has rounded otherwise.
  CHECK(o1.weights != none.weights);
  CHECK(o2.weights != o1.weights);
  CHECK(o3.weights != o2.weights);
}

TEST_CASE("a first step is that of fp8, with what the level keeps rounded") {
  const int ranks = GENERATE(1, 2, 3);
  const Counted none = run_steps("", ranks, 1, 1), o1 = run_steps("O1", ranks, 1, 1);
  const Counted o2 = run_steps("O2", ranks, 1, 1), o3 = run_steps("O3", ranks, 1, 1);
  // A code of e4m3 has 4 bits. Each rank's gradients are rounded, and their sum.
  CHECK(relative_distance(o1.gradient, none.gradient) < (ranks > 1 ? 2 : 1) * 0x1p-4);
  CHECK(o2.gradient == o1.gradient);
  CHECK(o2.norm == o1.norm);
  CHECK(o3.norm == Approx(o2.norm).epsilon(1e-12));  // its gradients are their owners'

  // Adam's first update is lr g / (|g| + eps): that of the exact gradient, where rounding it leaves
  // a number of its sign.
  const double coefficient = std::min(1.0, kLongest / none.norm);
  size_t compared = 0;
  for (size_t i = 0; i < none.weights.size(); ++i) {
    const double exact = none.gradient[i], rounded = o1.gradient[i];
    if (exact * rounded <= 0) continue;
    ++compared;
    const double smaller = coefficient * std::min(std::abs(exact), std::abs(rounded));
    // What eps takes off, in f32's arithmetic; clipping differs with the norms.
    const double bound = 2 * kLr * 1e-8 / (smaller / 2) + 8 * 0x1p-24 * (0.125 + kLr);
    if (std::abs(o1.weights[i] - none.weights[i]) > bound) {
      FAIL_CHECK(i << ": " << o1.weights[i] << " and " << none.weights[i] << ", bound " << bound);
    }
  }
  CHECK(compared > none.weights.size() * 9 / 10);

  // O2 keeps the same weights in f16, and O3 keeps those for their owner.
  const Tensor weights = ops::cast(Tensor::from(o1.weights, {2 * kWidth, kWidth}), DType::f32);
  rest_in(DType::f16, weights);
  CHECK(o2.weights == weights.to_vector());
  CHECK(o3.weights == o2.weights);
}

TEST_CASE("in O3 each rank keeps the masters and moments of its own matrices") {
  // The largest first, to whoever has least: 3 + 1 and 2 + 2, or 3, 2 + 1 and 2.
  const int ranks = GENERATE(2, 3);
  const int64_t square = kWidth * kWidth, most = ranks == 2 ? 4 * square : 3 * square;
  const Counted o3 = run_steps("O3", ranks);
  CHECK(o3.parameters == kMatrices + 4 * kVectors);
  CHECK(o3.gradients == most + 4 * kVectors);
  CHECK(o3.optimizer == (2 + 3) * most + 8 * kVectors);
  CHECK(o3.gathered_peak <= 16 * kLargest + 16);
  // Codes of gradients to their owners, and of weights to all, filled up to the longest share.
  const int64_t rest = o3.sent - 2 * (ranks - 1) * most;
  CHECK(rest > 0);
  CHECK(rest <= 2 * 4 * (kVectors + 2 * 4 + 64));
}

TEST_CASE("gradients travel in a quarter of the bytes, with an exponent for each matrix") {
  const int ranks = GENERATE(2, 3);
  const Counted none = run_steps("", ranks), o1 = run_steps("O1", ranks);
  const Counted o2 = run_steps("O2", ranks);
  // Of each element a rank sends its part twice; the last part may be filled up.
  const int64_t codes = 2 * (ranks - 1) * ((kMatrices + ranks - 1) / ranks);
  const int64_t rest = o1.sent - codes;
  CHECK(rest > 0);
  CHECK(rest <= 2 * 4 * (kVectors + 4 + 64));
  CHECK(o2.sent == o1.sent);
  CHECK(o1.sent < 0.27 * static_cast<double>(none.sent));
}

TEST_CASE("gradients of several rounds add up in fp8") {
  const int ranks = GENERATE(1, 2);
  const Counted none = run_steps("", ranks, 3), o2 = run_steps("O2", ranks, 3);
  CHECK(o2.gradients == kMatrices + 4 * kVectors);
  CHECK(relative_distance(o2.gradient, none.gradient) < 4 * 0x1p-4);  // rounded in each
  const Counted o3 = run_steps("O3", ranks, 3);
  CHECK(o3.gradients == kMatrices / ranks + 4 * kVectors);
  CHECK(o3.norm == Approx(none.norm).epsilon(4 * 0x1p-4));
}

TEST_CASE("a state in few bits is saved, and goes on as if it had not been") {
  const auto row = GENERATE(table<std::string, int, std::string>({{"O2", 1, "full"},
                                                                  {"O3", 1, "full"},
                                                                  {"O3", 1, "sharded"},
                                                                  {"O3", 2, "full"},
                                                                  {"O3", 3, "sharded"}}));
  const std::string &level = std::get<0>(row), &kind = std::get<2>(row);
  const int ranks = std::get<1>(row);
  const char* const directory = std::getenv("TEST_TMPDIR");
  const std::string path =
      fmt::format("{}/low_bits_{}_{}_{}", directory ? directory : "/tmp", level, ranks, kind);
  const auto train = [&](dist::Communicator* world, int first, int last) {
    Fabric fabric({.devices = ranks,
                   .precision = "fp8",
                   .numerics = {.fp8_level = level},
                   .state_dict_type = kind});
    fabric.launch(world ? dist::CommunicatorPtr(world, [](dist::Communicator*) {}) : nullptr);
    fabric.seed_everything(1);
    Net net;
    optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-2});
    fabric.setup(net, optimizer);
    const std::vector<NamedState> states = {{"model", &net}, {"optimizer", &optimizer}};
    if (first > 0) fabric.load(path, states);
    for (int step = first; step < last; ++step) {
      fabric.seed_everything(100 + step);
      optimizer.zero_grad();
      fabric.backward(ops::mean(ops::square(net(ops::randn({2, 3, kWidth})) - 1.0)));
      optimizer.step();
      if (step == 1) fabric.save(path, states);
    }
    fabric.wait_for_save();
    return net.fc2.weight.to_vector();
  };
  const auto train_ranks = [&](int first, int last) {
    std::vector<double> weights;
    if (ranks == 1) return train(nullptr, first, last);
    dist::run_ranks(ranks, [&](dist::Communicator& world) {
      const std::vector<double> mine = train(&world, first, last);
      if (world.rank() == 0) weights = mine;
    });
    return weights;
  };
  const std::vector<double> at_once = train_ranks(0, 4);
  CHECK(train_ranks(2, 4) == at_once);
}

TEST_CASE("a matrix that is changed in place in O3, where that would be lost, is an error") {
  Fabric fabric({.precision = "fp8", .numerics = {.fp8_level = "O3"}});
  fabric.launch(nullptr);
  Net net;
  optim::AdamW optimizer(net.named_parameters());
  fabric.setup(net, optimizer);
  const auto take_step = [&](bool changes) {
    optimizer.zero_grad();
    fabric.backward(ops::mean(ops::square(net(Tensor::full({4, 3, kWidth}, 0.5)))));
    if (changes) {
      const NoGrad guard;
      ops::zero_(net.fc1.weight);
    }
    optimizer.step();
  };
  take_step(false);
  CHECK_THROWS_WITH(take_step(true), Contains("\"fc1.weight\" was changed in place where it is"));
  NamedTensors state = net.state_dict();
  for (auto& [name, tensor] : state) {
    if (name == "fc1.weight") tensor = Tensor::zeros(tensor.shape());
  }
  net.load_state_dict(state);
  CHECK_NOTHROW(take_step(false));
}

TEST_CASE("what O3 has saved are the masters, for any other run") {
  const char* const directory = std::getenv("TEST_TMPDIR");
  const std::string file = std::string(directory ? directory : "/tmp") + "/masters.safetensors";
  std::vector<double> master, in_layers, loaded;
  dist::run_ranks(2, [&](dist::Communicator& world) {
    Fabric fabric({.devices = 2, .precision = "fp8", .numerics = {.fp8_level = "O3"}});
    fabric.launch(dist::CommunicatorPtr(&world, [](dist::Communicator*) {}));
    manual_seed(1);
    Net net;
    optim::AdamW optimizer(net.named_parameters());
    if (world.rank() == 0) master = net.fc1.weight.to_vector();
    fabric.setup(net, optimizer);
    fabric.save(file);
    if (world.rank() == 0) in_layers = net.fc1.weight.to_vector();
  });
  Fabric fabric({.precision = "32-true"});
  fabric.launch(nullptr);
  Net net;
  optim::AdamW optimizer(net.named_parameters());
  fabric.setup(net, optimizer);
  fabric.load(file);
  loaded = net.fc1.weight.to_vector();
  CHECK(relative_distance(loaded, master) < 0x1p-11);  // of f16
  CHECK(relative_distance(in_layers, master) > 0x1p-7);
}

TEST_CASE("levels go with fp8, one device or ddp, and Adam") {
  const auto fabric = [](const std::string& level, const std::string& precision = "fp8",
                         const std::string& strategy = "auto") {
    Fabric fabric(
        {.precision = precision, .strategy = {.name = strategy}, .numerics = {.fp8_level = level}});
    fabric.launch(nullptr);
    Net net;
    optim::Muon muon(net.named_parameters());
    fabric.setup(net, muon);
  };
  CHECK_NOTHROW(fabric("O1"));
  CHECK_THROWS_WITH(fabric("O2"), Contains("O2: keeps Adam's moments in few bits; Muon"));
  CHECK_THROWS_WITH(fabric("O3"), Contains("O3: keeps Adam's moments in few bits; Muon"));
  CHECK_THROWS_WITH(fabric("O4"), Contains("expected O1, O2 or O3, got \"O4\""));
  CHECK_THROWS_WITH(fabric("O1", "bf16"), Contains("O1 is of precision fp8, not of bf16"));
  CHECK_THROWS_WITH(fabric("O1", "fp8", "fsdp"),
                    Contains("O1 is of strategies single, ddp, not of fsdp"));
  const auto check = [](const std::string& level, const dist::StrategyOptions& strategy) {
    check_fp8_level(level, find_precision("fp8"), strategy, 2);
  };
  for (const char* name : {"auto", "ddp", "zero1", "zero2"}) CHECK_NOTHROW(check("O3", {name}));
  CHECK_THROWS_WITH(check("O3", {"zero3"}),
                    Contains("O3 is of strategies single, ddp, zero1, zero2, not of zero3"));
  CHECK_THROWS_WITH(check("O2", {"zero2"}), Contains("O2 is of strategies single, ddp, not of"));
  CHECK_THROWS_WITH(check("O3", {.name = "zero2", .offload_optimizer = true}),
                    Contains("O3 says what is kept and sent; expected no offload-optimizer"));
  CHECK_THROWS_WITH(check("O1", {.name = "ddp", .compress_dtype = "bf16"}),
                    Contains("expected no compress-dtype, got bf16"));
}

}  // namespace weft::train
