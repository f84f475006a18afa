// weft train: options on top of a recipe.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <type_traits>
#include <vector>

#include "cli/command.h"
#include "cli/device_option.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "dist/strategy/strategy_kind.h"
#include "models/registry.h"
#include "optim/registry.h"
#include "train/precision.h"
#include "train/image_run.h"

namespace weft::cli {
namespace {

/// What the command line says. A setting that it names replaces the recipe's.
struct Arguments {
  std::string recipe, device;
  std::vector<std::function<void(train::Config&)>> overrides;
  train::RunOptions run;
  int max_restarts = 0;
};

constexpr const char* kDefaultRecipe = "builtin-quick";

/// Declares options that replace one setting of the recipe each, with the default recipe's value as
/// their default.
class Settings {
 public:
  Settings(CLI::App& command, Arguments& arguments) : command_(command), arguments_(arguments) {}

  /// `name` ends in what the option takes: "--epochs N". A member of Config, or a function from a
  /// Config to a reference. `usual` says what the default means where its value does not.
  template <class Member>
  void add(const std::string& name, Member member, const std::string& help,
           const std::string& usual = "") {
    using T = std::decay_t<std::invoke_result_t<Member, train::Config&>>;
    const auto replace = [&arguments = arguments_, member](const T& value) {
      arguments.overrides.push_back(
          [member, value](train::Config& c) { std::invoke(member, c) = value; });
    };
    const T& value = std::invoke(member, usual_);
    if constexpr (std::is_same_v<T, bool>) {
      command_
          .add_flag_function(
              name, [replace](int64_t count) { replace(count > 0); }, help)
          ->default_str(value ? "on" : "off");
    } else {
      const size_t space = name.find(' ');
      CLI::Option* option = command_.add_option_function<T>(name.substr(0, space), replace, help);
      option->type_name(name.substr(space + 1));
      if constexpr (fmt::is_formattable<T>::value) option->default_str(fmt::format("{}", value));
      if (!usual.empty()) option->default_str(usual);
      // CLI11 reads -1 as the largest unsigned number.
      if constexpr (std::is_unsigned_v<T>) option->check(CLI::NonNegativeNumber);
    }
  }

