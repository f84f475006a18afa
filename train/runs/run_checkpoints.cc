#include "train/runs/run_checkpoints.h"

#include <fmt/core.h>

#include <utility>

#include "core/transfer.h"
#include "io/json_field.h"
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

RunCheckpoints::RunCheckpoints(SaveEvery every, RunRecord record, std::optional<Checkpoint> start,
                               io::Path step)
    : every_(every),
      record_(std::move(record)),
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
    WEFT_FAIL("{}: {}{}", latest_.string(), error.what(),
              start.is_sharded ? say_what_is_before(latest_) : "");
  }
}

void RunCheckpoints::report_interrupted(const io::EventLog& log, int64_t step) const {
  nlohmann::ordered_json checkpoint;
  if (latest_.empty()) {
    fmt::print(stderr, "stopped before there was anything to save; start anew\n");
  } else {
    fmt::print(stderr, "stopped after step {}; continue with: ./weft train --resume {}\n", step,
               output_.string());
    checkpoint = latest_.string();
  }
  log.write("interrupted", {{"step", step}, {"checkpoint", checkpoint}});
}

void RunCheckpoints::take_up(const Checkpoint& start, Trainer& trainer, nn::Module& model) {
  Fabric& fabric = trainer.fabric();
  const nlohmann::json& state = start.state;
  NamedTensors fp8;
  if (start.is_sharded) {
    fabric.load(latest_.string(),
                {{"model", &model}, {"optimizer", &trainer.optimizer()}, {"fp8", &fp8}});
  } else {
    if (!start.model.empty()) model.load_state_dict(start.model);
    NamedTensors optimizer;
    for (const auto& [name, tensor] : start.optimizer) {
      const bool is_fp8 = name.find(kFp8Key) != std::string::npos;
      (is_fp8 ? fp8 : optimizer).emplace_back(name, tensor);
    }
    fabric.strategy().load_optimizer_state(trainer.optimizer(),
                                           {optimizer, io::field(state, "optimizer")});
  }
  fabric.fp8().load_state_dict(fp8, model.named_parameters());
  // Checkpoints from before losses were scaled have none.
  fabric.scaler().load_state_dict(state.value("loss_scaler", nlohmann::json::object()));
  record_.load(trainer, state);
  saved_at_ = trainer.seconds();
}

void RunCheckpoints::on_save_point(Trainer& trainer, TrainingModule& module) {
  const bool is_due = trainer.has_ended_epoch() || trainer.is_stopping() ||
                      (every_.steps > 0 && trainer.global_step() % every_.steps == 0) ||
                      (every_.seconds > 0 && trainer.seconds() - saved_at_ >= every_.seconds);
  if (!is_due) return;
  saved_at_ = trainer.seconds();
  if (trainer.fabric().options().state_dict_type == "sharded") {
    save_sharded(trainer, module.model());
  } else {
    save(trainer, module.model());
  }
}

void RunCheckpoints::save(Trainer& trainer, nn::Module& model) {
  Fabric& fabric = trainer.fabric();
  // Every rank brings its part.
  const NamedTensors weights = on_cpu(fabric.strategy().model_state(model));
  optim::OptimizerState optimizer = fabric.strategy().optimizer_state(trainer.optimizer());
  for (auto& entry : fabric.fp8().state_dict(model.named_parameters())) {
    optimizer.tensors.push_back(std::move(entry));
  }
  const nlohmann::json state = state_of(trainer);
  if (fabric.is_main()) {
    latest_ = save_checkpoint(output_,
                              {.step = trainer.global_step(),
                               .model = weights,
                               .optimizer = on_cpu(optimizer.tensors),
                               .state = state},
                              kKeptCheckpoints);
  }
  fabric.barrier();
}

/// Each rank writes its part while training goes on. When all have, it is a checkpoint.
void RunCheckpoints::save_sharded(Trainer& trainer, nn::Module& model) {
  Fabric& fabric = trainer.fabric();
  fabric.wait_for_save();
  const auto draft = fabric.is_main()
                         ? std::make_shared<CheckpointDraft>(output_, trainer.global_step())
                         : std::shared_ptr<CheckpointDraft>();
  NamedTensors fp8 = fabric.fp8().state_dict(model.named_parameters());
  fabric.async_save(draft ? draft->directory().string() : "",
                    {{"model", &model}, {"optimizer", &trainer.optimizer()}, {"fp8", &fp8}},
                    [this, draft, state = state_of(trainer)] {
                      latest_ = draft->commit(state, kKeptCheckpoints);
                    });
}

nlohmann::json RunCheckpoints::state_of(Trainer& trainer) const {
  nlohmann::json state = record_.save(trainer);
  state["optimizer"] = trainer.optimizer().state_dict().groups;
  state["loss_scaler"] = trainer.fabric().scaler().state_dict();
  return state;
}

}  // namespace weft::train
