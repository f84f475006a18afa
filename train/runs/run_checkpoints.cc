#include "train/runs/run_checkpoints.h"

#include <utility>

#include "core/transfer.h"
#include "train/trainer/trainer.h"

namespace weft::train {
namespace {

constexpr int kKeptCheckpoints = 2;
/// What tells Fp8Scaling's tensors from the optimizer's, beside which they lie.
constexpr const char* kFp8Key = ".fp8_";

/// What a checkpoint holds is independent of the device.
NamedTensors on_cpu(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = to_device(tensor, Device{});
  return tensors;
}

}  // namespace

RunCheckpoints::RunCheckpoints(SaveEvery every, std::function<nlohmann::json()> describe,
                               std::optional<Checkpoint> start, io::Path step)
    : every_(every),
      describe_(std::move(describe)),
      start_(std::move(start)),
      latest_(std::move(step)) {}

void RunCheckpoints::on_fit_start(Trainer& trainer, TrainingModule& module) {
  if (!start_) return;
  const Checkpoint start = *std::exchange(start_, std::nullopt);
  try {
    take_up(start, trainer, module.model());
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: the state is not that of a training run: {}", latest_.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", latest_.string(), error.what());
  }
}

void RunCheckpoints::take_up(const Checkpoint& start, Trainer& trainer, nn::Module& model) {
  Fabric& fabric = trainer.fabric();
  fabric.strategy().load_model_state(model, start.model);
  NamedTensors optimizer, fp8;
  for (const auto& [name, tensor] : start.optimizer) {
    const bool is_fp8 = name.find(kFp8Key) != std::string::npos;
    (is_fp8 ? fp8 : optimizer).emplace_back(name, tensor);
  }
  const nlohmann::json& state = start.state;
  fabric.strategy().load_optimizer_state(trainer.optimizer(), {optimizer, state.at("optimizer")});
  fabric.fp8().load_state_dict(fp8, model.named_parameters());
  fabric.scaler().load_state_dict(state.at("loss_scaler"));
  trainer.load_state_dict(state.at("trainer"));
  if (trainer.scheduler()) trainer.scheduler()->load_state_dict(state.at("schedule"));
  saved_at_ = trainer.seconds();
}

void RunCheckpoints::on_save_point(Trainer& trainer, TrainingModule& module) {
  const bool is_due = trainer.has_ended_epoch() || trainer.is_stopping() ||
                      (every_.steps > 0 && trainer.global_step() % every_.steps == 0) ||
                      (every_.seconds > 0 && trainer.seconds() - saved_at_ >= every_.seconds);
  if (!is_due) return;
  saved_at_ = trainer.seconds();
  Fabric& fabric = trainer.fabric();
  // Every rank brings its part.
  const NamedTensors model = on_cpu(fabric.strategy().model_state(module.model()));
  optim::OptimizerState optimizer = fabric.strategy().optimizer_state(trainer.optimizer());
  for (auto& entry : fabric.fp8().state_dict(module.model().named_parameters())) {
    optimizer.tensors.push_back(std::move(entry));
  }
  nlohmann::json state = describe_();
  state["trainer"] = trainer.state_dict();
  state["optimizer"] = optimizer.groups;
  state["loss_scaler"] = fabric.scaler().state_dict();
  if (trainer.scheduler()) state["schedule"] = trainer.scheduler()->state_dict();
  if (fabric.is_main()) {
    latest_ = save_checkpoint(output_,
                              {.step = trainer.global_step(),
                               .model = model,
                               .optimizer = on_cpu(optimizer.tensors),
                               .state = state},
                              kKeptCheckpoints);
  }
  fabric.barrier();
}

}  // namespace weft::train