 private:
  CLI::App& command_;
  Arguments& arguments_;
  train::Config usual_ = train::recipe(kDefaultRecipe);
};

std::string recipes_help() {
  std::string text =
      "A recipe has a value for every setting; an option replaces one of them. The defaults above\n"
      "are those of builtin-quick.\n\nRecipes:";
  for (const std::string& name : train::recipe_names()) {
    text += fmt::format("\n  {:<18} {}", name, train::recipe_summary(name));
  }
  return text;
}

/// Runs this very command line as ranks; after a failure what it says of place and form, on top of
/// the last checkpoint.
int launch_self(int devices, const Arguments& arguments) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> command;
  for (std::string word; std::getline(file, word, '\0');) command.push_back(word);
  command.at(0) = std::filesystem::read_symlink("/proc/self/exe");
  const train::RunOptions& run = arguments.run;
  if (arguments.max_restarts > 0 && run.output.empty()) {
    throw UsageError("--max-restarts needs --output, to find the checkpoints");
  }
  // A run that failed before its first checkpoint starts anew.
  const auto again = [&] {
    if (!std::filesystem::exists(run.output + "/latest")) return command;
    std::vector<std::string> words = {command[0], "train",     "--resume",
                                      run.output, "--devices", std::to_string(devices)};
    if (!arguments.device.empty()) words.insert(words.end(), {"--device", arguments.device});
    if (run.threads > 0) words.insert(words.end(), {"--threads", std::to_string(run.threads)});
    if (run.json) words.emplace_back("--json");
    return words;
  };
  return dist::launch({.ranks = devices, .stop_signal = SIGUSR1}, command, arguments.max_restarts,
                      again);
}

int run_train(const Arguments& arguments) {
  if (!arguments.run.resume.empty() &&
      (!arguments.recipe.empty() || !arguments.overrides.empty())) {
    throw UsageError(
        "--resume continues a run with its own settings; leave out --recipe and the settings of "
        "the run");
  }
  train::RunOptions run = arguments.run;
  run.device = chosen_device(arguments.device);
  const bool is_rank = dist::is_rank();
  if (is_rank) {
    run.world = dist::join_world();
    if (run.devices == 0) run.devices = run.world->size();
  }
  train::Config config;
  if (!run.resume.empty()) {
    config = train::resumed_config(run);
  } else {
    as_usage([&] {
      config = train::recipe(arguments.recipe.empty() ? kDefaultRecipe : arguments.recipe);
      for (const auto& apply : arguments.overrides) apply(config);
      config.precision = train::find_precision(config.precision).name;
      if (run.devices > 0) config.devices = run.devices;
      dist::StrategyOptions& strategy = config.strategy;
      if (!run.strategy.name.empty()) strategy.name = run.strategy.name;
      if (const int n = run.strategy.tensor_parallel; n != 0) strategy.tensor_parallel = n;
      if (const int n = run.strategy.pipeline_stages; n != 0) strategy.pipeline_stages = n;
      train::validate(config);
    });
  }
  if (config.devices > 1 && run.device.index != 0) {
    throw UsageError(
        fmt::format("--devices {} --device {}: that is one device; expected --device {}",
                    config.devices, run.device, name(run.device.type)));
  }
  const int processes = train::sharing_of(config).ranks();
  if (processes > 1 && !is_rank) {
    return launch_self(processes, arguments);
  }
  try {
    return (run.resume.empty() ? train::train(config, run) : train::resume(run)).exit_code();
  } catch (const std::exception& error) {
    if (run.world) run.world->leave(error.what());  // the others say why, too
    throw;
  }
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run_train, "train", "Train an image classifier, and save checkpoints and curves",
      kTrainingCommands);
  Settings settings(command, a);
  using C = train::Config;
  command.footer(recipes_help());
  add_option(command, "--recipe", a.recipe,
             "The settings to start from, one of the recipes listed below",
             {.usual = kDefaultRecipe});

  command.option_defaults()->group("Data");
  settings.add("--data DATA", &C::data,
               "Images to train on: builtin, cifar10:DIR, mnist:DIR or folder:DIR");
  settings.add("--image-size N", &C::image_size,
               "Height and width that images are resized to, in pixels",
               "the data's own, up to 224");
  settings.add("--limit-batches N", &C::limit_batches,
               "Batches after which an epoch or an evaluation stops; 0: no limit");
  const auto augmentation = [&](const char* name, auto member, const char* help) {
    settings.add(
        name, [member](C & c) -> auto& { return c.augmentation.*member; }, help);
  };
  using A = data::Augmentation;
  augmentation("--shift N", &A::shift, "Move training images at random by up to N pixels");
  augmentation("--flip,!--no-flip", &A::flip, "Mirror half of the training images");
  augmentation("--rand-augment N", &A::rand_augment, "RandAugment operations per training image");
  augmentation("--erase P", &A::erase,
               "Probability of erasing a random rectangle of a training image");
  augmentation("--mixup ALPHA", &A::mixup,
               "Blend pairs of training images, by Beta(ALPHA, ALPHA); 0: no mixup");
  augmentation("--cutmix ALPHA", &A::cutmix,
               "Paste a rectangle of one training image into another, its share by "
               "Beta(ALPHA, ALPHA); 0: no cutmix");

  command.option_defaults()->group("Model");
  settings.add("--model NAME", &C::model,
               fmt::format("The model to train: {}", fmt::join(models::model_names(), ", ")));
  settings.add("--weights FILE", &C::weights,
               "Start from trained weights, a safetensors or torch.save file under torchvision's, "
               "timm's or Hugging Face's names",
               "random weights");
  settings.add("--interpolation RULE", &C::interpolation,
               "Rule by which the weights' position embeddings are interpolated to another image "
               "size: torchvision or timm");
  settings.add("--freeze PATTERN", &C::freeze,
               "Parameters not to train: names, modules or patterns with * and ?", "none");
  settings.add("--drop-path P", &C::drop_path,
               "Probability of skipping the last transformer block; it grows linearly from 0 at "
               "the first");

