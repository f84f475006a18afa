#include "train/runs/run_checkpoints.h"

#include <fmt/core.h>

#include <map>
#include <set>
#include <utility>

#include "core/transfer.h"
#include "io/json_field.h"
#include "optim/optimizer_state.h"
#include "train/exact_text.h"
#include "train/trainer/trainer.h"

namespace weft::train {
namespace {

constexpr int kKeptCheckpoints = 2;
// What tells Fp8Scaling's tensors and those of callbacks from the optimizer's, beside which they
// lie in a full checkpoint.
constexpr const char* kFp8Key = ".fp8_";
constexpr const char* kCallbacks = "callbacks";

std::string tensors_key(const Callback& callback) { return "tensors:" + callback.state_key(); }

/// What a checkpoint holds is independent of the device.
NamedTensors on_cpu(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = to_device(tensor, Device{});
  return tensors;
}

/// Calls f(callback) for each that has a state.
template <class F>
void for_each_kept(Trainer& trainer, F&& f) {
  for (const auto& callback : trainer.options().callbacks) {
    if (!callback->state_key().empty()) f(*callback);
  }
}

/// Those of names that begin with the key and a dot, without that; they are taken away.
NamedTensors take(NamedTensors& tensors, const std::string& key) {
  const std::string prefix = key + ".";
  NamedTensors taken;
  std::erase_if(tensors, [&](auto& entry) {
    if (!entry.first.starts_with(prefix)) return false;
    taken.emplace_back(entry.first.substr(prefix.size()), entry.second);
    return true;
  });
  return taken;
}

}  // namespace

RunCheckpoints::RunCheckpoints(const Config& config, RunRecord record,
                               std::optional<Checkpoint> start, io::Path step)
    : every_(parse_save_every(config.save_every)),
      name_(config.recipe.empty() ? config.model : config.recipe),
      monitor_(config.monitor),
      top_k_(config.save_top_k),
      best_(config.save_top_k, is_more_better(config.monitor) ? Mode::kMax : Mode::kMin),
      record_(std::move(record)),
      start_(std::move(start)),
      latest_(std::move(step)) {}

void RunCheckpoints::claim_directory(const RunOptions& options, Trainer& trainer,
                                     const nn::Module& model) {
  if (!trainer.fabric().is_main()) return;
  directory_.emplace(latest_.empty() ? RunDirectory::claim(options.output, name_)
                                     : RunDirectory::of(options.resume, latest_, true));
  int64_t bytes = 0;
  for (const auto& [name, tensor] : model.unrouted_state()) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  directory_->check_writable(bytes * (1 + trainer.optimizer().state_tensors()));
  output_ = directory_->path();
}

void RunCheckpoints::write_final_weights(Fabric& fabric, nn::Module& model,
                                         io::Metadata metadata) const {
  const NamedTensors state = fabric.strategy().model_state(model);
  if (!fabric.is_main()) return;
  metadata["format"] = "pt";  // PyTorch's readers want to know who wrote the file
  io::write_safetensors(output_ / "model.safetensors", on_cpu(state), metadata);
}

io::Path RunCheckpoints::path_of_best() const {
  return output_ / fmt::format("step-{}", best_.entries().front().what);
}

std::string RunCheckpoints::describe_best() const {
  if (best_.entries().empty()) return {};
  return fmt::format("best       {} ({} {:.4f})\n", path_of_best().string(), monitor_,
                     best_.entries().front().score);
}

nlohmann::json RunCheckpoints::state_dict() const {
  nlohmann::json steps = nlohmann::json::array();
  for (const auto& [step, score] : best_.entries()) steps.push_back({step, exact_text(score)});
  return {{"steps", steps}};
}

void RunCheckpoints::load_state_dict(const nlohmann::json& state) {
  std::vector<TopK<int64_t>::Entry> entries;
  using Pairs = std::vector<std::pair<int64_t, std::string>>;
  for (const auto& [step, score] : io::field<Pairs>(state, "steps")) {
    entries.push_back({step, exact_number(score)});
  }
  best_.set_entries(std::move(entries));
}

KeptCheckpoints RunCheckpoints::kept() const {
  std::set<int64_t> steps;
  for (const auto& [step, score] : best_.entries()) steps.insert(step);
  return {kKeptCheckpoints, steps};
}

void RunCheckpoints::on_fit_start(Trainer& trainer, TrainingModule& module) {
  if (!start_) return;
  const Checkpoint start = *std::exchange(start_, std::nullopt);
  try {
    take_up(start, trainer, module);
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: the state is not that of a training run: {}", latest_.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}{}", latest_.string(), error.what(),
              start.is_sharded ? say_what_is_before(latest_) : "");
  }
}

