// weft train: options on top of a recipe.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

#include "cli/command.h"
#include "cli/device_option.h"
#include "core/error.h"
#include "dist/join.h"
#include "dist/launch.h"
#include "dist/strategy.h"
#include "models/registry.h"
#include "train/precision.h"
#include "train/trainer.h"

namespace weft::cli {
namespace {

/// What the command line says. A setting that it names replaces the recipe's.
struct Arguments {
  std::string recipe, device;
  std::vector<std::function<void(train::Config&)>> overrides;
  train::RunOptions run;
  std::optional<int64_t> devices;
  std::optional<std::string> strategy;
  std::optional<int64_t> tensor_parallel, pipeline_stages;
  int max_restarts = 0;
  bool list_recipes = false;
};

/// An option that replaces one setting of the recipe: a member of Config, or a function from a
/// Config to a reference.
template <class Member>
void setting(CLI::App& command, Arguments& arguments, const std::string& name, Member member,
             const std::string& help) {
  using T = std::decay_t<std::invoke_result_t<Member, train::Config&>>;
  const auto replace = [&arguments, member](const T& value) {
    arguments.overrides.push_back(
        [member, value](train::Config& c) { std::invoke(member, c) = value; });
  };
  if constexpr (std::is_same_v<T, bool>) {
    command.add_flag_function(
        name, [replace](int64_t count) { replace(count > 0); }, help);
  } else {
    CLI::Option* option = command.add_option_function<T>(name, replace, help);
    option->type_name(CLI::detail::type_name<T>());
    // CLI11 reads -1 as the largest unsigned number.
    if constexpr (std::is_unsigned_v<T>) option->check(CLI::NonNegativeNumber);
  }
}

std::string recipes_help() {
  std::string text = "Settings to start from:";
  for (const std::string& name : train::recipe_names()) {
    text += fmt::format("\n{:<18} {}", name, train::recipe_summary(name));
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
  std::vector<std::string> again;
  if (arguments.max_restarts > 0) {
    const train::RunOptions& run = arguments.run;
    if (run.output.empty()) {
      throw UsageError("--max-restarts needs --output, to find the checkpoints");
    }
    again = {command[0], "train", "--resume", run.output, "--devices", std::to_string(devices)};
    if (!arguments.device.empty()) again.insert(again.end(), {"--device", arguments.device});
    if (run.threads > 0) again.insert(again.end(), {"--threads", std::to_string(run.threads)});
    if (run.json) again.emplace_back("--json");
  }
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
  run.devices = arguments.devices.value_or(0);
  run.strategy = arguments.strategy.value_or("");
  run.tensor_parallel = arguments.tensor_parallel.value_or(0);
  run.pipeline_stages = arguments.pipeline_stages.value_or(0);
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
      config = train::recipe(arguments.recipe.empty() ? "builtin-quick" : arguments.recipe);
      for (const auto& apply : arguments.overrides) apply(config);
      config.precision = train::find_precision(config.precision).name;
      if (run.devices > 0) config.devices = run.devices;
      if (!run.strategy.empty()) config.strategy = run.strategy;
      if (arguments.tensor_parallel) config.tensor_parallel = run.tensor_parallel;
      if (arguments.pipeline_stages) config.pipeline_stages = run.pipeline_stages;
      train::validate(config);
    });
  }
  if (config.devices > 1 && run.device.index != 0) {
    throw UsageError(
        fmt::format("--devices {} --device {}: that is one device; expected --device {}",
                    config.devices, run.device, name(run.device.type)));
  }
  const int processes = train::processes_of(config);
  if (processes > 1 && !is_rank) {
    return launch_self(processes, arguments);
  }
  const auto result = run.resume.empty() ? train::train(config, run) : train::resume(run);
  return result.exit_code();
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App& command = *app.add_subcommand("train", "Train a model and save checkpoints");
  const auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  using C = train::Config;
  command.add_option("--recipe", a.recipe, recipes_help());
  setting(command, a, "--data", &C::data, "builtin, cifar10:DIR, mnist:DIR or folder:DIR");
  setting(command, a, "--model", &C::model,
          fmt::format("{}", fmt::join(models::model_names(), ", ")));
  setting(command, a, "--image-size", &C::image_size,
          "Pixels; default: the data's own size, up to 224");
  setting(command, a, "--weights", &C::weights,
          "Start from this file: safetensors or torch.save's, torchvision's, timm's or Hugging "
          "Face's names");
  setting(command, a, "--interpolation", &C::interpolation,
          "Of the weights' position embeddings to another image size: torchvision or timm");
  setting(command, a, "--freeze", &C::freeze,
          "Leave these parameters as they are: names, modules or patterns with * and ?");
  setting(command, a, "--layer-decay", &C::layer_decay,
          "Factor on the learning rate from each transformer layer to the one before it");
  setting(command, a, "--epochs", &C::epochs, "Passes over the training images");
  setting(command, a, "--batch-size", &C::batch_size, "Images per forward pass");
  setting(command, a, "--accumulate", &C::accumulate, "Batches whose gradients make one step");
  setting(command, a, "--limit-batches", &C::limit_batches,
          "Batches per epoch and per evaluation; 0: all");
  setting(command, a, "--optimizer", &C::optimizer, "adamw, adam or sgd");
  setting(command, a, "--lr", &C::lr, "Highest learning rate of the schedule");
  setting(command, a, "--weight-decay", &C::weight_decay,
          "Not applied to biases and normalisation");
  setting(command, a, "--clip-norm", &C::clip_norm, "Largest gradient norm; 0: no clipping");
  setting(command, a, "--schedule", &C::schedule, "one-cycle, cosine or constant");
  setting(command, a, "--warmup", &C::warmup,
          "Share of the steps in which the learning rate rises");
  setting(command, a, "--label-smoothing", &C::label_smoothing, "In [0, 1)");
  setting(command, a, "--momentum", &C::momentum, "Of sgd");
  setting(command, a, "--drop-path", &C::drop_path,
          "Probability of skipping the last block; of transformers");
  const auto augmentation = [&](const char* name, auto member, const char* help) {
    setting(
        command, a, name, [member](C & c) -> auto& { return c.augmentation.*member; }, help);
  };
  using A = data::Augmentation;
  augmentation("--shift", &A::shift, "Move training images by up to so many pixels");
  augmentation("--flip,!--no-flip", &A::flip, "Mirror half of the training images");
  augmentation("--rand-augment", &A::rand_augment, "RandAugment operations per image");
  augmentation("--erase", &A::erase, "Probability of erasing a rectangle");
  augmentation("--mixup", &A::mixup, "Alpha of mixup; 0: none");
  augmentation("--cutmix", &A::cutmix, "Alpha of cutmix; 0: none");
  setting(command, a, "--precision", &C::precision,
          train::precision_names() + "; Fabric's names too (bf16-mixed, ...)");
  setting(command, a, "--matmul-numerics", &C::matmul_numerics,
          fmt::format("Rounding of matrix products: {}",
                      fmt::join(kernels::accumulation_names(), ", ")));
  setting(command, a, "--tf32-rounding", &C::tf32_rounding, "Of tf32: truncate or nearest");
  setting(command, a, "--loss-scale", &C::loss_scale, "Of fp16: dynamic, none or a number");
  setting(command, a, "--initial-loss-scale", &C::initial_loss_scale, "Of the dynamic loss scale");
  setting(command, a, "--loss-scale-window", &C::loss_scale_window,
          "Steps without an infinity before the loss scale doubles");
  setting(command, a, "--loss-scale-hysteresis", &C::loss_scale_hysteresis,
          "Steps with an infinity before it halves");
  setting(command, a, "--min-loss-scale", &C::min_loss_scale,
          "An infinity at this loss scale ends the run; 0: none does");
  setting(command, a, "--fp8-scaling", &C::fp8_scaling,
          "current: by each tensor's own largest element; delayed: by that of its last 1024 steps");
  setting(command, a, "--seed", &C::seed, "Of weights, order, augmentation and dropout");
  setting(command, a, "--checkpoint-activations", &C::checkpoint_activations,
          "Compute activations twice instead of keeping them");
  add_device_option(command, a.device);
  command.add_option("--devices", a.devices,
                     "Ranks, started through mpirun; under mpirun or srun those that are there; "
                     "threads with strategy dp");
  command.add_option(
      "--strategy", a.strategy,
      fmt::format("{}; default: ddp on several devices", fmt::join(dist::strategy_names(), ", ")));
  setting(command, a, "--global-batch-size", &C::global_batch_size,
          "Images in a batch of all devices; default: --batch-size on each");
  setting(command, a, "--shard-size", &C::shard_size,
          "Devices that share one copy, of hsdp; default: the largest proper divisor");
  command.add_option("--tensor-parallel", a.tensor_parallel,
                     "Devices that share a layer, of tp and fsdp+tp; default: all, and 2");
  setting(command, a, "--sequence-parallel", &C::sequence_parallel,
          "Deal tokens out over the devices that share a layer, between the cut layers; of tp and "
          "fsdp+tp");
  setting(command, a, "--parallel-head", &C::parallel_head,
          "Cut the head and the loss by classes; of tp and fsdp+tp");
  command.add_option("--pipeline-stages", a.pipeline_stages,
                     "Of pipeline; default: as many as devices");
  setting(command, a, "--pipeline-schedule", &C::pipeline_schedule, "1f1b or gpipe");
  setting(command, a, "--micro-batches", &C::micro_batches,
          "Parts of a batch in a pipeline; default: two per stage");
  setting(command, a, "--cpu-offload", &C::cpu_offload,
          "Keep the ranks' parts of parameters, gradients and optimizer on the CPU; of fsdp");
  setting(command, a, "--gradient-average", &C::gradient_average,
          "samples: the true mean; ranks: the mean of the ranks' means, as PyTorch's DDP");
  command.add_flag_function(
      "--deterministic-reduce{8}",
      [&a](int64_t pieces) {
        a.overrides.push_back([pieces](train::Config& c) { c.deterministic_reduce = pieces; });
      },
      "Cut every batch into so many pieces and add their gradients in one fixed tree: the same "
      "bits on 1, 2, 4, ... devices");
  command
      .add_option("--max-restarts", a.max_restarts,
                  "Start all ranks again, from the last checkpoint, when one fails")
      ->check(CLI::Range(0, 1000));
  command.add_option("--threads", a.run.threads, "Default: one per core")
      ->check(CLI::Range(1, kMostThreads));
  command.add_option("--output", a.run.output, "Directory of checkpoints; default: runs/RECIPE-N");
  command.add_option("--resume", a.run.resume, "Continue the run of this directory, bit for bit")
      ->excludes("--output");
  command.add_flag("--json", a.run.json, "One JSON object a line on standard output");
  command.callback(
      [arguments, &action] { action = [arguments] { return run_train(*arguments); }; });
}

}  // namespace weft::cli
