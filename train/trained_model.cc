#include "train/trained_model.h"

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/log.h"
#include "io/json_field.h"
#include "models/registry.h"
#include "nn/meta.h"
#include "train/precision.h"
#include "train/pretrained/pretrained.h"

namespace weft::train {
namespace {

std::string numbered(size_t i) { return fmt::format("class {}", i); }

/// Lets a model without memory have its weights come and go.
void dispatch(TrainedModel& trained, const NamedTensors& state, const nn::Placement& placement) {
  const nn::DeviceMap map =
      placement.map ? *placement.map : nn::auto_device_map(*trained.model, placement.budgets);
  trained.dispatched = nn::dispatch(*trained.model, state, map);
  trained.device = map.main;
}

}  // namespace

void TrainedModel::move_to(Device to) {
  model->to(to);
  device = to;
}

TrainedModel make_trained_model(const Config& config, const data::Preprocess& preprocess,
                                const std::vector<std::string>& classes) {
  models::ModelOptions options = {.image_size = preprocess.size,
                                  .classes = static_cast<int64_t>(classes.size())};
  // Only transformers have these: asked of another model they are refused by name.
  if (config.drop_path > 0) options.drop_path = config.drop_path;
  if (config.checkpoint_activations) options.checkpoint_activations = true;
  if (config.layer_norm_eps > 0) options.layer_norm_eps = config.layer_norm_eps;
  manual_seed(config.seed);
  TrainedModel trained{config, preprocess, classes, models::make_model(config.model, options)};
  trained.model->to(find_precision(config.precision).parameters);
  return trained;
}

void adapt_to(TrainedModel& trained, const data::Dataset& dataset) {
  const auto adapt = trained.model->structure().adapt_to;
  if (!adapt) return;
  constexpr int64_t kMostImages = 5000;
  const int64_t count = std::min(dataset.size(), kMostImages), size = trained.preprocess.size;
  Tensor images = Tensor::empty({count, 3, size, size});
  for (int64_t i = 0; i < count; ++i) {
    data::prepare_image(dataset.example(i).image, trained.preprocess,
                        images.data<float>() + i * 3 * size * size);
  }
  adapt(images);
}

nlohmann::json describe(const TrainedModel& m) {
  const data::Preprocess& p = m.preprocess;
  return {{"config", to_json(m.config)},
          {"classes", m.classes},
          {"preprocess",
           {{"size", p.size},
            {"fit", data::name(p.fit)},
            {"resize", p.resize},
            {"filter", data::name(p.filter)},
            {"mean", p.normalization.mean},
            {"std", p.normalization.std}}}};
}

io::Metadata weights_metadata(const TrainedModel& m) {
  Pretrained says;
  says.layer_norm_eps = m.config.layer_norm_eps;
  if (const auto* vit = dynamic_cast<const models::VisionTransformer*>(m.model.get())) {
    says.names = VitNames::kTorchvision;
    says.heads = vit->config.encoder.heads;
    says.preprocess = m.preprocess;
  }
  return source_metadata(says);
}

namespace {

/// The one of two that a key's value names.
template <class T>
T one_of(const nlohmann::json& object, const char* key, T first, T second) {
  const nlohmann::json& value = io::field(object, key);
  const bool is_first = value == data::name(first);
  WEFT_CHECK(is_first || value == data::name(second), "\"{}\": expected {} or {}, got {}", key,
             data::name(first), data::name(second), io::shown(value));
  return is_first ? first : second;
}

}  // namespace

TrainedModel restore_model(const Checkpoint& checkpoint, const io::Path& path, bool with_weights) {
  Config config;
  data::Preprocess preprocess;
  std::vector<std::string> classes;
  try {
    const nlohmann::json& state = checkpoint.state;
    config = config_from_json(io::object_field(state, "config"));
    WEFT_CHECK(!is_of_text(config),
               "a run on text ({}): \"weft eval --checkpoint {} --data FILE.txt\" measures it on a "
               "text, \"weft generate {}\" writes with it",
               config.data, path.string(), path.string());
    io::read_field(state, "classes", classes);
    const nlohmann::json& p = io::object_field(state, "preprocess");
    io::read_field(p, "size", preprocess.size);
    io::read_field(p, "resize", preprocess.resize);
    preprocess.fit = one_of(p, "fit", data::Fit::kStretch, data::Fit::kShorterSide);
    preprocess.filter = one_of(p, "filter", data::Filter::kBilinear, data::Filter::kBicubic);
    io::read_field(p, "mean", preprocess.normalization.mean);
    io::read_field(p, "std", preprocess.normalization.std);
    TrainedModel trained = make_trained_model(config, preprocess, classes);
    if (with_weights) trained.model->load_state_dict(checkpoint.model);
    return trained;
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: the state is not that of a training run: {}", path.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", path.string(), error.what());
  }
}

