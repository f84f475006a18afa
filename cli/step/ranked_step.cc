#include "cli/step/ranked_step.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "cli/command.h"
#include "dist/comm/tree_accumulator.h"
#include "dist/model_parallel/stages.h"
#include "dist/strategy/settings.h"
#include "models/classifier.h"
#include "models/gpt_names.h"
#include "models/option_taker.h"
#include "nn/meta.h"

namespace weft::cli {
namespace {

Rows random_rows(const nn::Module& model, int64_t count) {
  const auto numbers = [](int64_t n, int64_t first, int64_t below) {
    std::vector<int64_t> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = (first + i) % below;
    return values;
  };
  const nn::BatchRow row = model.batch_row();
  Shape shape = row.shape;
  shape.insert(0, count);
  if (row.has_tokens) {
    return {Tensor::from(numbers(numel(shape), 0, row.classes), shape),
            Tensor::from(numbers(numel(shape), 1, row.classes), shape)};
  }
  return {ops::randn(shape), Tensor::from(numbers(count, 0, row.classes), {count})};
}

/// Elements of one row's activation behind each segment.
std::vector<int64_t> activations_between(const nn::Module& model, const nn::Segments& segments) {
  const NoGrad guard;
  Tensor x = random_rows(model, 1).inputs;
  std::vector<int64_t> elements;
  for (const nn::Segment& segment : segments) {
    x = segment.forward(x);
    elements.push_back(x.numel());
  }
  return elements;
}

}  // namespace

std::vector<std::string> step_model_names() {
  std::vector<std::string> names = models::model_names();
  for (std::string& name : models::gpt_names()) names.push_back(std::move(name));
  return names;
}

std::unique_ptr<nn::Module> make_step_model(const RankedStepOptions& options) {
  manual_seed(0);
  const std::vector<std::string> of_text = models::gpt_names();
  if (std::ranges::count(of_text, options.model) == 0) {
    return models::make_model(options.model, options.options);
  }
  models::GptConfig config = models::gpt_config(options.model);
  models::OptionTaker taker(options.model, options.options);
  taker.take(&models::ModelOptions::layers, config.layers);
  taker.take(&models::ModelOptions::checkpoint_activations, config.checkpoint_activations);
  taker.finish();
  return std::make_unique<models::Gpt>(config);
}

void add_strategy_settings(Command& command, dist::StrategyOptions& settings,
                           const std::map<dist::Settings, std::string>& usual) {
  command.group("Settings of strategies");
  dist::for_each_setting(
      [&]<class Value>(const dist::SettingText& text, Value dist::StrategyOptions::*member) {
        if (!usual.contains(text.setting)) return;
        const std::string name = fmt::format("--{}", text.flag);
        const std::string help =
            fmt::format("{}; of {}", text.help, dist::strategies_with(text.setting));
        if constexpr (std::is_same_v<Value, bool>) {
          command.flag(name, settings.*member, help);
        } else if constexpr (std::is_same_v<Value, int>) {
          command.option(name, settings.*member, help,
                         {.check = positive(), .usual = usual.at(text.setting)});
        }
      });
}

int64_t images_of(const RankedStepOptions& options, const dist::Sharing& sharing) {
  const int64_t sharers = options.is_batch_shared ? 1 : sharing.tensor * sharing.stages;
  return options.batch * sharers * sharing.threads;
}

dist::StrategyOptions filled(const RankedStepOptions& options, int devices) {
  dist::StrategyOptions strategy = options.strategy;
  const DType products = train::find_precision(options.precision).rounds_weights_to();
  if (products != DType::f32) strategy.product_dtype = name(products);
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
  const auto model = make_step_model(options);
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
    : precision_(train::find_precision(options.precision)),
      fabric_({.devices = world ? world->size() : options.devices,
               .precision = options.precision,
               .strategy = filled(options, world ? world->size() : options.devices),
               .numerics = {.fp8_level = options.fp8_level}}) {
  fabric_.launch(world);
  {
    const MemoryScope scope(MemoryKind::kParameters);
    model_ = make_step_model(options);
    if (precision_.parameters != DType::f32) model_->to(precision_.parameters);
  }
  optimizer_ = optim::make_optimizer(options.optimizer, model_->named_parameters(), {{"lr", 1e-4}});
  fabric_.setup(*model_, *optimizer_);
  const int devices = world ? world->size() : options.devices;
  count_ = images_of(options, dist::sharing_of(filled(options, devices), devices));
  const Rows rows = random_rows(*model_, count_);
  is_deterministic_ = options.deterministic > 0;
  const int micro_batches = is_deterministic_ ? options.deterministic / strategy().data_size()
                                              : strategy().micro_batches();
  WEFT_CHECK(!is_deterministic_ || count_ % micro_batches == 0,
             "deterministic-reduce: {} images of a rank are not {} equal micro-batches", count_,
             micro_batches);
  int64_t begin = 0;
  for (int64_t part : dist::split_evenly(count_, micro_batches)) {
    if (part == 0) break;
    inputs_.push_back(ops::contiguous(ops::narrow(rows.inputs, 0, begin, part)));
    targets_.push_back(ops::contiguous(ops::narrow(rows.targets, 0, begin, part)));
    begin += part;
  }
  if (model_->batch_row().has_tokens) return;  // text is cut into windows when they are asked for
  for (int i = 0; i < options.batches_ahead; ++i) {
    ahead_.push_back(random_rows(*model_, inputs_[0].size(0)));
  }
}

void RankedStep::run(const std::function<void(const char*)>& entering) {
  const auto enter = [&](const char* phase) {
    if (entering) entering(phase);
  };
  optimizer_->zero_grad();
  const auto at = [&](int64_t i) {
    enter("forward");
    const auto loss = [this, i, enter](const Tensor& output) {
      const double weight = static_cast<double>(inputs_[i].size(0)) /
                            static_cast<double>(count_ * strategy().data_size());
      const Tensor logits = ops::flatten(train::widened(output, precision_), 0, -2);
      const Tensor share = strategy().cross_entropy(logits, ops::flatten(targets_[i])) * weight;
      enter("backward");
      return fabric_.scaled(share);
    };
    const Tensor& rows = inputs_[i];
    const bool is_cast = is_floating(rows.dtype());
    return dist::MicroBatch{is_cast ? ops::cast(rows, precision_.parameters) : rows, loss};
  };
  dist::MicroBatches batches{.count = static_cast<int64_t>(inputs_.size()), .at = at};
  if (is_deterministic_) {
    dist::TreeAccumulator tree;
    const Tensors parameters = optimizer_->parameters();
    batches.accumulates = false;
    batches.after_each = [&] { tree.push(dist::take_gradients(parameters)); };
    fabric_.run(batches);
    dist::set_gradients(parameters, tree.finish());
  } else {
    fabric_.run(batches);
  }
  enter("optimizer");
  optimizer_->step();
}

}  // namespace weft::cli
