#include "train/fabric.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "core/transfer.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "dist/strategy/strategy_kind.h"
#include "io/safetensors.h"
#include "optim/clip.h"

namespace weft::train {
namespace {

optim::GradScalerOptions scaler_of(const FabricOptions& options, const Precision& precision) {
  optim::GradScalerOptions scaler = options.numerics.loss_scale;
  scaler.enabled = scaler.enabled && precision.scales_loss();
  return scaler;
}

}  // namespace

Fabric::Fabric(const FabricOptions& options)
    : options_(options),
      sharing_(dist::sharing_of(options.strategy, options.devices)),
      precision_(find_precision(options.precision)),
      scaler_(scaler_of(options, precision_)),
      fp8_(options.numerics.fp8),
      device_(parse_device(options.device)) {
  WEFT_CHECK(options.devices == 1 || device_.index == 0,
             "fabric: {} devices, but device \"{}\" is one of them; expected \"{}\"",
             options.devices, options.device, name(device_.type));
}

PrecisionScope Fabric::autocast() {
  const NumericsOptions& numerics = options_.numerics;
  return PrecisionScope(precision_, numerics.accumulation, &fp8_, numerics.tf32_rounding);
}

std::optional<int> Fabric::launch(int argc, char** argv) {
  if (sharing_.ranks() > 1 && !dist::is_rank()) {
    std::vector<std::string> command(argv, argv + argc);
    command.at(0) = std::filesystem::read_symlink("/proc/self/exe");
    return dist::launch({.ranks = sharing_.ranks()}, command);
  }
  launch(dist::is_rank() ? dist::join_world() : nullptr);
  return {};
}

void Fabric::launch(dist::CommunicatorPtr world) {
  WEFT_CHECK(!strategy_, "fabric: launch() was called already");
  require_device(device_);
  world_ = std::move(world);
  WEFT_CHECK(size() == sharing_.ranks(), "fabric: {} devices were asked for, {} ranks were started",
             options_.devices, size());
  if (size() > 1) {
    const bool are_processes = dist::is_rank();  // else threads of one
    device_ = dist::device_of_rank(device_, are_processes ? dist::local_rank() : rank());
    world_ = dist::on_device(std::move(world_), device_);
  }
  strategy_ = dist::make_strategy(options_.strategy, world_, options_.devices);
}

void Fabric::setup(nn::Module& model, optim::Optimizer& optimizer,
                   const nn::ModelStructure& structure) {
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
  options.micro_batches = options.ranks = strategy_->data_size();
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

void Fabric::run(const dist::MicroBatches& batches) {
  WEFT_CHECK(model_, "fabric: call setup() before run()");
  scaler_.scale(Tensor::scalar(0));  // a pipeline's stage may have no loss of its own to scale
  // One scope for all: each weight is cast once.
  const PrecisionScope scope = autocast();
  strategy_->run(*model_, batches);
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

void Fabric::skip_step() {
  is_unscaled_ = false;
  strategy_->after_step();
}

/// Delayed scales follow the largest magnitude that any rank has met.
void Fabric::reduce_amax() {
  if (fp8_.options().scaling != Fp8Options::Scaling::kDelayed) return;
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
  if (is_main()) io::write_safetensors(path, state, {{"format", "pt"}});
  barrier();
}

void Fabric::load(const std::string& path) {
  WEFT_CHECK(model_, "fabric: call setup() before load()");
  strategy_->load_model_state(*model_, io::read_safetensors(path).tensors);
}

void Fabric::seed_everything(uint64_t seed) const {
  WEFT_CHECK(strategy_, "fabric: call launch() before seed_everything()");
  // The weights that count are rank 0's; what follows differs where the samples do.
  manual_seed(seed);
  generator().stream = static_cast<uint64_t>(strategy_->data_rank()) << 32;
}

}  // namespace weft::train
