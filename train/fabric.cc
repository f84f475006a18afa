#include "train/fabric.h"

#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "core/transfer.h"
#include "dist/join.h"
#include "dist/launch.h"
#include "dist/on_device.h"
#include "optim/clip.h"
#include "train/safetensors.h"

namespace weft::train {
namespace {

dist::StrategyOptions strategy_of(const FabricOptions& options) {
  const char* usual = options.devices > 1 ? "ddp" : "single";
  return {.name = options.strategy == "auto" ? usual : options.strategy,
          .shard_size = options.shard_size,
          .tensor_parallel = options.tensor_parallel,
          .sequence_parallel = options.sequence_parallel,
          .parallel_head = options.parallel_head,
          .pipeline_stages = options.pipeline_stages,
          .micro_batches = options.micro_batches,
          .cpu_offload = options.cpu_offload};
}

optim::GradScalerOptions scaler_of(const FabricOptions& options, const Precision& precision) {
  optim::GradScalerOptions scaler = options.numerics.loss_scale;
  scaler.enabled = scaler.enabled && precision.scales_loss();
  return scaler;
}

}  // namespace

Fabric::Fabric(const FabricOptions& options) : Fabric(options, strategy_of(options)) {}

Fabric::Fabric(const FabricOptions& options, const dist::StrategyOptions& strategy)
    : options_(options),
      strategy_options_(strategy),
      precision_(find_precision(options.precision)),
      scaler_(scaler_of(options, precision_)),
      fp8_(options.numerics.fp8),
      device_(parse_device(options.device)) {
  WEFT_CHECK(options.devices == 1 || device_.index == 0,
             "fabric: {} devices, but device \"{}\" is one of them; expected \"{}\"",
             options.devices, options.device, name(device_.type));
  dist::validate_strategy(strategy_options_, options.devices);
}

PrecisionScope Fabric::autocast() {
  const NumericsOptions& numerics = options_.numerics;
  return PrecisionScope(precision_, numerics.accumulation, &fp8_, numerics.tf32_rounding);
}

void Fabric::launch(int argc, char** argv) {
  const int processes = dist::processes_of(strategy_options_, options_.devices);
  if (processes > 1 && !dist::is_rank()) {
    std::vector<std::string> command(argv, argv + argc);
    command.at(0) = std::filesystem::read_symlink("/proc/self/exe");
    std::exit(dist::launch({.ranks = processes}, command));
  }
  launch(dist::is_rank() ? dist::join_world() : nullptr);
}

void Fabric::launch(dist::CommunicatorPtr world) {
  WEFT_CHECK(!strategy_, "fabric: launch() was called already");
  require_device(device_);
  world_ = std::move(world);
  const int processes = dist::processes_of(strategy_options_, options_.devices);
  WEFT_CHECK(size() == processes, "fabric: {} devices were asked for, {} ranks were started",
             options_.devices, size());
  if (size() > 1) {
    const bool are_processes = dist::is_rank();  // else threads of one
    device_ = dist::device_of_rank(device_, are_processes ? dist::local_rank() : rank());
    world_ = dist::on_device(std::move(world_), device_);
  }
  strategy_ = dist::make_strategy(strategy_options_, world_, options_.devices);
}

void Fabric::setup(nn::Module& model, optim::Optimizer& optimizer,
                   const dist::ModelStructure& structure) {
  WEFT_CHECK(strategy_, "fabric: call launch() before setup()");
  if (precision_.parameters != DType::f32) model.to(precision_.parameters);
  model.to(device_);
  model_ = &model;
  // The groups' tensors are known by their handles, which wrap() leaves as they are.
  const std::vector<optim::ParameterGroup> whole = optimizer.groups();
  strategy_->wrap(model, structure);
  const optim::ParameterGroups mine = strategy_->groups(optim::ParameterGroups(whole));
  for (size_t i = 0; i < mine.size(); ++i) optimizer.groups()[i].parameters = mine[i].parameters;
}

std::unique_ptr<data::Loader> Fabric::setup_dataloader(data::DatasetPtr dataset,
                                                       data::LoaderOptions options) const {
  WEFT_CHECK(strategy_, "fabric: call launch() before setup_dataloader()");
  options.batch_size *= data_devices();
  options.pieces = options.ranks = strategy_->data_size();
  options.rank = strategy_->data_rank();
  options.device = device_;
  return std::make_unique<data::Loader>(std::move(dataset), options);
}

Tensor Fabric::forward(const Tensor& x) {
  WEFT_CHECK(model_, "fabric: call setup() before forward()");
  const PrecisionScope scope = autocast();
  const auto run = [&](const Tensor& in) { return strategy_->forward(*model_, in); };
  return forward_logits(run, ops::to(x, device_), precision_);
}

void Fabric::backward(const Tensor& loss) {
  const PrecisionScope scope = autocast();
  const int ranks = strategy_->data_size();
  weft::backward(scaler_.scale(ranks == 1 ? loss : loss * (1.0 / ranks)));
}

void Fabric::run(const dist::MicroBatches& parts) {
  WEFT_CHECK(model_, "fabric: call setup() before run()");
  scaler_.scale(Tensor::scalar(0));  // a pipeline's stage may have no loss of its own to scale
  // One scope for all parts: each weight is cast once.
  const PrecisionScope scope = autocast();
  strategy_->run(*model_, parts);
}

double Fabric::unscale(optim::Optimizer& optimizer) {
  if (!scaler_.is_enabled() || std::exchange(is_unscaled_, true)) return 0;
  const double norm = scaler_.unscale(optimizer);
  // Of all ranks, before any of them skips a step.
  const Tensor found = Tensor::scalar(scaler_.found_inf(optimizer), DType::f32);
  all_reduce(found, dist::ReduceOp::kMax);
  scaler_.set_found_inf(optimizer, found.item() != 0);
  return norm;
}

double Fabric::clip_gradients(optim::Optimizer& optimizer, double max_norm) {
  unscale(optimizer);
  const Tensors parameters = optimizer.parameters();
  const double norm = strategy_->grad_norm(parameters);
  const double factor = optim::clip_coefficient(norm, max_norm);
  if (factor < 1) {
    const NoGrad guard;
    for (const Tensor& p : parameters) {
      Tensor gradient = p.grad();
      if (!gradient.defined()) continue;
      ops::mul_(gradient, ops::full({}, factor, gradient.dtype(), gradient.device()));
    }
  }
  return norm;
}

bool Fabric::step(optim::Optimizer& optimizer, double gradient_scale) {
  unscale(optimizer);
  const bool is_taken = scaler_.step(optimizer, gradient_scale);
  is_unscaled_ = false;
  strategy_->after_step();
  if (options_.numerics.loss_scale_is_fixed) {
    scaler_.update(scaler_.get_scale());
  } else {
    scaler_.update();
  }
  if (precision_.is_fp8()) {
    reduce_amax();
    fp8_.update();
  }
  return is_taken;
}

/// Delayed scales follow the largest magnitude that any rank has met.
void Fabric::reduce_amax() {
  if (fp8_.options().scaling != Fp8Options::Scaling::delayed) return;
  const NamedTensors parameters = model_->named_parameters();
  const Tensor amax = fp8_.step_amax(parameters);
  all_reduce(amax, dist::ReduceOp::kMax);
  fp8_.set_step_amax(amax, parameters);
}

void Fabric::all_reduce(const Tensor& x, dist::ReduceOp op) const {
  if (world_) world_->all_reduce(x, op).wait();
}

Tensor Fabric::all_gather(const Tensor& x) const {
  const NoGrad guard;
  if (!world_) return ops::clone(ops::unsqueeze(x, 0));
  Shape shape = x.shape();
  shape.insert(0, size());
  const Tensor all = Tensor::empty(shape, x.dtype(), x.device());
  world_->all_gather(all, ops::contiguous(x)).wait();
  return all;
}

void Fabric::broadcast(const Tensor& x, int source) const {
  if (world_) world_->broadcast(x, source).wait();
}

void Fabric::barrier() const {
  if (world_) world_->barrier().wait();
}

void Fabric::save(const std::string& path) {
  WEFT_CHECK(model_, "fabric: call setup() before save()");
  NamedTensors state = strategy_->model_state(*model_);
  for (auto& [name, tensor] : state) tensor = to_device(tensor, Device{});
  if (is_main()) write_safetensors(path, state, {{"format", "pt"}});
  barrier();
}

void Fabric::load(const std::string& path) {
  WEFT_CHECK(model_, "fabric: call setup() before load()");
  strategy_->load_model_state(*model_, read_safetensors(path).tensors);
}

void Fabric::seed_everything(uint64_t seed) const {
  WEFT_CHECK(strategy_, "fabric: call launch() before seed_everything()");
  // The weights that count are rank 0's; what follows differs where the samples do.
  manual_seed(seed);
  generator().stream = static_cast<uint64_t>(strategy_->data_rank()) << 32;
}

}  // namespace weft::train
