#include "cli/model_option.h"

#include <fmt/core.h>

#include <optional>

#include "cli/command.h"
#include "cli/device_option.h"
#include "kernels/device/probe.h"
#include "train/device_map_file.h"

namespace weft::cli {
namespace {

std::optional<nn::Placement> placement_of(const ModelSource& source, const std::string& device) {
  const auto& [checkpoint, weights, map, memory] = source;
  if (map.empty() && memory.empty()) return {};
  check_usage(device.empty(), "--device excludes --device-map, which names devices");
  check_usage(!map.empty(), "--max-memory needs --device-map auto");
  nn::Placement placement;
  if (map != "auto") {
    placement.map = train::parse_device_map(map);
    check_usage(memory.empty(), "--max-memory is for --device-map auto, not for {}", map);
  } else if (memory.empty()) {
    placement.budgets = train::available_budgets();
  } else {
    placement.budgets =
        as_usage([&] { return train::parse_memory_budgets(source.max_memory); }, "--max-memory");
  }
  const auto check = [](const nn::Place& place) {
    if (place) kernels::require_usable(*place);
  };
  for (const auto& [device, bytes] : placement.budgets) check(device);
  if (placement.map) {
    for (const auto& [name, place] : placement.map->places) check(place);
  }
  return placement;
}

}  // namespace

void add_model_options(Command& command, ModelSource& source) {
  command.option(
      "--checkpoint", source.checkpoint,
      "The model: a run's directory, or one of its checkpoints; this or --weights is needed",
      {.takes = "DIR"});
  command.option("--weights", source.weights,
                 "In the place of --checkpoint, a vision transformer's weights: a safetensors or "
                 "torch.save file under torchvision's, timm's or Hugging Face's names",
                 {.takes = "FILE", .excludes = {"--checkpoint"}});
}

void check_given(const ModelSource& source) {
  check_usage(!source.checkpoint.empty() || !source.weights.empty(),
              "--checkpoint is required, or --weights");
}

void add_placement_options(Command& command, ModelSource& source) {
  command.option(
      "--device-map", source.device_map,
      "Where the weights of a model larger than memory rest: auto, on the devices that "
      "have room; cuda:N, cpu or disk, all of them; or a JSON file from module names to such "
      "places, as Accelerate's device_map. Weights on disk are read while their layer runs",
      {.takes = "auto|PLACE|FILE", .usual = "all on --device"});
  command.option("--max-memory", source.max_memory,
                 "With --device-map auto: memory that weights may take on each device, filled in "
                 "this order, the remainder stays on disk: cuda:0=10GB,cpu=4GB",
                 {.takes = "DEVICE=SIZE,...",
                  .usual = "nine tenths of what each GPU has free, then of the CPU's"});
}

train::TrainedModel load_model(const ModelSource& source, const std::string& device) {
  const std::optional<nn::Placement> placement = placement_of(source, device);
  const nn::Placement* const given = placement ? &*placement : nullptr;
  const Device chosen = given ? Device{} : chosen_device(device);
  train::TrainedModel trained = source.weights.empty()
                                    ? train::load_trained_model(source.checkpoint, given)
                                    : train::load_pretrained_model(source.weights, given);
  trained.model->eval();
  if (given) {
    fmt::print(stderr, "{}\n", trained.dispatched);
  } else {
    trained.move_to(chosen);
  }
  return trained;
}

}  // namespace weft::cli
