#include "train/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "data/mix.h"
#include "data/sets/open.h"
#include "data/sets/open_text.h"
#include "dist/strategy/settings.h"
#include "dist/strategy/strategy_kind.h"
#include "io/json_field.h"
#include "io/nearest.h"
#include "io/quote.h"
#include "models/gpt_names.h"
#include "models/registry.h"
#include "optim/deepspeed_schedule.h"
#include "optim/registry.h"
#include "train/fp8_level.h"

namespace weft::dist {

static void to_json(nlohmann::json& json, Schedule schedule) { json = name(schedule); }
static void from_json(const nlohmann::json& json, Schedule& schedule) {
  schedule = parse_schedule(json.get<std::string>());
}

}  // namespace weft::dist

namespace weft::train {

static void to_json(nlohmann::json& json, const Limit& limit) {
  json = limit.count ? nlohmann::json(*limit.count) : nlohmann::json(limit.fraction);
}
static void from_json(const nlohmann::json& json, Limit& limit) {
  limit = json.is_number_integer() ? Limit(json.get<int64_t>()) : Limit(json.get<double>());
}

}  // namespace weft::train

template <>
struct weft::io::JsonKind<weft::dist::Schedule> : JsonKind<std::string> {};
template <>
struct weft::io::JsonKind<weft::train::Limit> {
  static constexpr const char* kName = "a count or a fraction";
  static bool fits(const nlohmann::json& value) {
    return value.is_number_float() || (value.is_number_integer() && JsonKind<int64_t>::fits(value));
  }
};

