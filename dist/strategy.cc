#include "dist/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/backward.h"
#include "dist/ddp.h"
#include "dist/device_mesh.h"
#include "dist/in_process.h"
#include "dist/strategies.h"
#include "optim/clip.h"

namespace weft::dist {
namespace {

class Single : public Strategy {
 public:
  void wrap(nn::Module&, const ModelStructure&) override {}
  ExactSum squares(const Tensors& parameters) override { return own_squares(parameters); }
  double grad_norm(const Tensors& parameters) override { return optim::grad_norm(parameters); }
  std::string describe(int64_t parameters) const override {
    return fmt::format("single: 16 P = {}", megabytes(16.0 * static_cast<double>(parameters)));
  }
};

class Ddp : public Strategy {
 public:
  Ddp(CommunicatorPtr world, const DdpOptions& options)
      : world_(std::move(world)), options_(options) {
    options_.average = ReduceOp::kSum;
  }

  int data_size() const override { return world_->size(); }
  int data_rank() const override { return world_->rank(); }
  void wrap(nn::Module& module, const ModelStructure&) override {
    ddp_ = std::make_unique<DistributedDataParallel>(module, world_, options_);
  }
  Tensor forward(nn::Module&, const Tensor& x) override { return (*ddp_)(x); }
  std::shared_ptr<void> no_sync() override {
    return std::shared_ptr<void>(new DistributedDataParallel::NoSync(*ddp_), [](void* guard) {
      delete static_cast<DistributedDataParallel::NoSync*>(guard);
    });
  }
  ExactSum squares(const Tensors& parameters) override { return own_squares(parameters); }
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
  DdpOptions options_;
  std::unique_ptr<DistributedDataParallel> ddp_;
};

class Sharded : public Strategy {
 public:
  Sharded(std::string name, const FsdpOptions& options)
      : name_(std::move(name)), options_(options) {
    options_.average = ReduceOp::kSum;
  }

  int data_size() const override { return options_.shard->size() * replicas(); }
  int data_rank() const override {
    const int row = options_.replicate ? options_.replicate->rank() : 0;
    return row * options_.shard->size() + options_.shard->rank();
  }
  void wrap(nn::Module& module, const ModelStructure& structure) override {
    fsdp_ = std::make_unique<FullySharded>(module, options_, structure.units);
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
  ExactSum squares(const Tensors& slices) override {
    ExactSum sum = own_squares(slices);
    sum.all_reduce(*options_.shard);
    return sum;
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
    std::string formula = "16 P / F, and gathered units";
    double bytes = 16 * p / f;
    if (options_.sharding == Sharding::kZero1) {
      formula = "(8 + 8 / F) P";
      bytes = (8 + 8 / f) * p;
    } else if (options_.sharding == Sharding::kZero2) {
      formula = "(4 + 12 / F) P";
      bytes = (4 + 12 / f) * p;
    }
    return fmt::format("{} on {} ranks, F = {}: {} = {} on each", name_, data_size(),
                       options_.shard->size(), formula, megabytes(bytes));
  }

 private:
  int replicas() const { return options_.replicate ? options_.replicate->size() : 1; }

  const std::string name_;
  FsdpOptions options_;
  std::unique_ptr<FullySharded> fsdp_;
};

}  // namespace

int default_shard_size(int ranks) {
  for (int size = ranks / 2; size > 1; --size) {
    if (ranks % size == 0) return size;
  }
  return 1;
}

namespace {

bool is_tensor_parallel(const StrategyOptions& options) {
  return options.name == "tp" || options.name == "fsdp+tp";
}

/// Ranks that share a layer.
int tensor_size(const StrategyOptions& options, int devices) {
  if (!is_tensor_parallel(options)) return 1;
  if (options.tensor_parallel > 0) return options.tensor_parallel;
  return options.name == "tp" ? devices : std::min(devices, 2);
}

int stage_count(const StrategyOptions& options, int devices) {
  if (options.name != "pipeline") return 1;
  return options.pipeline_stages > 0 ? options.pipeline_stages : devices;
}

}  // namespace

std::string megabytes(double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); }

ExactSum own_squares(const Tensors& parameters) {
  ExactSum sum;
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) add_squares(sum, p.grad());
  }
  return sum;
}

void Strategy::run(nn::Module& module, const MicroBatches& batches) {
  for (int64_t i = 0; i < batches.count; ++i) {
    const bool is_local = batches.accumulates && i + 1 < batches.count;
    const std::shared_ptr<void> local = is_local ? no_sync() : nullptr;
    const MicroBatch batch = batches.at(i);
    backward(batch.loss(forward(module, batch.input)));
    if (!batches.accumulates && batches.after_each) batches.after_each();
  }
}

Tensor Strategy::predicted(const Tensor& logits) {
  const NoGrad guard;
  return ops::argmax(logits, 1);
}

double Strategy::grad_norm(const Tensors& parameters) {
  return std::sqrt(squares(parameters).value());
}

std::unique_ptr<Strategy> make_ddp(CommunicatorPtr data, const DdpOptions& options) {
  return std::make_unique<Ddp>(std::move(data), options);
}

std::unique_ptr<Strategy> make_sharded(const std::string& name, const FsdpOptions& options) {
  return std::make_unique<Sharded>(name, options);
}

