#include "train/fabric.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "dist/join.h"
#include "dist/launch.h"
#include "optim/clip.h"
#include "train/safetensors.h"

namespace weft::train {
namespace {

std::string strategy_name(const FabricOptions& options) {
  if (options.strategy != "auto") return options.strategy;
  return options.devices > 1 ? "ddp" : "single";
}

}  // namespace

Fabric::Fabric(const FabricOptions& options) : options_(options) {
  const std::string& p = options.precision;
  WEFT_CHECK(p == "64-true" || p == "32-true" || p == "bf16-mixed",
             "fabric: unknown precision \"{}\"; expected 64-true, 32-true or bf16-mixed", p);
  WEFT_CHECK(options.device == "cpu" || options.devices == 1,
             "fabric: {} devices of kind \"{}\": several ranks compute on the CPU so far",
             options.devices, options.device);
  dist::validate_strategy({.name = strategy_name(options), .shard_size = options.shard_size},
                          options.devices);
}

void Fabric::launch(int argc, char** argv) {
  WEFT_CHECK(!strategy_, "fabric: launch() was called already");
  if (options_.devices > 1 && !dist::is_rank()) {
    std::vector<std::string> command(argv, argv + argc);
    command.at(0) = std::filesystem::read_symlink("/proc/self/exe");
    std::exit(dist::launch({.ranks = options_.devices}, command));
  }
  if (dist::is_rank()) {
    world_ = dist::join_world();
    WEFT_CHECK(world_->size() == options_.devices,
               "fabric: {} devices were asked for, {} ranks were started", options_.devices,
               world_->size());
  }
  strategy_ = dist::make_strategy(
      {.name = strategy_name(options_), .shard_size = options_.shard_size}, world_);
}

void Fabric::setup(nn::Module& model, optim::Optimizer& optimizer, const dist::WrapPolicy& policy) {
  WEFT_CHECK(strategy_, "fabric: call launch() before setup()");
  if (options_.precision == "64-true") model.to(DType::f64);
  model_ = &model;
  // The groups' tensors are known by their handles, which wrap() leaves as they are.
  const std::vector<optim::ParameterGroup> whole = optimizer.groups();
  strategy_->wrap(model, policy);
  const optim::ParameterGroups mine = strategy_->groups(optim::ParameterGroups(whole));
  for (size_t i = 0; i < mine.size(); ++i) optimizer.groups()[i].parameters = mine[i].parameters;
}

std::unique_ptr<data::Loader> Fabric::setup_dataloader(data::DatasetPtr dataset,
                                                       data::LoaderOptions options) const {
  options.batch_size *= size();
  options.pieces = options.ranks = size();
  options.rank = rank();
  return std::make_unique<data::Loader>(std::move(dataset), options);
}

Tensor Fabric::forward(const Tensor& x) {
  WEFT_CHECK(model_, "fabric: call setup() before forward()");
  const bool is_double = options_.precision == "64-true";
  const Autocast mode(options_.precision == "bf16-mixed" ? DType::bf16 : DType::f32);
  const Tensor y = strategy_->forward(*model_, is_double ? ops::cast(x, DType::f64) : x);
  return is_double ? y : ops::cast(y, DType::f32);
}

void Fabric::backward(const Tensor& loss) {
  weft::backward(size() == 1 ? loss : loss * (1.0 / size()));
}

double Fabric::clip_gradients(optim::Optimizer& optimizer, double max_norm) {
  const Tensors parameters = optimizer.parameters();
  const double norm = strategy_->grad_norm(parameters);
  const double factor = optim::clip_coefficient(norm, max_norm);
  if (factor < 1) {
    const NoGrad guard;
    for (const Tensor& p : parameters) {
      Tensor gradient = p.grad();
      if (gradient.defined()) ops::mul_(gradient, Tensor::scalar(factor, gradient.dtype()));
    }
  }
  return norm;
}

void Fabric::all_reduce(const Tensor& x, dist::ReduceOp op) const {
  if (world_) world_->all_reduce(x, op).wait();
}

Tensor Fabric::all_gather(const Tensor& x) const {
  const NoGrad guard;
  if (!world_) return ops::clone(ops::unsqueeze(x, 0));
  Shape shape = x.shape();
  shape.insert(0, size());
  const Tensor all = Tensor::empty(shape, x.dtype());
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
  const NamedTensors state = strategy_->model_state(*model_);
  if (is_main()) write_safetensors(path, state, {{"format", "pt"}});
  barrier();
}

void Fabric::load(const std::string& path) {
  WEFT_CHECK(model_, "fabric: call setup() before load()");
  strategy_->load_model_state(*model_, read_safetensors(path).tensors);
}

void Fabric::seed_everything(uint64_t seed) const {
  // The weights that count are rank 0's; what follows differs from rank to rank.
  manual_seed(seed);
  generator().stream = static_cast<uint64_t>(rank()) << 32;
}

}  // namespace weft::train