void RunCheckpoints::on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor&,
                                        const Batch&, int64_t) {
  if (!trainer.has_stepped()) return;
  ++steps_;
  skipped_steps_ += trainer.was_skipped();
}

void RunCheckpoints::report_done(io::EventLog& log, nlohmann::ordered_json event) const {
  if (!best_.entries().empty()) {
    event["best"] = path_of_best().string();
    event["best_score"] = best_.entries().front().score;
  }
  if (skipped_steps_ > 0) {
    fmt::print(stderr,
               "weft: {} of {} steps were left out: their loss or gradients were not finite\n",
               skipped_steps_, steps_);
  }
  log.write("done", event);
  WEFT_CHECK(!log.has_failed(), "the run is done, and not all of its events are written");
}

void RunCheckpoints::report_interrupted(io::EventLog& log, int64_t step) const {
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

void RunCheckpoints::take_up(const Checkpoint& start, Trainer& trainer, TrainingModule& module) {
  Fabric& fabric = trainer.fabric();
  nn::Module& model = module.model();
  const nlohmann::json& state = start.state;
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json& callbacks =
      state.contains(kCallbacks) ? io::object_field(state, kCallbacks) : none;
  NamedTensors fp8;
  std::map<std::string, NamedTensors> theirs;  // of callbacks, by their keys
  for_each_kept(trainer, [&](Callback& callback) {
    if (callbacks.contains(callback.state_key())) theirs[tensors_key(callback)] = {};
  });
  if (start.is_sharded) {
    std::vector<NamedState> states = {
        {"model", &model}, {"optimizer", &trainer.optimizer()}, {"fp8", &fp8}};
    for (auto& [key, tensors] : theirs) states.emplace_back(key, &tensors);
    fabric.load(latest_.string(), states);
  } else {
    if (!start.model.empty()) model.load_state_dict(start.model);
    NamedTensors optimizer = start.optimizer;
    for (auto& [key, tensors] : theirs) tensors = take(optimizer, key);
    std::erase_if(optimizer, [&](const auto& entry) {
      const bool is_fp8 = entry.first.find(kFp8Key) != std::string::npos;
      if (is_fp8) fp8.push_back(entry);
      return is_fp8;
    });
    fabric.strategy().load_optimizer_state(trainer.optimizer(),
                                           {optimizer, io::field(state, "optimizer")});
  }
  fabric.fp8().load_state_dict(fp8, model.named_parameters());
  // Checkpoints from before losses were scaled have none.
  fabric.scaler().load_state_dict(state.value("loss_scaler", nlohmann::json::object()));
  record_.load(trainer, state);
  for_each_kept(trainer, [&](Callback& callback) {
    const auto tensors = theirs.find(tensors_key(callback));
    if (tensors == theirs.end()) return;  // it begins anew
    callback.load_state_dict(io::object_field(callbacks, callback.state_key()));
    callback.load_tensors(trainer, module, tensors->second);
  });
  saved_at_ = trainer.seconds();
}

/// Whether the state at hand is one of the best so far, which it joins then.
bool RunCheckpoints::joins_best(const Trainer& trainer) {
  const bool was_measured =
      trainer.was_validated(monitor_) ? trainer.has_validated() : trainer.has_ended_epoch();
  if (top_k_ == 0 || !was_measured) return false;
  const double score = trainer.metric(monitor_, "save-top-k");
  if (!best_.takes(score)) return false;
  best_.add(trainer.global_step(), score);
  return true;
}

void RunCheckpoints::on_save_point(Trainer& trainer, TrainingModule& module) {
  const bool is_due = joins_best(trainer) || trainer.has_ended_epoch() || trainer.is_stopping() ||
                      (every_.steps > 0 && trainer.global_step() % every_.steps == 0) ||
                      (every_.seconds > 0 && trainer.seconds() - saved_at_ >= every_.seconds);
  if (!is_due) return;
  saved_at_ = trainer.seconds();
  const auto& callbacks = trainer.options().callbacks;
  call_hook(callbacks, &Callback::on_save_start, trainer, module);
  if (trainer.fabric().options().state_dict_type == "sharded") {
    save_sharded(trainer, module);
  } else {
    save(trainer, module);
  }
  call_hook(callbacks, &Callback::on_save_end, trainer, module);
}

void RunCheckpoints::save(Trainer& trainer, TrainingModule& module) {
  Fabric& fabric = trainer.fabric();
  nn::Module& model = module.model();
  // Every rank brings its part.
  const NamedTensors weights = on_cpu(fabric.strategy().model_state(model));
  NamedTensors optimizer = fabric.strategy().optimizer_state(trainer.optimizer()).tensors;
  for (auto& entry : fabric.fp8().state_dict(model.named_parameters())) {
    optimizer.push_back(std::move(entry));
  }
  for_each_kept(trainer, [&](Callback& callback) {
    for (auto& [name, tensor] : callback.tensors(trainer, module)) {
      optimizer.emplace_back(tensors_key(callback) + "." + name, std::move(tensor));
    }
  });
  const nlohmann::json state = state_of(trainer);
  if (fabric.is_main()) {
    latest_ = save_checkpoint(output_,
                              {.step = trainer.global_step(),
                               .model = weights,
                               .optimizer = on_cpu(optimizer),
                               .state = state},
                              kept());
  }
  fabric.barrier();
}

/// Each rank writes its part while training goes on. When all have, it is a checkpoint.
void RunCheckpoints::save_sharded(Trainer& trainer, TrainingModule& module) {
  Fabric& fabric = trainer.fabric();
  fabric.wait_for_save();
  const auto draft = fabric.is_main()
                         ? std::make_shared<CheckpointDraft>(output_, trainer.global_step())
                         : std::shared_ptr<CheckpointDraft>();
  NamedTensors fp8 = fabric.fp8().state_dict(module.model().named_parameters());
  std::vector<NamedState> states = {
      {"model", &module.model()}, {"optimizer", &trainer.optimizer()}, {"fp8", &fp8}};
  std::map<std::string, NamedTensors> theirs;  // whose places stay
  for_each_kept(trainer, [&](Callback& callback) {
    NamedTensors& tensors = theirs[tensors_key(callback)];
    tensors = callback.tensors(trainer, module);
    states.emplace_back(tensors_key(callback), &tensors);
  });
  fabric.async_save(draft ? draft->directory().string() : "", states,
                    [this, draft, state = state_of(trainer), kept = kept()] {
                      latest_ = draft->commit(state, kept);
                    });
}

nlohmann::json RunCheckpoints::state_of(Trainer& trainer) const {
  nlohmann::json state = record_.save(trainer);
  state["optimizer"] = trainer.optimizer().state_dict().groups;
  state["loss_scaler"] = trainer.fabric().scaler().state_dict();
  for_each_kept(trainer, [&](Callback& callback) {
    state[kCallbacks][callback.state_key()] = callback.state_dict();
  });
  return state;
}

}  // namespace weft::train
