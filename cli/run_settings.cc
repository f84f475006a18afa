#include "cli/run_settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "cli/command.h"
#include "cli/devices_option.h"
#include "cli/resolved_settings.h"
#include "dist/strategy/aliases.h"
#include "dist/strategy/settings.h"
#include "dist/strategy/strategy_kind.h"
#include "models/registry.h"
#include "optim/deepspeed_schedule.h"
#include "optim/registry.h"
#include "train/config_files/config_file.h"
#include "train/config_yaml.h"
#include "train/precision.h"

namespace weft::cli {
namespace {

constexpr const char* kCommandLine = "command line";
constexpr const char* kDefaultRecipe = "builtin-quick";

/// "--batch-size N" as train::Config's JSON has it: "batch_size".
std::string key_of(const std::string& option) {
  std::string key = option.substr(2, option.find_first_of(" ,") - 2);
  std::ranges::replace(key, '-', '_');
  return key;
}

/// Declares options that replace one setting of the recipe each, with the default recipe's value as
/// their default.
class Settings {
 public:
  Settings(Command& command, RunSettings& settings) : command_(command), settings_(settings) {}

  /// `name` ends in what the option takes: "--epochs N". A member of Config, or a function from a
  /// Config to a reference. `usual` says what the default means where its value does not.
  template <class Member>
  void add(const std::string& name, Member member, const std::string& help,
           const std::string& usual = "") {
    using T = std::decay_t<std::invoke_result_t<Member, train::Config&>>;
    const T& value = std::invoke(member, usual_);
    io::OptionForm form{.usual = usual};
    if constexpr (std::is_same_v<T, bool>) {
      form.usual = value ? "on" : "off";
    } else if constexpr (fmt::is_formattable<T>::value) {
      if (usual.empty()) form.usual = fmt::format("{}", value);
      // CLI11 reads -1 as the largest unsigned number.
      if (std::is_unsigned_v<T>) form.check = non_negative();
    }
    add<T>(
        name, [member](train::Config& c, const T& given) { std::invoke(member, c) = given; }, help,
        std::move(form));
  }

  /// The same for what `apply` puts into a Config.
  template <class T, class Apply>
  void add(const std::string& name, Apply apply, const std::string& help, io::OptionForm form) {
    const auto value = std::make_shared<T>();
    form.then = [&settings = settings_, key = key_of(name), apply, value] {
      settings.overrides.push_back(
          {key, [apply, given = *value](train::Config& c) { apply(c, given); }});
    };
    if constexpr (std::is_same_v<T, bool>) {
      command_.flag(name, *value, help, form);
    } else {
      const size_t space = name.find(' ');
      form.takes = name.substr(space + 1);
      command_.option(name.substr(0, space), *value, help, form);
    }
  }

  /// A count, or a fraction of all.
  void add_limit(const std::string& name, train::Limit train::Config::*member,
                 const std::string& help, const std::string& usual) {
    add<std::string>(name,
                     [member, option = name.substr(2, name.find(' ') - 2)](
                         train::Config& c, const std::string& text) {
                       c.*member = train::Limit::parse(text, option.c_str());
                     },
                     help, {.usual = usual});
  }

  /// Off unless named, with a count that may be left out: "--watch" or "--watch 4".
  void add_count(const std::string& name, int64_t train::Config::*member, int64_t usual,
                 const std::string& help) {
    add<int64_t>(name + " [N]", [member](train::Config& c, int64_t count) { c.*member = count; },
                 help + "; 0, as where it is not given: off",
                 {.usual = std::to_string(usual), .count = {{0, 1}}});
  }

