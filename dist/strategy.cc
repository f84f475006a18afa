#include "dist/strategy.h"

#include <fmt/format.h>

#include <algorithm>

#include "dist/ddp.h"
#include "dist/device_mesh.h"
#include "dist/exact_sum.h"
#include "dist/in_process.h"
#include "optim/clip.h"

namespace weft::dist {
namespace {

std::string megabytes(double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); }

class Single : public Strategy {
 public:
  void wrap(nn::Module&, const WrapPolicy&) override {}
  double grad_norm(const Tensors& parameters) override { return optim::grad_norm(parameters); }
  std::string describe(int64_t parameters) const override {
    return fmt::format("single: 16 P = {}", megabytes(16.0 * static_cast<double>(parameters)));
  }
};

class Ddp : public Strategy {
 public:
  explicit Ddp(CommunicatorPtr world) : world_(std::move(world)) {}

  void wrap(nn::Module& module, const WrapPolicy&) override {
    ddp_ = std::make_unique<DistributedDataParallel>(
        module, world_, DdpOptions{.average = ReduceOp::kSum, .gradient_as_bucket_view = true});
  }
  Tensor forward(nn::Module&, const Tensor& x) override { return (*ddp_)(x); }
  std::shared_ptr<void> no_sync() override {
    return std::shared_ptr<void>(new DistributedDataParallel::NoSync(*ddp_), [](void* guard) {
      delete static_cast<DistributedDataParallel::NoSync*>(guard);
    });
  }
  double grad_norm(const Tensors& parameters) override {
    Tensors gradients;
    for (const Tensor& p : parameters) {
      if (p.grad().defined()) gradients.push_back(p.grad());
    }
    return exact_norm(gradients, nullptr);
  }
  std::string describe(int64_t parameters) const override {
    const double p = static_cast<double>(parameters);
    return fmt::format("ddp on {} ranks: 16 P = {} on each, {} sent by each in a step",
                       world_->size(), megabytes(16 * p),
                       megabytes(2.0 * (world_->size() - 1) / world_->size() * 4 * p));
  }
  int64_t padded_elements() const override {
    return ddp_->bucket_bytes() / static_cast<int64_t>(itemsize(DType::f32));
  }

 private:
  const CommunicatorPtr world_;
  std::unique_ptr<DistributedDataParallel> ddp_;
};

class Sharded : public Strategy {
 public:
  Sharded(std::string name, Sharding sharding, CommunicatorPtr shard, CommunicatorPtr replicate)
      : name_(std::move(name)),
        options_{.shard = std::move(shard),
                 .replicate = std::move(replicate),
                 .sharding = sharding,
                 .average = ReduceOp::kSum} {}

  void wrap(nn::Module& module, const WrapPolicy& policy) override {
    fsdp_ = std::make_unique<FullySharded>(module, options_, policy);
  }
  optim::ParameterGroups groups(const optim::ParameterGroups& groups) override {
    return fsdp_->shard(groups);
  }
  Tensor forward(nn::Module& module, const Tensor& x) override {
    fsdp_->refresh();
    if (module.is_training()) fsdp_->broadcast_buffers();
    return module(x);
  }
  std::shared_ptr<void> no_sync() override {
    return std::shared_ptr<void>(new FullySharded::NoSync(*fsdp_), [](void* guard) {
      delete static_cast<FullySharded::NoSync*>(guard);
    });
  }
  double grad_norm(const Tensors& slices) override {
    Tensors gradients;
    for (const Tensor& p : slices) {
      if (p.grad().defined()) gradients.push_back(p.grad());
    }
    return exact_norm(gradients, options_.shard.get());
  }
  void after_step() override { fsdp_->after_step(); }
  NamedTensors model_state(nn::Module&) override { return fsdp_->full_state_dict(); }
  optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer) override {
    return fsdp_->full_optimizer_state(optimizer.state_dict());
  }
  void load_model_state(nn::Module&, const NamedTensors& state) override {
    fsdp_->load_full_state_dict(state);
  }
  void load_optimizer_state(optim::Optimizer& optimizer,
                            const optim::OptimizerState& state) override {
    optimizer.load_state_dict(fsdp_->shard_optimizer_state(state));
  }
  int64_t padded_elements() const override {
    int64_t elements = 0;
    for (const auto& [name, padded] : fsdp_->units()) elements += padded;
    return elements;
  }
  std::string describe(int64_t parameters) const override {
    const double p = static_cast<double>(parameters), f = options_.shard->size();
    const int replicas = options_.replicate ? options_.replicate->size() : 1;
    std::string formula = "16 P / F, and gathered units";
    double bytes = 16 * p / f;
    if (options_.sharding == Sharding::kZero1) {
      formula = "(8 + 8 / F) P";
      bytes = (8 + 8 / f) * p;
    } else if (options_.sharding == Sharding::kZero2) {
      formula = "(4 + 12 / F) P";
      bytes = (4 + 12 / f) * p;
    }
    return fmt::format("{} on {} ranks, F = {}: {} = {} on each", name_,
                       options_.shard->size() * replicas, options_.shard->size(), formula,
                       megabytes(bytes));
  }

 private:
  const std::string name_;
  const FsdpOptions options_;
  std::unique_ptr<FullySharded> fsdp_;
};

}  // namespace

int default_shard_size(int ranks) {
  for (int size = ranks / 2; size > 1; --size) {
    if (ranks % size == 0) return size;
  }
  return 1;
}

const std::vector<std::string>& strategy_names() {
  static const auto& names =
      *new std::vector<std::string>{"single", "ddp", "fsdp", "zero1", "zero2", "zero3", "hsdp"};
  return names;
}

void validate_strategy(const StrategyOptions& options, int devices) {
  const auto& names = strategy_names();
  WEFT_CHECK(std::find(names.begin(), names.end(), options.name) != names.end(),
             "unknown strategy \"{}\"; expected {}", options.name, fmt::join(names, ", "));
  WEFT_CHECK(devices > 0, "devices must be positive, got {}", devices);
  WEFT_CHECK(options.name != "single" || devices == 1,
             "strategy single runs on one device, got {}; choose ddp or fsdp", devices);
  WEFT_CHECK(options.shard_size >= 0, "shard-size must not be negative, got {}",
             options.shard_size);
  WEFT_CHECK(options.shard_size == 0 || options.name == "hsdp",
             "shard-size is a setting of hsdp, not of {}", options.name);
  WEFT_CHECK(options.shard_size == 0 || devices % options.shard_size == 0,
             "shard-size {} does not divide {} devices", options.shard_size, devices);
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, CommunicatorPtr world) {
  validate_strategy(options, world ? world->size() : 1);
  if (options.name == "single") return std::make_unique<Single>();
  // Alone, the program takes the same paths.
  if (!world) world = make_in_process_world(1)[0];
  if (options.name == "ddp") return std::make_unique<Ddp>(std::move(world));
  if (options.name == "hsdp") {
    const int size =
        options.shard_size > 0 ? options.shard_size : default_shard_size(world->size());
    const DeviceMesh mesh(world, {{"replicate", world->size() / size}, {"shard", size}});
    return std::make_unique<Sharded>(options.name, Sharding::kFullShard, mesh.shared_group("shard"),
                                     mesh.shared_group("replicate"));
  }
  const Sharding sharding = options.name == "zero1"   ? Sharding::kZero1
                            : options.name == "zero2" ? Sharding::kZero2
                                                      : Sharding::kFullShard;
  return std::make_unique<Sharded>(options.name, sharding, std::move(world), nullptr);
}

}  // namespace weft::dist