  command.option_defaults()->group("Optimization");
  settings.add("--epochs N", &C::epochs, "Passes over the training images");
  settings.add("--batch-size N", &C::batch_size,
               "Images per device in one forward and backward pass");
  settings.add("--accumulate N", &C::accumulate,
               "Gradient accumulation: batches whose gradients make one optimizer step");
  settings.add("--optimizer NAME", &C::optimizer,
               fmt::format("The optimizer: {}", fmt::join(optim::optimizer_names(), ", ")));
  settings.add("--lr X", &C::lr, "Learning rate at the peak of the schedule");
  settings.add("--schedule NAME", &C::schedule,
               "Learning rate over the steps: one-cycle, cosine or constant");
  settings.add("--warmup X", &C::warmup,
               "Share of all steps in which the learning rate rises to its peak");
  settings.add("--layer-decay X", &C::layer_decay,
               "Factor on the learning rate from each transformer layer to the one before it; "
               "1: no decay");
  settings.add("--weight-decay X", &C::weight_decay,
               "Weight decay, of all parameters but biases and normalisation");
  settings.add("--momentum X", &C::momentum, "Momentum, of optimizer sgd");
  settings.add("--clip-norm X", &C::clip_norm,
               "Norm that gradients are clipped to; 0: no clipping");
  settings.add("--nonfinite NAME", &C::nonfinite,
               "Where a loss or a gradient is not finite: stop, and name what first was not, or "
               "skip the step");
  settings.add("--label-smoothing X", &C::label_smoothing,
               "Probability spread over all classes of a label, in [0, 1)");
  settings.add("--seed N", &C::seed, "Seed of weights, order of images, augmentation and dropout");

  command.option_defaults()->group("Precision");
  settings.add("--precision NAME", &C::precision,
               fmt::format("What is computed in which format: {}; Lightning Fabric's names too "
                           "(bf16-mixed, ...)",
                           train::precision_names()));
  settings.add("--matmul-numerics NAME", &C::matmul_numerics,
               fmt::format("Arithmetic of matrix products, the CPU's, exact, or bit for bit that "
                           "of a GPU's tensor cores: {}",
                           fmt::join(kernels::accumulation_names(), ", ")));
  settings.add("--tf32-rounding RULE", &C::tf32_rounding,
               "Rounding of operands to TF32: truncate or nearest");
  settings.add("--loss-scale SCALE", &C::loss_scale,
               "Loss scale under fp16: dynamic, none or a fixed number");
  settings.add("--initial-loss-scale X", &C::initial_loss_scale,
               "Loss scale that a dynamic one begins at");
  settings.add("--loss-scale-window N", &C::loss_scale_window,
               "Steps in a row without an infinity after which a dynamic loss scale doubles");
  settings.add("--loss-scale-hysteresis N", &C::loss_scale_hysteresis,
               "Steps with an infinity after which a dynamic loss scale halves");
  settings.add("--min-loss-scale X", &C::min_loss_scale,
               "Loss scale at which an infinity ends the run; 0: none does");
  settings.add("--fp8-scaling RULE", &C::fp8_scaling,
               "What fp8 scales a tensor by, its own largest magnitude (current) or that of its "
               "last 1024 steps (delayed)");