 private:
  Command& command_;
  RunSettings& settings_;
  train::Config usual_ = train::recipe(kDefaultRecipe);
};

/// The recipe where none is named: that of text for who names text or a model of it.
std::string usual_recipe(const RunSettings& settings, const train::ConfigFile& file) {
  train::Config config = with_file(train::recipe(kDefaultRecipe), file);
  for (const RunSettings::Override& override : settings.overrides) override.apply(config);
  const bool is_text =
      train::is_of_text(config) || std::ranges::count(train::text_model_names(), config.model) > 0;
  return is_text ? train::kTextRecipe : kDefaultRecipe;
}

/// Puts the file's batch rule into effect. What the command line says is a part of it.
void solve(const train::ConfigFile& file, EffectiveSettings& settings) {
  train::Config& config = settings.config;
  train::BatchRule rule = file.batch;
  const bool has_rule = rule.total > 0;
  const auto take = [&](const char* key, int64_t value, int64_t& part) {
    std::string& origin = settings.origins[key];
    if (origin == kCommandLine) {
      part = std::max<int64_t>(0, value);  // what is no number of anything is told below
    } else if (has_rule || part > 0) {
      origin = file.path + ": train_batch_size and its like";
    }
    return part > 0 || origin != kCommandLine;
  };
  const bool has_micro = take("batch_size", config.batch_size, rule.micro);
  const bool has_accumulation = take("accumulate", config.accumulate, rule.accumulation);
  if (has_micro && has_accumulation && config.devices > 0) apply(rule, file.path, config);
}

/// Puts the file's format of gradients on their way into effect, under the strategy that there is.
void set_communication(const train::ConfigFile& file, EffectiveSettings& settings) {
  if (file.communication_dtype.empty()) return;
  const auto origin = settings.origins.extract("communication_dtype");
  train::Config& config = settings.config;
  if (const char* const key = apply_communication_dtype(file, config)) {
    settings.origins[key] = origin.mapped();
    return;
  }
  const int devices = static_cast<int>(config.devices);
  settings.notes.push_back(fmt::format(
      "{}: under strategy {} gradients travel, if at all, in their own format",
      file.keys.at("communication_dtype"), dist::strategy_of(config.strategy, devices).name));
}

/// With what DeepSpeed has in the place of what a file of its leaves out.
train::ConfigFile with_defaults(train::ConfigFile file) {
  for (const auto& [key, value] : file.defaults.items()) {
    if (!file.settings.contains(key)) file.set(key, value, "DeepSpeed's default");
  }
  return file;
}

/// Runs `check`, and puts the file and its key before an Error about a setting that comes from
/// there. Such an error begins with the setting's name.
template <class Check>
void with_origin(const EffectiveSettings& settings, const train::ConfigFile& file,
                 const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    std::string message = error.what();
    const std::string place = file.path + ": ";
    const size_t begin = message.starts_with("unknown ") ? std::strlen("unknown ") : 0;
    const size_t end = std::min(
        message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", begin), message.size());
    const std::string name = message.substr(begin, end - begin);
    std::string key = name;
    std::ranges::replace(key, '-', '_');
    const auto origin = settings.origins.find(key);
    if (file.path.empty() || origin == settings.origins.end() ||
        !origin->second.starts_with(place)) {
      throw;
    }
    const std::string its = origin->second.substr(place.size());
    // Not its name twice.
    if (train::option_name(its) == name && message.starts_with(name + ": ")) {
      message.erase(0, name.size() + 2);
    }
    throw Error(fmt::format("{}key \"{}\": {}", place, its, message));
  }
}

/// Throws Error naming a setting of the command line that another one makes nothing of, or of any
/// origin but a recipe that the model has not.
void check_effect(const EffectiveSettings& settings, const Device& kind) {
  const train::Config& config = settings.config;
  const auto is_said = [&](const std::string& key) {
    return settings.origins.at(key) == kCommandLine;
  };
  WEFT_CHECK(!is_said("batch_size") || config.global_batch_size == 0,
             "batch-size: {} images on each device, and global-batch-size {} on all of them ({}); "
             "expected one of the two",
             config.batch_size, config.global_batch_size, settings.origins.at("global_batch_size"));
  const nlohmann::json mine = to_json(config), usual = to_json(train::Config());
  std::optional<ResolvedSettings> resolved;
  const auto check = [&](const std::string& key, bool is_asked, auto&& say) {
    if (!is_asked) return;
    if (!resolved) resolved = resolve(config, kind);
    const auto unused = resolved->unused.find(key);
    if (unused != resolved->unused.end()) say(train::option_name(key), unused->second);
  };
  for (const char* key : {"drop_path", "layer_norm_eps", "checkpoint_activations"}) {
    const bool is_asked =
        mine.at(key) != usual.at(key) && !settings.origins.at(key).starts_with("recipe ");
    check(key, is_asked, [&](const std::string& name, const auto& what) {
      WEFT_FAIL("{}: {} is set, but model {}", name, mine.at(key).dump(), what);
    });
  }
  // Others go by the devices, which a command line may be for several of.
  for (const char* key :
       {"magnitude", "alternate_flip", "interpolation", "initial_loss_scale", "loss_scale_window",
        "loss_scale_hysteresis", "min_loss_scale", "tf32_rounding", "fp8_scaling"}) {
    const bool is_asked = is_said(key) && mine.at(key) != false;
    check(key, is_asked, [&](const std::string& name, const auto& what) {
      WEFT_FAIL("{}: a setting {}, which this run has not; expected that, too, or neither", name,
                what);
    });
  }
}

std::string recipes_help() {
  std::string text =
      "A recipe has a value for every setting; an option replaces one of them. The defaults above\n"
      "are those of builtin-quick.\n\nRecipes:";
  for (const std::string& name : train::recipe_names()) {
    text += fmt::format("\n  {:<18} {}", name, train::recipe_summary(name));
  }
  return text;
}

}  // namespace

void add_run_settings(Command& command, RunSettings& settings) {
  Settings add(command, settings);
  using C = train::Config;
  command.footer(recipes_help());
  command.option("--recipe", settings.recipe,
                 "The settings to start from, one of the recipes listed below",
                 {.check = not_empty(), .usual = kDefaultRecipe});
  command.option("--config", settings.file,
                 "Settings from a file, YAML or JSON, on top of the recipe's: by these options' "
                 "names, or a file of Accelerate or DeepSpeed",
                 {.check = not_empty(), .takes = "FILE", .usual = "none"});

  command.group("Data");
  add.add("--data DATA", &C::data,
          "Images to train on: builtin, cifar10:DIR, mnist:DIR or folder:DIR; or text: grammar, "
          "whose entropy is known, text:FILE or FILE.txt");
  add.add("--image-size N", &C::image_size,
          "Height and width that images are resized to, in pixels", "the data's own, up to 224");
  add.add_limit("--limit-batches N", &C::limit_batches,
                "Batches after which an epoch or an evaluation stops, a count, 10, or a fraction, "
                "0.1; 0: no limit",
                "all");
  add.add_limit("--limit-val-batches N", &C::limit_val_batches,
                "Batches after which an evaluation stops, a count or a fraction",
                "as --limit-batches");
  const auto augmentation = [&](const char* name, auto member, const char* help) {
    add.add(
        name, [member](C & c) -> auto& { return c.augmentation.*member; }, help);
  };
  using A = data::Augmentation;
  augmentation("--random-crop,!--no-random-crop", &A::random_crop,
               "Crop training images that are no squares at random, and not from the centre");
  augmentation("--shift N", &A::shift, "Move training images at random by up to N pixels");
  augmentation("--flip,!--no-flip", &A::flip, "Mirror half of the training images");
  augmentation("--alternate-flip,!--no-alternate-flip", &A::alternate_flip,
               "With --flip: mirror in each epoch those that the one before did not");
  augmentation("--rand-augment N", &A::rand_augment, "RandAugment operations per training image");
  augmentation("--magnitude N", &A::magnitude, "Magnitude of RandAugment's operations, 0 to 30");
  augmentation("--erase P", &A::erase,
               "Probability of erasing a random rectangle of a training image");
  augmentation("--mixup ALPHA", &A::mixup,
               "Blend pairs of training images, by Beta(ALPHA, ALPHA); 0: no mixup");
  augmentation("--cutmix ALPHA", &A::cutmix,
               "Paste a rectangle of one training image into another, its share by "
               "Beta(ALPHA, ALPHA); 0: no cutmix");
  add.add(
      "--normalize,!--no-normalize", &C::normalize,
      "Take the data's mean from images and divide by its deviation; else pixels are in [0, 1]");

  command.group("Model");
  add.add("--model NAME", &C::model,
          fmt::format("The model to train: {}; of text {}", fmt::join(models::model_names(), ", "),
                      fmt::join(train::text_model_names(), ", ")));
  add.add("--weights FILE", &C::weights,
          "Start from trained weights, a safetensors or torch.save file under torchvision's, "
          "timm's or Hugging Face's names; of a language model the weights of a run, or with "
          "--model gpt2 a GPT-2's",
          "random weights");
  add.add("--interpolation RULE", &C::interpolation,
          "Rule by which the weights' position embeddings are interpolated to another image "
          "size: torchvision or timm");
  add.add("--freeze PATTERN", &C::freeze,
          "Parameters not to train: names, modules or patterns with * and ?", "none");
  add.add("--layer-norm-eps X", &C::layer_norm_eps,
          "What layer normalisation adds to the variance, in vision transformers",
          "the weights', or the model's own");
  add.add("--drop-path P", &C::drop_path,
          "Probability of skipping the last transformer block; it grows linearly from 0 at "
          "the first");

  command.group("Optimization");
  add.add("--epochs N", &C::epochs,
          "Passes over the training images; -1: no limit, --max-steps or --max-time end the run");
  add.add("--max-steps N", &C::max_steps,
          "Steps after which the run ends, if its epochs have not ended before", "no limit");
  add.add("--max-time DURATION", &C::max_time,
          "Time after which the run ends, that before a --resume included: 90s, 10m, 2h, 1d or "
          "DD:HH:MM:SS",
          "no limit");
  add.add("--batch-size N", &C::batch_size,
          "Images, or windows of text, per device in one forward and backward pass");
  add.add("--accumulate N", &C::accumulate,
          "Gradient accumulation: batches whose gradients make one optimizer step");
  add.add("--optimizer NAME", &C::optimizer,
          fmt::format("The optimizer: {}", fmt::join(optim::optimizer_names(), ", ")));
  add.add("--lr X", &C::lr, "Learning rate at the peak of the schedule");
  add.add("--schedule NAME", &C::schedule,
          "Learning rate over the steps: one-cycle, cosine or constant; or a DeepSpeed scheduler's "
          "JSON");
  add.add("--warmup X", &C::warmup,
          "Share of all steps in which the learning rate rises to its peak");
  add.add("--layer-decay X", &C::layer_decay,
          "Factor on the learning rate from each transformer layer to the one before it; "
          "1: no decay");
  add.add("--weight-decay X", &C::weight_decay,
          "Weight decay, of all parameters but biases and normalisation");
  add.add("--momentum X", &C::momentum, "Momentum, of sgd, lars and muon");
  add.add("--nesterov", &C::nesterov, "Take Nesterov's momentum, of sgd and muon");
  add.add("--betas X X", &C::betas, "beta1 and beta2 of Adam and LAMB, as two numbers",
          "0.9 0.999");
  add.add("--eps X", &C::eps, "What Adam and LAMB add to the root of the second moment");
  add.add("--vector-lr X", &C::vector_lr,
          "Factor on the learning rate of biases and other vectors");
  add.add("--clip-norm X", &C::clip_norm, "Norm that gradients are clipped to; 0: no clipping");
  add.add("--nonfinite NAME", &C::nonfinite,
          "Where a loss or a gradient is not finite: stop, and name what first was not, or "
          "skip the step");
  add.add("--ema DECAY", &C::ema,
          "Validate, save and end with an exponential moving average of the weights that decays "
          "by this factor a step, such as 0.999; 0: with the weights themselves");
  add.add("--label-smoothing X", &C::label_smoothing,
          "Probability spread over all classes of a label, in [0, 1)");
  add.add("--test-time-flip,!--no-test-time-flip", &C::test_time_flip,
          "Classify by the mean logits of an image and its mirror image");
  add.add("--seed N", &C::seed, "Seed of weights, order of images, augmentation and dropout");

  command.group("Validation");
  add.add_limit("--val-check-interval N", &C::val_check_interval,
                "Training batches from validation to validation, a count, 100, or a fraction of an "
                "epoch, 0.25",
                "at the ends of epochs");
  add.add("--num-sanity-val-steps N", &C::num_sanity_val_steps,
          "Validation batches that are tried before anything is trained; -1: all");
  add.add("--monitor METRIC", &C::monitor,
          "What --early-stopping and --save-top-k go by: loss/validation or loss/train; of images "
          "also accuracy/validation or accuracy/train, of which more is better");
  add.add_count("--early-stopping", &C::early_stopping, 3,
                "Patience: end the run when the monitored metric has not got better in N looks, "
                "one after each validation");
  add.add("--min-delta X", &C::min_delta,
          "Difference that an improvement has to exceed, for --early-stopping");
  add.add("--save-top-k K", &C::save_top_k,
          "Checkpoints that are kept besides the latest two, the best by the monitored metric "
          "after validations; -1: all");

  command.group("Precision");
  add.add("--precision NAME", &C::precision,
          fmt::format("What is computed in which format: {}; Lightning Fabric's names too "
                      "(bf16-mixed, ...)",
                      train::precision_names()));
  add.add("--matmul-numerics NAME", &C::matmul_numerics,
          fmt::format("Arithmetic of matrix products, the CPU's, exact, or bit for bit that "
                      "of a GPU's tensor cores: {}",
                      fmt::join(kernels::accumulation_names(), ", ")));
  add.add("--tf32-rounding RULE", &C::tf32_rounding,
          "Rounding of operands to TF32: truncate or nearest");
  add.add("--loss-scale SCALE", &C::loss_scale,
          "Loss scale under fp16: dynamic, none or a fixed number");
  add.add("--initial-loss-scale X", &C::initial_loss_scale,
          "Loss scale that a dynamic one begins at");
  add.add("--loss-scale-window N", &C::loss_scale_window,
          "Steps in a row without an infinity after which a dynamic loss scale doubles");
  add.add("--loss-scale-hysteresis N", &C::loss_scale_hysteresis,
          "Steps with an infinity after which a dynamic loss scale halves");
  add.add("--min-loss-scale X", &C::min_loss_scale,
          "Loss scale at which an infinity ends the run; 0: none does");
  add.add("--fp8-scaling RULE", &C::fp8_scaling,
          "What fp8 scales a tensor by, its own largest magnitude (current) or that of its "
          "last 1024 steps (delayed)");
  add.add("--fp8-level LEVEL", &C::fp8_level,
          "What fp8 keeps in few bits, as MS-AMP: O1, gradients of matrices, also on their way "
          "between ranks; O2, their weights and Adam's moments, too; O3, with an owner of each "
          "among the ranks; of strategies single and ddp, O3 also zero1 and zero2",
          "none");

  command.group("Devices and sharding");
  add_devices_option(command, settings.devices,
                     "Number of devices. Each is a rank, started through mpirun; under mpirun or "
                     "srun the ranks that are there; under strategy dp a thread");
  command.option("--strategy", settings.strategy.name,
                 fmt::format("How devices share the model and the batch: {}",
                             fmt::join(dist::strategy_names(), ", ")),
                 {.check = not_empty(), .usual = "ddp on several devices, else single"});
  add.add("--global-batch-size N", &C::global_batch_size,
          "Global batch: images of all devices together in one forward and backward pass",
          "--batch-size on each device");
  const auto group = [&](const char* heading) { command.group(heading); };
  dist::for_each_setting(group, [&](const dist::SettingText& text, auto member) {
    const std::string name = fmt::format("--{}", text.flag);
    const std::string help =
        fmt::format("{}; of strategy {}", text.help, dist::strategies_with(text.setting));
    if constexpr (std::is_same_v<decltype(member), int dist::StrategyOptions::*>) {
      // How many ranks share a batch has to be known before the other settings are.
      if (text.setting == dist::Settings::kTensorParallel ||
          text.setting == dist::Settings::kPipelineStages) {
        command.option(name, settings.strategy.*member, help, {.usual = text.usual});
        return;
      }
    }
    add.add(
        text.takes ? fmt::format("{} {}", name, text.takes) : name,
        [member](C & c) -> auto& { return c.strategy.*member; }, help, text.usual);
  });

  command.group("Devices and sharding");
  add.add<std::string>(
      "--pipeline-schedule NAME",
      [](C& c, const std::string& name) { c.strategy.schedule = dist::parse_schedule(name); },
      "Order in which stages take micro-batches: 1f1b or gpipe; of strategy pipeline",
      {.usual = "1f1b"});
  add.add("--gradient-average RULE", &C::gradient_average,
          "What ranks with different numbers of images average: samples, the mean over all "
          "images, or ranks, the mean of the ranks' means as in PyTorch's DDP");
  add.add_count("--deterministic-reduce", &C::deterministic_reduce, 8,
                "Split each global batch into N micro-batches, and add their gradients in one "
                "fixed tree: the same bits on 1, 2, 4, ... devices");
  add.add("--collectives WHO", &C::collectives,
          "Who adds what GPUs hold: nccl, the fastest, in an order of its choice; exact, kernels "
          "of our own in one order, with the bits of CPUs; auto: exact with "
          "--deterministic-reduce, else nccl");
  add.add(
      "--capture WHEN", &C::capture,
      "Launch forward and backward of a step as one CUDA graph, with the same results: on, off, "
      "or auto, from the second step on where that can be, which is on one GPU and not in fp8");
  add.add("--checkpoint-activations", &C::checkpoint_activations,
          "Activation checkpointing: recompute activations in the backward pass, to save memory");

  command.group("Output");
  add.add("--save-every EVERY", &C::save_every,
          "Save also within epochs: every so many steps, 500, or every so often, 600s, 10m or 2h",
          "at the ends of epochs alone");
  add.add("--state-dict-type TYPE", &C::state_dict_type,
          "What checkpoints are: full, written by one rank, or sharded, each rank's part written "
          "by itself while training goes on");
  add.add_count("--watch", &C::watch, 10,
                "Record of every layer, each N steps: largest weight and gradient, the gradient's "
                "norm, and its share that underflows");
  add.add("--detect-anomaly", &C::detect_anomaly,
          "Check the result and the gradients of every operation for NaN, and end the run by an "
          "error that names the first; slow");
}

train::ConfigFile file_of(const RunSettings& settings) {
  if (settings.file.empty()) return {};
  return as_usage([&] { return train::read_config_file(settings.file); });
}

train::Config with_setting(const train::Config& config, const std::string& key,
                           const std::string& text, const std::string& from, const Device& kind) {
  const nlohmann::json usual = to_json(config).at(key);
  nlohmann::json value = text;
  if (!usual.is_string()) {
    const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
    if (!parsed.is_discarded()) value = parsed;
  }
  if (key == "devices" && asks_for_all(text)) value = device_count(text, kind);
  train::ConfigFile line;
  line.path = from;
  line.set(key, value, train::option_name(key));
  train::Config changed = with_file(config, line);
  changed.strategy = dist::named_here(changed.strategy);
  changed.precision = train::find_precision(changed.precision).name;
  train::validate(changed);
  return changed;
}

EffectiveSettings effective(const RunSettings& settings, const Device& kind) {
  return as_usage([&] {
    const train::ConfigFile file = with_defaults(file_of(settings));
    EffectiveSettings result{.notes = file.notes};
    for (const auto& [key, file_key] : file.keys) result.origins[key] = file.path + ": " + file_key;
    const auto said = [&](const std::string& key) { result.origins[key] = kCommandLine; };
    if (!settings.recipe.empty()) said("recipe");
    std::string recipe = settings.recipe;
    if (recipe.empty()) recipe = file.settings.value("recipe", usual_recipe(settings, file));
    train::Config& config = result.config;
    with_origin(result, file, [&] { config = train::recipe(recipe); });
    const nlohmann::json usual = to_json(train::Config()), preset = to_json(config);
    for (const auto& [key, value] : preset.items()) {
      result.origins.try_emplace(key, value == usual.at(key) ? "default" : "recipe " + recipe);
    }
    config = with_file(config, file);
    config.recipe = recipe;
    dist::StrategyOptions& strategy = config.strategy;
    if (const int n = device_count(settings.devices, kind); n > 0) {
      config.devices = n, said("devices");
    } else if (!file.devices.empty()) {
      config.devices = device_count(file.devices, kind);
    }
    if (!settings.strategy.name.empty()) strategy.name = settings.strategy.name, said("strategy");
    if (const int n = settings.strategy.tensor_parallel; n != 0) {
      strategy.tensor_parallel = n, said("tensor_parallel");
    }
    if (const int n = settings.strategy.pipeline_stages; n != 0) {
      strategy.pipeline_stages = n, said("pipeline_stages");
    }
    with_origin(result, file, [&] {
      const nlohmann::json before = to_json(config);
      strategy = dist::named_here(strategy);
      const nlohmann::json named = to_json(config);
      // What else the strategy's name says comes from where that does.
      for (const auto& [key, value] : named.items()) {
        if (value != before.at(key)) result.origins[key] = result.origins.at("strategy");
      }
      set_communication(file, result);
      for (const RunSettings::Override& override : settings.overrides) {
        override.apply(config);
        said(override.key);
      }
      solve(file, result);
      config.precision = train::find_precision(config.precision).name;
      train::validate(config);
      check_effect(result, kind);
    });
    if (result.origins["warmup"] == kCommandLine && optim::is_deepspeed_schedule(config.schedule)) {
      result.notes.emplace_back("scheduler: --warmup counts where its warmup_num_steps is auto");
    }
    return result;
  });
}

}  // namespace weft::cli