namespace weft::train {
namespace {

constexpr int64_t kLargestImage = 4096;

struct Recipe {
  std::string name, summary;
  Config config;
};

Config with_epochs(Config config, int64_t epochs) {
  config.epochs = epochs;
  return config;
}

const std::vector<Recipe>& recipes() {
  // What both reference runs share.
  static const Config cvpr2023 = {.data = "cifar10:cifar-10-batches-bin",
                                  .model = "vit_b_16",
                                  .image_size = 224,
                                  .epochs = 10,
                                  .batch_size = 16,
                                  .optimizer = "adam",
                                  .lr = 5e-5,
                                  .weight_decay = 0,
                                  .clip_norm = 0,
                                  .schedule = "constant",
                                  .warmup = 0,
                                  .normalize = false,
                                  .seed = 123};
  static const std::vector<Recipe> list = {
      {"builtin-quick",
       "the default: a compact transformer on the built-in images, in under 3 minutes",
       {.data = "builtin",
        .model = "cct",
        .epochs = 6,
        .batch_size = 64,
        .lr = 2e-3,
        .weight_decay = 0.05,
        .label_smoothing = 0.1,
        .augmentation = {.shift = 3, .flip = true}}},
      {"cifar10-quick",
       "a compact transformer on CIFAR-10, in ten minutes on two cores",
       {.data = "cifar10:cifar-10-batches-bin",
        .model = "cct_2_3x3",
        .epochs = 14,
        .batch_size = 64,
        .lr = 1.5e-3,
        .weight_decay = 0.05,
        .label_smoothing = 0.1,
        .augmentation = {.shift = 4, .flip = true},
        .precision = "bf16"}},
      {"cifar10-fast",
       "airbench, a small convolutional network that learns quickly, on CIFAR-10",
       {.data = "cifar10:cifar-10-batches-bin",
        .model = "airbench",
        .epochs = 6,
        .batch_size = 256,
        .optimizer = "sgd",
        .lr = 0.4,
        .weight_decay = 1.3e-3,
        .momentum = 0.85,
        .nesterov = true,
        .vector_lr = 16,
        .clip_norm = 0,
        .warmup = 0.23,
        .label_smoothing = 0.2,
        .augmentation = {.shift = 2, .flip = true, .alternate_flip = true},
        .test_time_flip = true,
        .precision = "bf16"}},
      {kTextRecipe,
       "a byte-level GPT on text of a grammar whose entropy its loss comes down to, in two minutes",
       {.data = "grammar",
        .model = "gpt_mini",
        .epochs = 2,
        .batch_size = 16,
        .lr = 1e-2,
        .weight_decay = 0.01}},
      {"cvpr2023-scratch",
       "ViT-B/16 from random weights on CIFAR-10 at 224 pixels, as the CVPR 2023 runs", cvpr2023},
      {"cvpr2023-finetune",
       "ViT-B/16 from --weights FILE, torchvision's vit_b_16-c867db91.pth, 3 epochs",
       with_epochs(cvpr2023, 3)},
  };
  return list;
}

const Recipe& find(const std::string& name) {
  const auto found = std::ranges::find(recipes(), name, &Recipe::name);
  WEFT_CHECK(found != recipes().end(), "unknown recipe \"{}\": expected one of {}{}", name,
             fmt::join(recipe_names(), ", "), io::did_you_mean(name, recipe_names()));
  return *found;
}

void check_choice(const char* setting, const std::string& value,
                  const std::vector<std::string>& known) {
  WEFT_CHECK(std::ranges::count(known, value) > 0, "{}: \"{}\" is not one of {}{}", setting, value,
             fmt::join(known, ", "), io::did_you_mean(value, known));
}

template <class T>
void check_positive(const char* setting, T value) {
  WEFT_CHECK(value > 0, "{}: expected a positive number, got {}", setting, value);
}
void check_share(const char* setting, double value) {
  WEFT_CHECK(value >= 0 && value < 1, "{}: expected a number in [0, 1), got {}", setting, value);
}
template <class T>
void check_not_negative(const char* setting, T value) {
  WEFT_CHECK(value >= 0, "{}: must not be negative, got {}", setting, value);
  if constexpr (std::is_floating_point_v<T>) {
    WEFT_CHECK(std::isfinite(value), "{}: expected a finite number, got {}", setting, value);
  }
}

void validate_precision(const Config& c) {
  const Precision& precision = find_precision(c.precision);
  check_supported(precision, capabilities_of(kernels::parse_accumulation(c.matmul_numerics)));
  check_choice("tf32-rounding", c.tf32_rounding, {"truncate", "nearest"});
  check_choice("fp8-scaling", c.fp8_scaling, {"current", "delayed"});
  check_fp8_level(c.fp8_level, precision, c.strategy, static_cast<int>(c.devices));
  WEFT_CHECK(!keeps_moments(parse_fp8_level(c.fp8_level)) || c.optimizer.starts_with("adam"),
             "fp8-level {}: keeps Adam's moments in few bits; optimizer {} has others", c.fp8_level,
             c.optimizer);
  WEFT_CHECK(c.watch == 0 || parse_fp8_level(c.fp8_level) != Fp8Level::kO3,
             "watch: not with fp8-level O3, of which each rank has its own matrices' gradients");
  const bool is_dynamic = c.loss_scale == "dynamic";
  WEFT_CHECK(is_dynamic || precision.scales_loss(),
             "loss-scale: only precision fp16 scales the loss, not {}", c.precision);
  if (!is_dynamic && c.loss_scale != "none") fixed_loss_scale(c);
  WEFT_CHECK(std::isfinite(c.initial_loss_scale) && c.initial_loss_scale > 0,
             "initial-loss-scale: expected a positive number, got {}", c.initial_loss_scale);
  WEFT_CHECK(c.min_loss_scale >= 0 && c.min_loss_scale <= c.initial_loss_scale,
             "min-loss-scale: expected a number in [0, initial-loss-scale = {}], got {}",
             c.initial_loss_scale, c.min_loss_scale);
  check_positive("loss-scale-window", c.loss_scale_window);
  check_positive("loss-scale-hysteresis", c.loss_scale_hysteresis);
}

// f("epochs", part.epochs) for each of the members named; nlohmann's macros for structs do the
// same.
#define WEFT_SETTING(member) f(#member, part.member);
#define WEFT_SETTINGS(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(WEFT_SETTING, __VA_ARGS__))

/// Calls f(key, member) for every setting: the one list that JSON is written from and read by.
template <class C, class F>
void for_each_setting(C& config, F&& f) {
  {
    auto& part = config;
    WEFT_SETTINGS(
        recipe, data, model, image_size, epochs, max_steps, max_time, batch_size, accumulate,
        limit_batches, limit_val_batches, val_check_interval, num_sanity_val_steps, monitor,
        early_stopping, min_delta, save_top_k, ema, weights, interpolation, layer_norm_eps, freeze,
        layer_decay, optimizer, lr, weight_decay, momentum, nesterov, betas, eps, vector_lr,
        clip_norm, nonfinite, schedule, warmup, label_smoothing, test_time_flip, drop_path,
        normalize, precision, matmul_numerics, tf32_rounding, loss_scale, initial_loss_scale,
        loss_scale_window, loss_scale_hysteresis, min_loss_scale, fp8_scaling, fp8_level,
        checkpoint_activations, seed, save_every, state_dict_type, watch, detect_anomaly, devices,
        global_batch_size, gradient_average, deterministic_reduce, collectives, capture)
  }
  {
    auto& part = config.augmentation;
    WEFT_SETTINGS(random_crop, shift, flip, alternate_flip, rand_augment, magnitude, erase, mixup,
                  cutmix)
  }
  dist::for_each_setting([&](const dist::SettingText& text, auto member) {
    std::string key = text.flag;
    std::ranges::replace(key, '-', '_');
    f(key.c_str(), config.strategy.*member);
  });
  f("strategy", config.strategy.name);
  f("pipeline_schedule", config.strategy.schedule);
}

constexpr int64_t kNoLimit = -1;  // of epochs

/// Whether the learning rate at a step depends on how many there are in all.
bool goes_by_all_steps(const Config& c) {
  if (optim::is_deepspeed_schedule(c.schedule)) return optim::goes_by_all_steps(c.schedule);
  return c.schedule != "constant" || c.warmup > 0;
}

/// When it ends, and what it looks at on the way.
void validate_length(const Config& c) {
  WEFT_CHECK(c.epochs > 0 || c.epochs == kNoLimit,
             "epochs: expected a positive number, or {} for no limit, got {}", kNoLimit, c.epochs);
  check_not_negative("max-steps", c.max_steps);
  WEFT_CHECK(c.max_time.empty() || parse_duration(c.max_time),
             "max-time: expected a duration, 90s, 10m, 2h, 1d or DD:HH:MM:SS, got {}",
             io::quote(c.max_time));
  WEFT_CHECK(has_step_limit(c) || !c.max_time.empty(),
             "epochs: {} is no limit; expected one of max-steps or max-time", kNoLimit);
  if (!c.limit_batches.is_zero()) c.limit_batches.check("limit-batches");
  if (!c.limit_val_batches.is_zero()) c.limit_val_batches.check("limit-val-batches");
  c.val_check_interval.check("val-check-interval");
  WEFT_CHECK(c.num_sanity_val_steps >= -1,
             "num-sanity-val-steps: expected a number of batches, or -1 for all, got {}",
             c.num_sanity_val_steps);
  check_choice("monitor", c.monitor, monitored(c));
  check_not_negative("early-stopping", c.early_stopping);
  WEFT_CHECK(std::isfinite(c.min_delta) && c.min_delta >= 0,
             "min-delta: expected a difference of 0 or more, got {}", c.min_delta);
  WEFT_CHECK(c.min_delta == 0 || c.early_stopping > 0,
             "min-delta: {} is what --early-stopping takes for an improvement; give that, too",
             c.min_delta);
  WEFT_CHECK(c.save_top_k >= -1,
             "save-top-k: expected a number of checkpoints, or -1 for all, got {}", c.save_top_k);
  check_share("ema", c.ema);
}

void validate_ranks(const Config& c) {
  constexpr int64_t kMostDevices = 1 << 16;
  WEFT_CHECK(c.devices > 0 && c.devices <= kMostDevices, "devices: expected 1 to {}, got {}",
             kMostDevices, c.devices);
  check_not_negative("global-batch-size", c.global_batch_size);
  const dist::StrategyOptions& s = c.strategy;
  for (const auto& [setting, value] :
       {std::pair("shard-size", s.shard_size), std::pair("tensor-parallel", s.tensor_parallel),
        std::pair("pipeline-stages", s.pipeline_stages),
        std::pair("micro-batches", s.micro_batches)}) {
    WEFT_CHECK(value >= 0 && value <= kMostDevices, "{}: expected up to {}, got {}", setting,
               kMostDevices, value);
  }
  check_choice("gradient-average", c.gradient_average, {"samples", "ranks"});
  check_choice("state-dict-type", c.state_dict_type, {"full", "sharded"});
  const dist::StrategyKind& strategy = dist::strategy_of(s, static_cast<int>(c.devices));
  const bool is_split = strategy.devices == dist::StrategyKind::Devices::kRanks &&
                        !contains(strategy.settings, dist::Settings::kBuckets);
  WEFT_CHECK(c.watch == 0 || !is_split,
             "watch: not with {}, of which no rank has whole gradients; it goes with single, dp "
             "and ddp",
             strategy.name);
  WEFT_CHECK(!c.detect_anomaly || strategy.devices != dist::StrategyKind::Devices::kThreads,
             "detect-anomaly: not with {}, whose threads are not watched; use ddp", strategy.name);
  const int devices = sharing_of(c).data_devices();
  check_choice("collectives", c.collectives, {"auto", "nccl", "exact"});
  check_choice("capture", c.capture, {"auto", "on", "off"});
  const int64_t m = c.deterministic_reduce;
  if (m == 0) return;
  WEFT_CHECK(c.collectives != "nccl",
             "collectives: nccl adds in an order of its own choice, deterministic-reduce={} in a "
             "fixed one; expected exact",
             m);
  WEFT_CHECK(m > 0 && m <= kMostDevices,
             "deterministic-reduce: expected 1 to {} micro-batches, got {}", kMostDevices, m);
  WEFT_CHECK(strategy.fixes_order(),
             "deterministic-reduce: not with {}, whose products are sums of as many parts as "
             "there are ranks",
             strategy.name);
  WEFT_CHECK(s.micro_batches == 0,
             "deterministic-reduce: it makes {} micro-batches itself; leave out micro-batches", m);
  WEFT_CHECK((devices & (devices - 1)) == 0 && m % devices == 0,
             "deterministic-reduce: {} micro-batches do not make a tree on {} devices; expected a "
             "power of "
             "two of them that divides {}",
             m, devices, m);
}

/// What is said of images alone must be left as it is.
void validate_text(const Config& c) {
  check_choice("model", c.model, text_model_names());
  WEFT_CHECK(c.model != kGpt2 || !c.weights.empty(),
             "model: gpt2 is the model that its weights describe; give --weights FILE");
  const nlohmann::json mine = to_json(c), usual = to_json(Config());
  for (const std::string& key : settings_of_images()) {
    std::string name = key;
    std::ranges::replace(name, '_', '-');
    WEFT_CHECK(
        mine.at(key) == usual.at(key),
        "{}: a setting of images, but data '{}' is text; leave it out{}", name, c.data,
        c.recipe == kTextRecipe ? "" : fmt::format(", or start from --recipe {}", kTextRecipe));
  }
}

void validate_data_and_model(const Config& c) {
  if (is_of_text(c)) return validate_text(c);
  data::check_data_spec(c.data);
  WEFT_CHECK(
      std::ranges::count(text_model_names(), c.model) == 0,
      "model: {} learns text, but data '{}' are images; expected --data grammar or a file of "
      "text",
      c.model, c.data);
  check_choice("model", c.model, models::model_names());
}

}  // namespace

bool is_of_text(const Config& config) { return data::is_text(config.data); }

const std::vector<std::string>& settings_of_images() {
  static const std::vector<std::string> keys = {"image_size",
                                                "interpolation",
                                                "layer_norm_eps",
                                                "label_smoothing",
                                                "drop_path",
                                                "normalize",
                                                "test_time_flip",
                                                "gradient_average",
                                                "deterministic_reduce",
                                                "random_crop",
                                                "shift",
                                                "flip",
                                                "alternate_flip",
                                                "rand_augment",
                                                "magnitude",
                                                "erase",
                                                "mixup",
                                                "cutmix"};
  return keys;
}

std::vector<std::string> text_model_names() {
  std::vector<std::string> names = models::gpt_names();
  names.emplace_back(kGpt2);
  return names;
}

std::vector<std::string> monitored(const Config& config) {
  std::vector<std::string> metrics = {"loss/validation", "loss/train"};
  if (!is_of_text(config)) {
    metrics.insert(metrics.end(), {"accuracy/validation", "accuracy/train"});
  }
  return metrics;
}

bool is_more_better(const std::string& metric) { return metric.starts_with("accuracy/"); }

int64_t trained_batches(const Config& config, int64_t all) {
  const Limit& limit = config.limit_batches;
  return limit.is_zero() || all == 0 ? all : limit.of(all, "limit-batches");
}

Limit limit_of_evaluation(const Config& config) {
  return config.limit_val_batches.is_zero() ? config.limit_batches : config.limit_val_batches;
}

int64_t evaluated_batches(const Config& config, int64_t all) {
  const Limit limit = limit_of_evaluation(config);
  const bool is_own = !config.limit_val_batches.is_zero();
  return limit.is_zero() ? all : limit.of(all, is_own ? "limit-val-batches" : "limit-batches");
}

std::optional<int64_t> epoch_limit(const Config& config) {
  if (config.epochs == kNoLimit) return {};
  return config.epochs;
}

bool has_step_limit(const Config& config) { return epoch_limit(config) || config.max_steps > 0; }

void check_validation_interval(const Config& config, int64_t batches) {
  const std::optional<int64_t>& count = config.val_check_interval.count;
  WEFT_CHECK(!count || *count <= batches,
             "val-check-interval: {} batches, but an epoch has {}; expected as many at most, or a "
             "fraction",
             *count, batches);
}

PrecisionScope enter_precision(const Config& config, Fp8Scaling& fp8) {
  return PrecisionScope(
      find_precision(config.precision), kernels::parse_accumulation(config.matmul_numerics), &fp8,
      config.tf32_rounding == "nearest" ? kernels::Tf32::kNearest : kernels::Tf32::kTruncate);
}

double fixed_loss_scale(const Config& config) {
  double scale = 0;
  const char* const end = config.loss_scale.data() + config.loss_scale.size();
  const auto [rest, error] = std::from_chars(config.loss_scale.data(), end, scale);
  WEFT_CHECK(error == std::errc() && rest == end && std::isfinite(scale) && scale > 0,
             "loss-scale: expected dynamic, none or a positive number, got \"{}\"",
             config.loss_scale);
  return scale;
}

std::optional<double> parse_duration(const std::string& text) {
  constexpr double kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  const char *at = text.data(), *const end = at + text.size();
  double seconds = 0;
  if (text.find(':') != std::string::npos) {
    for (const double unit : {kDay, kHour, kMinute, 1.0}) {
      int count = -1;
      const auto [rest, error] = std::from_chars(at, end, count);
      const bool is_last = unit == 1;
      if (error != std::errc() || count < 0 || (rest == end) != is_last) return {};
      if (!is_last && *rest != ':') return {};
      seconds += count * unit;
      at = rest + !is_last;
    }
  } else {
    const auto [rest, error] = std::from_chars(at, end, seconds);
    if (error != std::errc() || end - rest != 1) return {};
    const auto units = {std::pair('s', 1.0), {'m', kMinute}, {'h', kHour}, {'d', kDay}};
    const auto unit = std::ranges::find(units, *rest, &std::pair<char, double>::first);
    if (unit == units.end()) return {};
    seconds *= unit->second;
  }
  return std::isfinite(seconds) && seconds > 0 ? std::optional(seconds) : std::nullopt;
}

SaveEvery parse_save_every(const std::string& text) {
  SaveEvery every;
  if (text.empty()) return every;
  if (const std::optional<double> time = parse_duration(text)) return {.seconds = *time};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, every.steps);
  WEFT_CHECK(error == std::errc() && rest == end && every.steps > 0,
             "save-every: expected a number of steps, 500, or a time, 600s, 10m or 2h, got \"{}\"",
             text);
  return every;
}