const std::vector<std::string>& strategy_names() {
  static const auto& names =
      *new std::vector<std::string>{"single", "dp",   "ddp", "fsdp",    "zero1",   "zero2",
                                    "zero3",  "hsdp", "tp",  "fsdp+tp", "pipeline"};
  return names;
}

void validate_strategy(const StrategyOptions& options, int devices) {
  const auto& names = strategy_names();
  WEFT_CHECK(std::find(names.begin(), names.end(), options.name) != names.end(),
             "unknown strategy \"{}\"; expected {}", options.name, fmt::join(names, ", "));
  WEFT_CHECK(devices > 0, "devices must be positive, got {}", devices);
  WEFT_CHECK(options.name != "single" || devices == 1,
             "strategy single runs on one device, got {}; choose ddp or fsdp", devices);
  // A number of devices that belong together.
  const auto check_divisor = [&](const char* setting, int value, bool is_its, const char* whose) {
    WEFT_CHECK(value >= 0, "{} must not be negative, got {}", setting, value);
    WEFT_CHECK(value == 0 || is_its, "{} is a setting of {}, not of {}", setting, whose,
               options.name);
    WEFT_CHECK(value == 0 || devices % value == 0, "{} {} does not divide {} devices", setting,
               value, devices);
  };
  const bool is_pipeline = options.name == "pipeline";
  check_divisor("shard-size", options.shard_size, options.name == "hsdp", "hsdp");
  check_divisor("tensor-parallel", options.tensor_parallel, is_tensor_parallel(options),
                "tp and fsdp+tp");
  check_divisor("pipeline-stages", options.pipeline_stages, is_pipeline, "pipeline");
  const int tensor = tensor_size(options, devices);
  WEFT_CHECK(devices % tensor == 0,
             "fsdp+tp: {} devices are no mesh of {} that share a layer; set tensor-parallel",
             devices, tensor);
  const bool is_fully_sharded = options.name == "fsdp" || options.name == "zero3" ||
                                options.name == "hsdp" || options.name == "fsdp+tp";
  WEFT_CHECK(!options.cpu_offload || is_fully_sharded,
             "cpu-offload is a setting of fsdp, zero3, hsdp and fsdp+tp, not of {}", options.name);
  for (const auto& [setting, is_on] : {std::pair("sequence-parallel", options.sequence_parallel),
                                       std::pair("parallel-head", options.parallel_head)}) {
    WEFT_CHECK(!is_on || is_tensor_parallel(options),
               "{} is a setting of tp and fsdp+tp, not of {}", setting, options.name);
  }
  WEFT_CHECK(options.micro_batches >= 0, "micro-batches must not be negative, got {}",
             options.micro_batches);
  WEFT_CHECK(options.micro_batches == 0 || is_pipeline,
             "micro-batches is a setting of pipeline, not of {}", options.name);
}

int processes_of(const StrategyOptions& options, int devices) {
  return options.name == "dp" ? 1 : devices;
}

int data_devices_of(const StrategyOptions& options, int devices) {
  return devices / tensor_size(options, devices) / stage_count(options, devices);
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, CommunicatorPtr world,
                                        int devices) {
  if (world) devices = world->size();
  validate_strategy(options, devices);
  if (options.name == "single") return std::make_unique<Single>();
  if (options.name == "dp") return make_data_parallel(devices);
  // Alone, the program takes the same paths.
  if (!world) world = make_in_process_world(1)[0];
  if (options.name == "ddp") return make_ddp(std::move(world));
  if (is_tensor_parallel(options)) {
    const int tensor = tensor_size(options, devices);
    // Neighbours share layers: they talk most.
    const DeviceMesh mesh(world, {{"data", devices / tensor}, {"tensor", tensor}});
    const CommunicatorPtr data = mesh.shared_group("data");
    std::unique_ptr<Strategy> inner =
        options.name == "tp"
            ? (data->size() == 1 ? std::make_unique<Single>() : make_ddp(data))
            : make_sharded("fsdp", {.shard = data, .cpu_offload = options.cpu_offload});
    return make_tensor_parallel(options, mesh.shared_group("tensor"), std::move(inner));
  }
  if (options.name == "pipeline") {
    const int stages = stage_count(options, devices);
    const DeviceMesh mesh(world, {{"data", devices / stages}, {"stage", stages}});
    return make_pipeline(
        {.stages = mesh.shared_group("stage"),
         .data = mesh.shared_group("data"),
         .schedule = options.schedule,
         .micro_batches = options.micro_batches > 0 ? options.micro_batches : 2 * stages});
  }
  if (options.name == "hsdp") {
    const int size =
        options.shard_size > 0 ? options.shard_size : default_shard_size(world->size());
    const DeviceMesh mesh(world, {{"replicate", world->size() / size}, {"shard", size}});
    return make_sharded(options.name, {.shard = mesh.shared_group("shard"),
                                       .replicate = mesh.shared_group("replicate"),
                                       .cpu_offload = options.cpu_offload});
  }
  const Sharding sharding = options.name == "zero1"   ? Sharding::kZero1
                            : options.name == "zero2" ? Sharding::kZero2
                                                      : Sharding::kFullShard;
  return make_sharded(
      options.name,
      {.shard = std::move(world), .sharding = sharding, .cpu_offload = options.cpu_offload});
}

}  // namespace weft::dist
