#include "train/runs/run_heading.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/parallel.h"
#include "kernels/gemm/matmul_numerics.h"
#include "optim/deepspeed_schedule.h"

namespace weft::train {

std::string describe_model(const Config& config, int64_t parameters, const std::string& input,
                           Device device) {
  const bool is_ieee =
      kernels::parse_accumulation(config.matmul_numerics) == kernels::Accumulation::kIeee;
  return fmt::format("{}: {} parameters, {}, {}{}, {}", config.model, parameters, input,
                     config.precision, is_ieee ? "" : " as on " + config.matmul_numerics,
                     device.type == DeviceType::cpu ? fmt::format("{} threads", num_threads())
                                                    : to_string(device));
}

std::string of_epochs(const Config& config) {
  const std::optional<int64_t> epochs = epoch_limit(config);
  return epochs ? fmt::format("/{}", *epochs) : "";
}

std::string describe_settings(const Config& config, int64_t steps_per_epoch,
                              const std::string& sample) {
  std::string limits;  // besides the epochs
  if (config.max_steps > 0) limits += fmt::format(", {} at most", config.max_steps);
  if (!config.max_time.empty()) limits += fmt::format(", {} at most", config.max_time);
  const std::optional<int64_t> epochs = epoch_limit(config);
  return fmt::format(
      "{}: {}epoch{} of {} steps{}, {}{}{}, {} with learning rate {} ({})",
      config.recipe.empty() ? "settings" : config.recipe, epochs ? fmt::format("{} ", *epochs) : "",
      epochs == 1 ? "" : "s", steps_per_epoch, limits,
      config.global_batch_size > 0 ? fmt::format("global batch {}", config.global_batch_size)
                                   : fmt::format("batch {}", config.batch_size),
      config.accumulate > 1 ? fmt::format(" x {}", config.accumulate) : "",
      sample.empty() ? "" : " x " + sample, config.optimizer, config.lr,
      optim::schedule_name(config.schedule));
}

std::string describe_start(const Config& config, const Checkpoint* checkpoint) {
  std::string lines;
  const nlohmann::json settings = to_json(config);
  for (const auto& [key, value] : settings.items()) {
    if (key != "data" && key != "weights") lines += fmt::format("{} {}\n", key, value.dump());
  }
  if (!checkpoint) return lines;
  return lines + fmt::format("step {} of a state of checksum {}\n", checkpoint->step,
                             io::checksum_of(checkpoint->state.dump()));
}

std::string describe_end(const Config& config, const std::string& stop_reason) {
  if (stop_reason == fmt::format("max_epochs = {}", config.epochs)) return {};
  return fmt::format("stopped: {}\n", stop_reason);
}

}  // namespace weft::train
