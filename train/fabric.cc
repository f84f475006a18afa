#include "train/fabric.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "dist/comm/processes/rank_environment.h"
#include "dist/model_parallel/rank_collectives.h"
#include "dist/strategy/aliases.h"
#include "dist/strategy/fp8_gradients.h"
#include "dist/strategy/fp8_zero.h"
#include "dist/strategy/strategy_kind.h"
#include "io/json_field.h"
#include "train/fabric_gradients.h"
#include "train/sharded_state.h"

namespace weft::train {
namespace {

constexpr int kMostNodes = 1 << 16;

optim::GradScalerOptions scaler_of(const FabricOptions& options, const Precision& precision) {
  optim::GradScalerOptions scaler = options.numerics.loss_scale;
  scaler.enabled = scaler.enabled && precision.scales_loss();
  return scaler;
}

/// What starts this program again. A virtual environment's python is a link to another, and finds
/// its packages by the name that it was started under.
std::string this_program(const std::string& name) {
  const std::filesystem::path itself = "/proc/self/exe", given = name;
  std::error_code missing;
  const bool leads_here =
      given.is_absolute() && std::filesystem::equivalent(given, itself, missing);
  return leads_here ? name : std::filesystem::read_symlink(itself).string();
}

/// With our names, and what the strategy has to know of the precision.
FabricOptions completed(FabricOptions options) {
  options.strategy = dist::named_here(options.strategy);
  options.state_dict_type = dist::state_dict_type_here(options.state_dict_type);
  const DType products = find_precision(options.precision).rounds_weights_to();
  options.strategy.product_dtype = products == DType::f32 ? "" : name(products);
  options.strategy.device_numbers = options.devices.numbers;
  return options;
}

}  // namespace

FabricOptions from_environment(FabricOptions options) {
  const auto read = [](const char* name, const std::function<void(const char*)>& take) {
    const char* const value = std::getenv(name);
    if (value && *value != '\0') io::read_at(name, [&] { take(value); });
  };
  read("WEFT_DEVICE", [&](const char* value) {
    parse_device(value);
    options.device = value;
  });
  read("WEFT_DEVICES", [&](const char* value) { options.devices = value; });
  constexpr const char* kNodes = "WEFT_NUM_NODES";
  if (dist::variable(kNodes)) options.num_nodes = dist::variable_number(kNodes, 1, kMostNodes);
  read("WEFT_PRECISION", [&](const char* value) {
    find_precision(value);
    options.precision = value;
  });
  read("WEFT_STRATEGY", [&](const char* value) {
    options.strategy.name = value;
    options.strategy = dist::named_here(options.strategy);
  });
  read("WEFT_STATE_DICT_TYPE",
       [&](const char* value) { options.state_dict_type = dist::state_dict_type_here(value); });
  return options;
}

Fabric::Fabric(const FabricOptions& options)
    : options_(completed(options)),
      precision_(find_precision(options.precision)),
      scaler_(scaler_of(options, precision_)),
      fp8_(options.numerics.fp8),
      device_(parse_device(options.device)),
      gradients_(std::make_shared<Gradients>(*this)) {
  WEFT_CHECK(options.num_nodes > 0 && options.accumulate > 0,
             "fabric: num_nodes and accumulate must be positive, got {} and {}", options.num_nodes,
             options.accumulate);
  WEFT_CHECK(std::ranges::count(options.loggers, nullptr) == 0, "fabric: a logger is null");
  dist::parse_collectives(options.collectives);  // throws sooner than launch()
  const Fp8Level level = parse_fp8_level(options.numerics.fp8_level);
  if (level != Fp8Level::kNone) low_bits_.emplace(level);
  // All devices, under a launcher, are the ranks that it has started.
  if (options.devices.count == 0 && dist::is_rank()) return;
  devices_ = options.devices.on(device_) * options.num_nodes;
  sharing_ = dist::sharing_of(options_.strategy, devices_);
  WEFT_CHECK(devices_ == 1 || device_.index == 0,
             "fabric: {} devices, but device \"{}\" is one of them; expected \"{}\"", devices_,
             options.device, name(device_.type));
  WEFT_CHECK(options.num_nodes == 1 || sharing_->threads == 1,
             "fabric: {} nodes, but dp has threads of one program; use ddp", options.num_nodes);
}

Fabric::~Fabric() {
  if (!has_logged_) return;
  for (const auto& logger : options_.loggers) {
    try {
      logger->finish();
    } catch (...) {  // what it had to say, it has said while it wrote
    }
  }
}

const dist::Sharing& Fabric::sharing() const {
  WEFT_CHECK(sharing_, "fabric: call launch() first: it counts the devices");
  return *sharing_;
}

PrecisionScope Fabric::autocast() {
  const NumericsOptions& numerics = options_.numerics;
  return PrecisionScope(precision_, numerics.accumulation, &fp8_, numerics.tf32_rounding);
}

std::optional<int> Fabric::launch(int argc, char** argv) {
  if (!dist::is_rank() && sharing().ranks() > 1) {
    WEFT_CHECK(options_.num_nodes == 1,
               "fabric: {} nodes need a launcher, mpirun, srun or torchrun, that starts ranks on "
               "each",
               options_.num_nodes);
    std::vector<std::string> command(argv, argv + argc);
    command.at(0) = this_program(command.at(0));
    return dist::launch({.ranks = sharing().ranks()}, command);
  }
  launch(dist::is_rank() ? dist::join_world() : nullptr);
  return {};
}

void Fabric::launch(dist::CommunicatorPtr world) {
  WEFT_CHECK(!geometry_, "fabric: launch() was called already");
  require_device(device_);
  world_ = std::move(world);
  if (!sharing_) {
    devices_ = size();
    sharing_ = dist::sharing_of(options_.strategy, devices_);
  }
  WEFT_CHECK(size() == sharing_->ranks(),
             "fabric: {} devices were asked for, {} ranks were started", devices_, size());
  if (size() > 1 || !options_.devices.numbers.empty()) {
    device_ = options_.devices.of_rank(device_, local_rank());
    require_device(device_);
  }
  if (size() > 1) {
    const dist::Collectives collectives = dist::parse_collectives(options_.collectives);
    world_ = dist::on_device(std::move(world_), device_, collectives);
  }
  geometry_ = make_strategy();
}

int Fabric::local_rank() const {
  const bool are_processes = dist::is_rank();  // else threads of one
  return are_processes ? dist::local_rank() : rank();
}

std::shared_ptr<dist::Strategy> Fabric::make_strategy() const {
  if (!low_bits_) return dist::make_strategy(options_.strategy, world_, devices_);
  check_fp8_level(options_.numerics.fp8_level, precision_, options_.strategy, devices_);
  if (parse_fp8_level(options_.numerics.fp8_level) == Fp8Level::kO3) {
    return dist::make_fp8_zero(world_);
  }
  return std::make_shared<dist::Fp8Gradients>(world_);
}

dist::Strategy& Fabric::strategy() const {
  WEFT_CHECK(geometry_, "fabric: call launch() first");
  return models_.empty() ? *geometry_ : *models_.front()->strategy;
}

std::vector<nn::Module*> Fabric::models_of(const optim::Optimizer& optimizer) const {
  std::vector<nn::Module*> modules;
  for (const auto& entry : optimizers_) {
    if (entry->optimizer != &optimizer || entry->is_alive.expired()) continue;
    for (const Model* const model : entry->models) modules.push_back(model->module);
  }
  return modules;
}

void Fabric::setup_dataloader(data::Loader& loader, bool use_distributed_sampler,
                              bool move_to_device) const {
  WEFT_CHECK(geometry_, "fabric: call launch() before setup_dataloader()");
  data::LoaderOptions options = loader.options();
  if (use_distributed_sampler) {
    if (!options_.split_batches) options.batch_size *= data_devices();
    options.micro_batches = options.ranks = data_size();
    options.rank = data_rank();
    options.fills_empty = true;
  }
  if (move_to_device) options.device = device_;
  options.watch = watch_;
  loader.set_options(options);
}

std::unique_ptr<data::Loader> Fabric::setup_dataloader(data::DatasetPtr dataset,
                                                       data::LoaderOptions options) const {
  WEFT_CHECK(geometry_, "fabric: call launch() before setup_dataloader()");
  options.batch_size *= data_devices();
  options.micro_batches = options.ranks = data_size();
  options.rank = data_rank();
  options.device = device_;
  options.fills_empty = true;
  options.watch = watch_;
  return std::make_unique<data::Loader>(std::move(dataset), options);
}

// Collectives.

void Fabric::all_reduce(const Tensor& x, dist::ReduceOp op) const {
  if (world_) world_->all_reduce(x, op).wait();
}

Tensor Fabric::all_gather(const Tensor& x) const {
  if (is_recording({x})) {
    const Tensor row = ops::unsqueeze(x, 0);
    return world_ ? dist::gather_sequence(row, 0, world_) : row;
  }
  const NoGrad guard;
  if (!world_) return ops::clone(ops::unsqueeze(x, 0));
  Shape shape = x.shape();
  shape.insert(0, size());
  const Tensor all = Tensor::empty(shape, x.dtype(), x.device());
  world_->all_gather(all, ops::contiguous(x)).wait();
  return all;
}

Tensor Fabric::gather_for_metrics(const Tensor& x) const {
  WEFT_CHECK(x.dim() > 0, "gather_for_metrics: expected a row for each sample, got {}", x);
  return gather_rows(x, std::max<int64_t>(0, x.size(0) - watch_->latest().fillers));
}

Tensor Fabric::gather_for_metrics(double value) const {
  // A batch of fillers is another rank's.
  return gather_rows(to_device(Tensor::from(std::vector{value}, {1}), device_),
                     watch_->latest().fillers > 0 ? 0 : 1);
}

/// The first rows of each data rank's x, one rank after another.
Tensor Fabric::gather_rows(const Tensor& x, int64_t rows) const {
  const NoGrad guard;
  if (!world_) return ops::clone(ops::narrow(detach(x), 0, 0, rows));
  // Of ranks with the same samples one counts. Their places are those of the data ranks.
  const bool counts = strategy().counts();
  const Tensor mine = Tensor::from(std::vector<int64_t>{counts ? rows : 0, data_rank()}, {2});
  const Tensor all = Tensor::empty({size(), 2}, DType::i64);
  world_->all_gather(all, mine).wait();
  int64_t most = 0;
  for (int r = 0; r < size(); ++r) most = std::max(most, all.data<int64_t>()[2 * r]);
  Shape shape = x.shape();
  shape[0] = std::max<int64_t>(most, 1);
  Tensor sent = Tensor::zeros(shape, x.dtype(), x.device());
  const int64_t own = counts ? rows : 0;
  if (own > 0) {
    Tensor place = ops::narrow(sent, 0, 0, own);
    ops::copy_(place, ops::narrow(detach(x), 0, 0, own));
  }
  const Tensor gathered = all_gather(sent);
  std::vector<std::pair<int64_t, Tensor>> parts;
  for (int r = 0; r < size(); ++r) {
    const int64_t count = all.data<int64_t>()[2 * r];
    if (count == 0) continue;
    const Tensor part = ops::reshape(ops::narrow(gathered, 0, r, 1), shape);
    parts.emplace_back(all.data<int64_t>()[2 * r + 1], ops::narrow(part, 0, 0, count));
  }
  std::ranges::stable_sort(parts, {}, [](const auto& part) { return part.first; });
  Tensors in_order;
  for (const auto& [place, part] : parts) in_order.push_back(part);
  if (in_order.empty()) return ops::clone(ops::narrow(sent, 0, 0, 0));
  return ops::cat(in_order, 0);
}

void Fabric::broadcast(const Tensor& x, int source) const {
  if (world_) world_->broadcast(x, source).wait();
}

void Fabric::barrier() const {
  if (world_) world_->barrier().wait();
}

void Fabric::log(const std::string& name, double value, std::optional<int64_t> step) {
  log_dict({{name, value}}, step);
}

void Fabric::log_dict(const NamedValues& values, std::optional<int64_t> given) {
  if (!is_main()) return;
  const int64_t step = given.value_or(next_log_);
  next_log_ = step + 1;
  if (!has_logged_) {
    for (const auto& logger : options_.loggers) logger->begin(step);
    has_logged_ = true;
  }
  for (const auto& logger : options_.loggers) logger->log_metrics(step, values);
}

void Fabric::seed_everything(uint64_t seed) const {
  // The weights that count are rank 0's; what follows differs where the samples do.
  const int rank = data_rank();
  manual_seed(seed);
  generator().stream = static_cast<uint64_t>(rank) << 32;
}

}  // namespace weft::train
