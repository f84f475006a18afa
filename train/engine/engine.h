// The loop of those who come from deepspeed.initialize(), with its words, on Fabric.
//
//   train::Engine engine(model, "ds_config.json");  // joins the ranks of mpirun, srun or torchrun
//   for (const auto& [images, labels] : batches) {  // train_micro_batch_size_per_gpu on each rank
//     const Tensor loss = ops::cross_entropy(engine(images), labels);
//     engine.backward(loss);
//     engine.step();
//   }
//   engine.save_checkpoint("checkpoints", {.client_state = {{"epoch", epoch}}});
//
// The file is DeepSpeed's JSON (train/config_files/config_file.h): batch rule, optimizer,
// scheduler, fp16 or bf16, ZeRO stage, offload, clipping. What it leaves out has DeepSpeed's own
// value. backward() divides the loss by gradient_accumulation_steps; of so many step()s the last
// steps, clips first, and drops the gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "optim/schedule.h"
#include "train/config_files/config_file.h"
#include "train/fabric.h"

namespace weft::train {

struct EngineOptions {
  std::string device = "cpu";  // cpu or cuda
  /// The ranks of which this one is a part; null: those of the launcher, if one has started it.
  dist::CommunicatorPtr world = {};
  /// Instead of the file's, as DeepSpeed's argument of that name: the optimizer is the caller's,
  /// and outlives the engine. A scheduler of the file's that has a peak of its own gives it that.
  optim::Optimizer* optimizer = nullptr;
  /// Instead of the file's: a factor on the learning rate.
  optim::Schedule lr_scheduler = {};
  std::string state_dict_type = "full";  // of checkpoints: full, sharded
};

struct EngineCheckpoint {
  std::string tag = {};  // empty: global_step<N>
  nlohmann::json client_state = nlohmann::json::object();
  bool save_latest = true;
};

struct LoadedCheckpoint {
  std::string path;
  nlohmann::json client_state;
};

/// What load_checkpoint() takes of a checkpoint besides the model. What it does not take stays.
struct EngineLoadOptions {
  bool optimizer_states = true;  // with its learning rates, and the loss scale
  /// False: a schedule goes on where it is, and sets the rates anew at its next step.
  bool lr_scheduler_states = true;
  bool module_only = false;  // neither of them, and no counts of steps
};

class Engine {
 public:
  /// Shards the model and its optimizer as the file says, and moves them to the device. The model
  /// outlives the engine. Throws Error for a file of another library's, for a batch rule that does
  /// not come out even on these ranks, and where neither file nor options have an optimizer.
  template <std::derived_from<nn::Module> Model>
  Engine(Model& model, const std::string& config, EngineOptions options = {})
      : Engine(model, structure_of(model), read_config_file(config), std::move(options)) {}
  template <std::derived_from<nn::Module> Model>
  Engine(Model& model, const nlohmann::json& config, EngineOptions options = {})
      : Engine(model, structure_of(model), read_config(config, "config"), std::move(options)) {}
  Engine(nn::Module& model, const nn::ModelStructure& structure, const ConfigFile& file,
         EngineOptions options);
  ~Engine();

  nn::Module& module() { return model_; }
  Fabric& fabric() { return *fabric_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  /// Of the file's schedule or the options', which step() steps; null without one.
  optim::Scheduler* lr_scheduler() { return scheduler_ ? &*scheduler_ : nullptr; }
  void train(bool mode = true) { model_.train(mode); }
  void eval() { train(false); }

  /// The model on x, in the file's precision.
  Tensor operator()(const Tensor& x);
  /// What that does first: for who calls the module itself, with other arguments.
  void begin_forward();
  /// Adds the gradients of the loss, this micro-batch's mean.
  void backward(const Tensor& loss);
  /// Ends the micro-batch. At the boundary: clips, steps the optimizer and the schedule, and drops
  /// the gradients; all ranks leave a step out whose gradients have overflowed on one of them.
  /// Throws Error without a backward().
  void step();
  /// Whether the micro-batch at hand is a step's last.
  bool is_gradient_accumulation_boundary() const;
  /// Says so from here on, instead of the count.
  void set_gradient_accumulation_boundary(bool is_boundary) { boundary_ = is_boundary; }

  int64_t train_batch_size() const;  // samples of a step on all ranks
  int64_t train_micro_batch_size_per_gpu() const { return config_.batch_size; }
  int64_t gradient_accumulation_steps() const { return config_.accumulate; }
  int64_t micro_steps() const { return micro_steps_; }
  int64_t global_steps() const { return global_steps_; }    // with those left out
  int64_t skipped_steps() const { return skipped_steps_; }  // left out
  int64_t global_samples() const { return global_samples_; }
  bool was_step_applied() const { return was_step_applied_; }
  /// Of each group of parameters.
  std::vector<double> get_lr() const;
  /// Before clipping, of the latest boundary; none before the first.
  std::optional<double> get_global_grad_norm() const { return grad_norm_; }
  double loss_scale() { return fabric_->scaler().get_scale(); }

  /// Writes DIR/TAG, whole or not at all, and DIR/latest, which names it: the model, the optimizer,
  /// the schedule, the scales, the counts above and the caller's state. Every rank calls; rank 0's
  /// caller's state counts. Throws Error naming a place that cannot be written, or a tag that is no
  /// name of a file.
  void save_checkpoint(const std::string& directory, EngineCheckpoint checkpoint = {});
  /// Goes on from it, on any number of ranks, under any stage and accumulation; without a tag from
  /// the latest. Drops what has begun of a step. Nothing where the directory has no `latest`.
  /// Throws Error naming a checkpoint that is missing, damaged or of another model.
  std::optional<LoadedCheckpoint> load_checkpoint(const std::string& directory,
                                                  std::string tag = {},
                                                  const EngineLoadOptions& options = {});

 private:
  std::vector<NamedState> states(nlohmann::json& engine, nlohmann::json& client, NamedTensors& fp8);
  std::string state_path(const std::string& directory, const std::string& tag) const;

  nn::Module& model_;
  Config config_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<optim::Optimizer> own_optimizer_;
  optim::Optimizer* optimizer_;
  std::optional<optim::Scheduler> scheduler_;
  std::shared_ptr<void> local_;  // gradients stay on their rank while it lives
  std::optional<bool> boundary_;
  bool has_gradients_ = false, was_step_applied_ = false;
  int64_t micro_steps_of_step_ = 0;  // whose gradients have added up since the last boundary
  int64_t micro_steps_ = 0, global_steps_ = 0, skipped_steps_ = 0, global_samples_ = 0;
  std::optional<double> grad_norm_;
};

}  // namespace weft::train