Config recipe(const std::string& name) {
  Config config = find(name).config;
  config.recipe = name;
  return config;
}

std::string recipe_summary(const std::string& name) { return find(name).summary; }

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.push_back(recipe.name);
  return names;
}

void validate(const Config& c) {
  validate_data_and_model(c);
  validate_length(c);
  constexpr int64_t kMost = 1 << 30;
  for (const auto& [setting, number] :
       {std::pair("batch-size", c.batch_size), std::pair("accumulate", c.accumulate)}) {
    check_positive(setting, number);
    WEFT_CHECK(number <= kMost, "{}: expected up to {}, got {}", setting, kMost, number);
  }
  parse_save_every(c.save_every);
  check_not_negative("watch", c.watch);
  WEFT_CHECK(c.image_size >= 0 && c.image_size <= kLargestImage,
             "image-size: expected a number of pixels up to {}, got {}", kLargestImage,
             c.image_size);
  WEFT_CHECK(c.recipe != "cvpr2023-finetune" || !c.weights.empty(),
             "weights: cvpr2023-finetune starts from a file; give --weights FILE");
  check_choice("interpolation", c.interpolation, {"torchvision", "timm"});
  WEFT_CHECK(c.layer_decay > 0 && c.layer_decay <= 1,
             "layer-decay: expected a number in (0, 1], got {}", c.layer_decay);
  check_share("layer-norm-eps", c.layer_norm_eps);
  check_choice("optimizer", c.optimizer, optim::optimizer_names());
  if (optim::is_deepspeed_schedule(c.schedule)) {
    optim::deepspeed_schedule(c.schedule, {.lr = c.lr});
  } else {
    check_choice("schedule", c.schedule, {"one-cycle", "cosine", "constant"});
  }
  WEFT_CHECK(has_step_limit(c) || !goes_by_all_steps(c),
             "schedule: {}{} goes by the number of all steps, which epochs {} and max-time leave "
             "open; expected max-steps, a number of epochs, or schedule constant with warmup 0",
             optim::schedule_name(c.schedule),
             c.schedule == "constant" ? fmt::format(" with warmup {}", c.warmup) : "", kNoLimit);
  validate_precision(c);
  check_positive("lr", c.lr);
  check_not_negative("weight-decay", c.weight_decay);
  check_not_negative("clip-norm", c.clip_norm);
  WEFT_CHECK(std::isfinite(c.lr), "lr: expected a finite number, got {}", c.lr);
  check_choice("nonfinite", c.nonfinite, {"stop", "skip"});
  check_share("momentum", c.momentum);
  const optim::Options options = optim::optimizer_options(c.optimizer);
  const auto check_is_option = [&](const char* setting, bool is_set, const char* option) {
    WEFT_CHECK(!is_set || options.contains(option), "{}: optimizer {} has none", setting,
               c.optimizer);
  };
  check_is_option("nesterov", c.nesterov, "nesterov");
  WEFT_CHECK(!c.nesterov || c.momentum > 0, "nesterov: needs a momentum, got {}", c.momentum);
  const Config usual;
  check_is_option("betas", c.betas != usual.betas, "beta1");
  WEFT_CHECK(c.betas.size() == 2, "betas: expected two numbers, got {}", c.betas.size());
  for (const double beta : c.betas) check_share("betas", beta);
  check_is_option("eps", c.eps != usual.eps, "eps");
  WEFT_CHECK(std::isfinite(c.eps) && c.eps >= 0,
             "eps: expected a number that is not negative, got {}", c.eps);
  WEFT_CHECK(std::isfinite(c.vector_lr) && c.vector_lr > 0,
             "vector-lr: expected a positive number, got {}", c.vector_lr);
  check_share("warmup", c.warmup);
  check_share("label-smoothing", c.label_smoothing);
  check_share("drop-path", c.drop_path);
  for_each_setting(c, [](const std::string& setting, const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
      WEFT_CHECK(io::is_utf8(value), "{}: expected UTF-8, got {}", setting, io::quote(value));
    }
  });
  const data::Augmentation& a = c.augmentation;
  WEFT_CHECK(a.shift >= 0 && a.shift <= kLargestImage, "shift: expected 0 to {} pixels, got {}",
             kLargestImage, a.shift);
  WEFT_CHECK(a.rand_augment >= 0 && a.rand_augment <= 100,
             "rand-augment: expected 0 to 100 operations, got {}", a.rand_augment);
  WEFT_CHECK(a.magnitude >= 0 && a.magnitude <= 30, "magnitude: expected 0 to 30, got {}",
             a.magnitude);
  WEFT_CHECK(a.erase >= 0 && a.erase <= 1, "erase: expected a probability, got {}", a.erase);
  data::check_mixing("mixup", a.mixup);
  data::check_mixing("cutmix", a.cutmix);
  validate_ranks(c);
}

dist::Sharing sharing_of(const Config& config) {
  return dist::sharing_of(config.strategy, static_cast<int>(config.devices));
}

nlohmann::json to_json(const Config& config) {
  nlohmann::json json = nlohmann::json::object();
  for_each_setting(config, [&](const char* key, const auto& value) { json[key] = value; });
  return json;
}

Config config_from_json(const nlohmann::json& json) {
  WEFT_CHECK(json.is_object(), "configuration: expected an object, got {}", json.dump());
  Config config;
  std::set<std::string> known;
  for_each_setting(config, [&](const char* key, auto& value) {
    known.insert(key);
    if (!json.contains(key)) return;
    try {
      io::read_field(json, key, value);
    } catch (const Error& error) {
      WEFT_FAIL("configuration: {}", error.what());
    }
  });
  for (const auto& [key, value] : json.items()) {
    WEFT_CHECK(known.count(key) > 0,
               "configuration: unknown key \"{}\"; a newer program may know it", key);
  }
  return config;
}

}  // namespace weft::train