  command.option_defaults()->group("Devices and sharding");
  add_device_option(command, a.device);
  add_option(command, "--devices", a.run.devices,
             "Number of devices. Each is a rank, started through mpirun; under mpirun or srun "
             "the ranks that are there; under strategy dp a thread",
             {.usual = "1"});
  add_threads_option(command, a.run.threads);
  add_option(command, "--strategy", a.run.strategy.name,
             fmt::format("How devices share the model and the batch: {}",
                         fmt::join(dist::strategy_names(), ", ")),
             {.usual = "ddp on several devices, else single"});
  settings.add("--global-batch-size N", &C::global_batch_size,
               "Global batch: images of all devices together in one forward and backward pass",
               "--batch-size on each device");
  using S = dist::StrategyOptions;
  const auto its_own = [](const char* what, dist::Settings setting) {
    return fmt::format("{}; of strategy {}", what, dist::strategies_with(setting));
  };
  const auto strategy_setting = [&](const char* name, auto member, const std::string& help,
                                    const char* usual = "") {
    settings.add(
        name, [member](C & c) -> auto& { return c.strategy.*member; }, help, usual);
  };
  strategy_setting(
      "--shard-size N", &S::shard_size,
      its_own("Devices that hold one sharded copy of the model", dist::Settings::kShardSize),
      "the largest proper divisor of --devices");
  strategy_setting(
      "--cpu-offload", &S::cpu_offload,
      its_own("Keep each rank's shards of parameters, gradients and optimizer state in "
              "the CPU's memory",
              dist::Settings::kCpuOffload));
  add_option(command, "--tensor-parallel", a.run.strategy.tensor_parallel,
             its_own("Tensor parallelism: devices that each layer is split over",
                     dist::Settings::kTensorParallel),
             {.usual = "all under tp, 2 under fsdp+tp"});
  strategy_setting("--sequence-parallel", &S::sequence_parallel,
                   its_own("Sequence parallelism: shard the tokens between layers that are split",
                           dist::Settings::kSequenceParallel));
  strategy_setting(
      "--parallel-head", &S::parallel_head,
      its_own("Split the head and the loss by classes", dist::Settings::kParallelHead));
  add_option(command, "--pipeline-stages", a.run.strategy.pipeline_stages,
             its_own("Stages that the model is split into along its depth",
                     dist::Settings::kPipelineStages),
             {.usual = "as many as devices"});
  command
      .add_option_function<std::string>(
          "--pipeline-schedule",
          [&a = a](const std::string& name) {
            a.overrides.push_back(
                [name](C& c) { c.strategy.schedule = dist::parse_schedule(name); });
          },
          "Order in which stages take micro-batches: 1f1b or gpipe; of strategy pipeline")
      ->type_name("NAME")
      ->default_str("1f1b");
  strategy_setting(
      "--micro-batches N", &S::micro_batches,
      its_own("Micro-batches that a batch is split into", dist::Settings::kMicroBatches),
      "two per stage");
  settings.add("--gradient-average RULE", &C::gradient_average,
               "What ranks with different numbers of images average: samples, the mean over all "
               "images, or ranks, the mean of the ranks' means as in PyTorch's DDP");
  command
      .add_flag_function(
          "--deterministic-reduce{8}",
          [&a = a](int64_t micro_batches) {
            a.overrides.push_back(
                [micro_batches](C& c) { c.deterministic_reduce = micro_batches; });
          },
          "Split each global batch into so many micro-batches, 8 where no number is given, and add "
          "their gradients in one fixed tree: the same bits on 1, 2, 4, ... devices")
      ->default_str("off");
  settings.add("--checkpoint-activations", &C::checkpoint_activations,
               "Activation checkpointing: recompute activations in the backward pass, to save "
               "memory");
  add_option(command, "--max-restarts", a.max_restarts,
             "Times to start all ranks again, from the last checkpoint if there is one, when one "
             "fails; needs "
             "--output",
             {.check = CLI::Range(0, 1000)});

  command.option_defaults()->group("Output");
  add_option(command, "--output", a.run.output,
             "Directory of the run: checkpoints, weights and curves for TensorBoard",
             {.takes = "DIR", .usual = "runs/RECIPE-N"});
  add_option(command, "--resume", a.run.resume,
             "Continue the run of this directory with its own settings, bit for bit as if it "
             "had not stopped",
             {.takes = "DIR"})
      ->excludes("--output");
  settings.add("--save-every EVERY", &C::save_every,
               "Save also within epochs: every so many steps, 500, or seconds, 600s",
               "at the ends of epochs alone");
  command.add_flag("--json", a.run.json, kJsonLines);
}

}  // namespace weft::cli
