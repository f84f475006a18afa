#include "train/ranks.h"

#include "autograd/random.h"

namespace weft::train {

namespace {

/// Disabled where no loss is scaled.
optim::GradScalerOptions scaler_options(const Config& config) {
  optim::GradScalerOptions options;
  options.enabled = config.loss_scale != "none";
  if (options.enabled && config.loss_scale != "dynamic") {
    options.init_scale = fixed_loss_scale(config);
    return options;
  }
  options.init_scale = config.initial_loss_scale;
  options.growth_interval = config.loss_scale_window;
  options.hysteresis = config.loss_scale_hysteresis;
  options.min_scale = config.min_loss_scale;
  return options;
}

}  // namespace

FabricOptions fabric_options(const Config& config, Device device) {
  const bool is_delayed = config.fp8_scaling == "delayed";
  const bool is_nearest = config.tf32_rounding == "nearest";
  const bool is_exact = config.collectives == "exact" || config.deterministic_reduce > 0;
  return {.device = to_string(device),
          .devices = static_cast<int>(config.devices),
          .precision = config.precision,
          .strategy = config.strategy,
          .collectives = is_exact ? "exact" : "nccl",
          .numerics = {.loss_scale = scaler_options(config),
                       .loss_scale_is_fixed = config.loss_scale != "dynamic",
                       .fp8 = {.scaling = is_delayed ? Fp8Options::Scaling::kDelayed
                                                     : Fp8Options::Scaling::kCurrent},
                       .accumulation = kernels::parse_accumulation(config.matmul_numerics),
                       .tf32_rounding =
                           is_nearest ? kernels::Tf32::kNearest : kernels::Tf32::kTruncate},
          .state_dict_type = config.state_dict_type};
}

Ranks::Ranks(const Config& config, Device device, const dist::CommunicatorPtr& world)
    : config_(config), fabric_(fabric_options(config, device)) {
  const dist::Sharing sharing = sharing_of(config);
  const int started = world ? world->size() : 1;
  WEFT_CHECK(sharing.ranks() == started, "the run is set up for {} ranks, {} were started",
             sharing.ranks(), started);
  fabric_.launch(world);
  global_batch_ = config.global_batch_size > 0 ? config.global_batch_size
                                               : config.batch_size * sharing.data_devices();
  micro_batches_ = config.deterministic_reduce > 0
                       ? static_cast<int>(config.deterministic_reduce)
                       : strategy().data_size() * strategy().micro_batches();
}

data::LoaderOptions Ranks::share(data::LoaderOptions options, bool trains) const {
  options.batch_size = global_batch_;
  options.micro_batches = trains ? micro_batches_ : strategy().data_size();
  options.ranks = strategy().data_size();
  options.rank = strategy().data_rank();
  return options;
}

void Ranks::begin_micro_batch(int64_t epoch, int64_t index) const {
  if (!is_active()) return;
  // The word "rank" keeps these streams apart from those of initialisers and data.
  constexpr uint64_t kRank = 0x72616e6b;
  generator() = {
      .seed = config_.seed,
      .stream = kRank << 32 ^ static_cast<uint64_t>(epoch) << 40 ^ static_cast<uint64_t>(index)};
}

double Ranks::weight(int64_t images, int64_t count) const {
  if (!is_active()) return 1.0 / static_cast<double>(count);
  if (config_.gradient_average == "ranks") {
    return 1.0 / (static_cast<double>(count) * static_cast<double>(strategy().data_size()));
  }
  return static_cast<double>(images) /
         (static_cast<double>(count / micro_batches()) * static_cast<double>(global_batch_));
}

void Ranks::run(int64_t count, const std::function<dist::MicroBatch(int64_t)>& micro_batch,
                const Tensors& parameters) {
  if (config_.deterministic_reduce == 0) {
    fabric_.run({.count = count, .at = micro_batch});
    return;
  }
  dist::TreeAccumulator tree;
  fabric_.run({.count = count, .at = micro_batch, .accumulates = false, .after_each = [&] {
                 tree.push(dist::take_gradients(parameters));
               }});
  dist::set_gradients(parameters, tree.finish());
}

Ranks::Sums Ranks::sum(Sums mine) const {
  const dist::CommunicatorPtr& world = fabric_.world();
  if (!world) return mine;
  if (!strategy().counts()) mine = {.stops = mine.stops, .saves = mine.saves};
  dist::all_reduce(mine.loss, *world);
  const Tensor counts =
      Tensor::from(std::vector<int64_t>{mine.correct, mine.images, mine.stops, mine.saves}, {4});
  world->all_reduce(counts).wait();
  const int64_t* c = counts.data<int64_t>();
  return {mine.loss, c[0], c[1], c[2] > 0, c[3] > 0};
}

double Ranks::grad_norm(const Tensors& parameters) const {
  if (fabric_.world() || !is_active()) return strategy().grad_norm(parameters);
  // Alone, but with the bits that several ranks would have.
  Tensors gradients;
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  return dist::exact_norm(gradients, nullptr);
}

}  // namespace weft::train