TrainedModel load_trained_model(const io::Path& path, const nn::Placement* placement) {
  const io::Path step = find_checkpoint(path);
  const Checkpoint checkpoint = load_checkpoint(step, CheckpointParts::kModel);
  if (!placement) return restore_model(checkpoint, step);
  std::optional<nn::MetaScope> meta(std::in_place);
  TrainedModel trained = restore_model(checkpoint, step, false);
  meta.reset();
  dispatch(trained, checkpoint.model, *placement);
  return trained;
}

TrainedModel load_pretrained_model(const io::Path& path, const nn::Placement* placement) {
  const Pretrained pretrained = read_pretrained(path);
  const models::VitConfig vit = vit_config_of(pretrained);
  if (!pretrained.guess.empty()) {
    log_once(fmt::format("{}: {}", pretrained.file.path.string(), pretrained.guess));
  }
  std::optional<nn::MetaScope> meta;
  if (placement) meta.emplace();
  TrainedModel trained{.config = {.model = "vision transformer", .weights = path.string()},
                       .preprocess = pretrained.preprocess,
                       .classes = pretrained.classes,
                       .model = std::make_unique<models::VisionTransformer>(vit)};
  meta.reset();
  if (placement) {
    dispatch(trained, pretrained.state, *placement);
  } else {
    load_pretrained(*trained.model, pretrained);
  }
  for (size_t i = trained.classes.size(); i < static_cast<size_t>(vit.classes); ++i) {
    trained.classes.push_back(numbered(i));
  }
  return trained;
}

bool has_class_names(const TrainedModel& model) { return model.classes.at(0) != numbered(0); }

Tensor classifying_logits(const Config& config, const std::function<Tensor(const Tensor&)>& forward,
                          const Tensor& images) {
  const Precision& precision = find_precision(config.precision);
  const Tensor logits = forward_logits(forward, images, precision);
  if (!config.test_time_flip) return logits;
  return (logits + forward_logits(forward, ops::flip(images, {3}), precision)) * 0.5;
}

int64_t count_correct(const Tensor& logits, const Tensor& labels) {
  NoGrad guard;
  const Tensor there = ops::to(labels, logits.device());
  return static_cast<int64_t>(ops::sum(ops::eq(ops::argmax(logits, 1), there)).item());
}

Evaluator::Evaluator(TrainedModel& model, Forward forward)
    : trained_(model),
      forward_(forward ? std::move(forward)
                       : [&model](const Tensor& x) { return (*model.model)(x); }),
      evaluating_(*model.model),
      scope_(enter_precision(model.config, fp8_)) {}

Tensor Evaluator::add(const Tensor& images, const Tensor& labels) {
  const int64_t n = labels.size(0);
  const int size = trained_.preprocess.size;
  const Tensor x = ops::to(n > 0 ? images : Tensor::zeros({1, 3, size, size}), trained_.device);
  const Tensor logits = classifying_logits(trained_.config, forward_, x);
  if (n == 0) return {};
  const Tensor there = ops::to(labels, trained_.device);
  loss_sum_ += ops::cross_entropy(logits, there).item() * static_cast<double>(n);
  correct_ += static_cast<double>(count_correct(logits, there));
  score_.examples += n;
  score_.loss = loss_sum_ / static_cast<double>(score_.examples);
  score_.accuracy = correct_ / static_cast<double>(score_.examples);
  return logits;
}

Score evaluate(TrainedModel& trained, data::Loader& loader, const Evaluation& evaluation) {
  const auto& [limit, progress, each] = evaluation;
  Evaluator evaluator(trained);
  loader.seek({loader.position().epoch, 0});
  int64_t batches = 0;
  while (auto batch = loader.next()) {
    const Tensor logits = evaluator.add(batch->images, batch->labels);
    ++batches;
    if (each && logits.defined()) each(*batch, logits);
    if (progress && !progress(batches, evaluator.score())) break;
    if (batches == limit) break;
  }
  return evaluator.score();
}

}  // namespace weft::train
