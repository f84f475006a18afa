#include "cli/ranked_step.h"

#include <optional>
#include <type_traits>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "cli/command.h"
#include "dist/comm/tree_accumulator.h"
#include "dist/model_parallel/stages.h"
#include "nn/meta.h"

namespace weft::cli {
namespace {

std::unique_ptr<models::Classifier> make_model(const RankedStepOptions& options) {
  manual_seed(0);
  return models::make_model(options.model, options.options);
}

/// Elements of an image's activation behind each segment.
std::vector<int64_t> activations_between(const models::Classifier& model,
                                         const nn::Segments& segments) {
  const NoGrad guard;
  const int64_t size = model.image_size();
  Tensor x = Tensor::zeros({1, model.channels(), size, size});
  std::vector<int64_t> elements;
  for (const nn::Segment& segment : segments) {
    x = segment.forward(x);
    elements.push_back(x.numel());
  }
  return elements;
}

}  // namespace

void add_strategy_settings(CLI::App& command, dist::StrategyOptions& settings,
                           const std::map<dist::Settings, std::string>& usual) {
  using dist::Settings;
  command.option_defaults()->group("Settings of strategies");
  const auto add = [&](const char* name, Settings setting, auto& value, const char* help) {
    if (!usual.contains(setting)) return;
    const std::string text = fmt::format("{}; of {}", help, dist::strategies_with(setting));
    if constexpr (std::is_same_v<decltype(value), bool&>) {
      command.add_flag(name, value, text);
    } else {
      add_option(command, name, value, text,
                 {.check = CLI::PositiveNumber, .usual = usual.at(setting)});
    }
  };
  add("--shard-size", Settings::kShardSize, settings.shard_size,
      "Devices that hold one sharded copy of the model");
  add("--tensor-parallel", Settings::kTensorParallel, settings.tensor_parallel,
      "Devices that each layer is split over");
  add("--sequence-parallel", Settings::kSequenceParallel, settings.sequence_parallel,
      "Shard the tokens between layers that are split");
  add("--parallel-head", Settings::kParallelHead, settings.parallel_head,
      "Split the head and the loss by classes");
  add("--pipeline-stages", Settings::kPipelineStages, settings.pipeline_stages,
      "Stages that the model is split into along its depth");
  add("--micro-batches", Settings::kMicroBatches, settings.micro_batches,
      "Micro-batches that a batch is split into");
}

int64_t images_of(const RankedStepOptions& options, const dist::Sharing& sharing) {
  return options.batch * sharing.tensor * sharing.stages * sharing.threads;
}

dist::StrategyOptions filled(const RankedStepOptions& options, int devices) {
  dist::StrategyOptions strategy = options.strategy;
  if (options.precision == "bf16") strategy.product_dtype = "bf16";
  if (!contains(dist::strategy_of(strategy, devices).settings, dist::Settings::kMicroBatches)) {
    return strategy;
  }
  const dist::Sharing sharing = dist::sharing_of(strategy, devices);
  if (options.deterministic > 0) {
    strategy.micro_batches = options.deterministic / sharing.data_devices();
    return strategy;
  }
  const int64_t images = images_of(options, sharing);
  const int64_t most = (images + sharing.micro_batches - 1) / sharing.micro_batches;
  strategy.micro_batches = static_cast<int>((images + most - 1) / most);
  return strategy;
}

std::vector<dist::ModelLayout> layouts_of_model(const RankedStepOptions& options, int devices) {
  const dist::Sharing sharing = dist::sharing_of(filled(options, devices), devices);
  // Sizes need no memory, but a pipeline's activations do.
  std::optional<nn::MetaScope> meta;
  if (sharing.stages == 1) meta.emplace();
  const auto model = make_model(options);
  const nn::ModelStructure structure = model->structure();
  std::vector<dist::ModelLayout> layouts;
  for (int rank = 0; rank < sharing.ranks(); ++rank) {
    layouts.push_back(dist::layout_of(*model, structure, sharing, rank));
    layouts.back().state_tensors = optim::state_tensors(options.optimizer);
  }
  if (sharing.stages == 1) return layouts;
  const std::vector<int64_t> between = activations_between(*model, structure.segments);
  const std::vector<size_t> ends =
      dist::stage_ends(structure.segments, model->state_dict(), sharing.stages);
  for (int rank = 0; rank < sharing.ranks(); ++rank) {
    const int stage = sharing.stage_index(rank);
    if (stage > 0) layouts[rank].taken = between[ends[stage - 1] - 1];
    if (stage + 1 < sharing.stages) layouts[rank].given = between[ends[stage] - 1];
  }
  return layouts;
}

dist::ModelLayout layout_of_model(const RankedStepOptions& options) {
  RankedStepOptions alone = options;
  alone.strategy = {};
  return layouts_of_model(alone, 1)[0];
}

RankedStep::RankedStep(const RankedStepOptions& options, const dist::CommunicatorPtr& world)
    : autocast_(options.precision == "bf16" ? DType::bf16 : DType::f32) {
  {
    const MemoryScope scope(MemoryKind::kParameters);
    model_ = make_model(options);
  }
  const int devices = world ? world->size() : options.devices;
  const dist::StrategyOptions settings = filled(options, devices);
  strategy_ = dist::make_strategy(settings, world, devices);
  strategy_->wrap(*model_, model_->structure());
  optimizer_ = optim::make_optimizer(
      options.optimizer, strategy_->groups(optim::ParameterGroups(model_->named_parameters())),
      {{"lr", 1e-4}});
  count_ = images_of(options, dist::sharing_of(settings, devices));
  const int64_t size = model_->image_size();
  const Tensor images = ops::randn({count_, model_->channels(), size, size});
  std::vector<int64_t> classes(count_);
  for (int64_t i = 0; i < count_; ++i) classes[i] = i % model_->classes();
  const Tensor labels = Tensor::from(classes, {count_});
  is_deterministic_ = options.deterministic > 0;
  const int micro_batches = is_deterministic_ ? options.deterministic / strategy_->data_size()
                                              : strategy_->micro_batches();
  WEFT_CHECK(!is_deterministic_ || count_ % micro_batches == 0,
             "deterministic-reduce: {} images of a rank are not {} equal micro-batches", count_,
             micro_batches);
  int64_t begin = 0;
  for (int64_t rows : dist::split_evenly(count_, micro_batches)) {
    if (rows == 0) break;
    images_.push_back(ops::contiguous(ops::narrow(images, 0, begin, rows)));
    labels_.push_back(ops::contiguous(ops::narrow(labels, 0, begin, rows)));
    begin += rows;
  }
}

void RankedStep::run(const std::function<void(const char*)>& entering) {
  const Autocast mode(autocast_);
  const auto enter = [&](const char* phase) {
    if (entering) entering(phase);
  };
  optimizer_->zero_grad();
  const auto at = [&](int64_t i) {
    enter("forward");
    const auto loss = [this, i, enter](const Tensor& logits) {
      const double weight = static_cast<double>(images_[i].size(0)) /
                            static_cast<double>(count_ * strategy_->data_size());
      const Tensor mean = strategy_->cross_entropy(logits, labels_[i]) * weight;
      enter("backward");
      return mean;
    };
    return dist::MicroBatch{images_[i], loss};
  };
  dist::MicroBatches batches{.count = static_cast<int64_t>(images_.size()), .at = at};
  if (is_deterministic_) {
    dist::TreeAccumulator tree;
    const Tensors parameters = optimizer_->parameters();
    batches.accumulates = false;
    batches.after_each = [&] { tree.push(dist::take_gradients(parameters)); };
    strategy_->run(*model_, batches);
    dist::set_gradients(parameters, tree.finish());
  } else {
    strategy_->run(*model_, batches);
  }
  enter("optimizer");
  optimizer_->step();
  strategy_->after_step();
}

}  // namespace weft::cli
