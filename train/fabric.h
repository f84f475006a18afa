// A plain training loop in any precision, on any number of devices, with Lightning Fabric's words.
//
//   train::Fabric fabric({.devices = 4, .precision = "bf16-mixed", .strategy = {.name = "fsdp"}});
//   if (const auto code = fabric.launch(argc, argv)) return *code;  // starts the ranks, or is one
//   Net model;
//   optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
//   data::Loader loader(dataset, {.batch_size = 64, .shuffle = true});
//   fabric.setup(model, optimizer);
//   fabric.setup_dataloader(loader);
//   while (const auto batch = loader.next()) {
//     optimizer.zero_grad();
//     fabric.backward(ops::cross_entropy(model(batch->images), batch->labels));
//     optim::clip_grad_norm(model.parameters(), 1.0);
//     optimizer.step();
//   }
//   fabric.save("model.safetensors");
//
// What setup() has taken over knows of the precision, the loss scale and the shards: model(x),
// optimizer.step() and zero_grad(), model.zero_grad(), state_dict() and load_state_dict(), and the
// functions of optim/clip.h. What cannot be led there throws: weft::backward(loss) where the loss
// has to be scaled, averaged or divided, clipping and steps on gradients that have not been summed
// over the ranks, steps of an optimizer that was not set up, add_group(), a step inside a captured
// graph, and calls of a model's parts from outside of it. A program may set up several models and
// optimizers, and optimizers of parts of a model, which step and drop gradients when they like.
//
// model.forward(x) and methods of a model's own call its parts, which throw where they would run in
// another precision than was asked for, or past the strategy: forward(model, function) runs them.
// Not seen are functions that call no part which has parameters: forward(x) of a single layer, or
// one that reads the parameters itself.
//
// A step of several micro-batches, or one in a strategy's own order, is fabric.run() in the place
// of backward(). `weft train` is built on this (train/trainer/trainer.h, train/runs/image_run.h);
// examples/plain_training.cc and examples/scaled_training.cc are one program without and with it.
#pragma once

#include <fmt/core.h>

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "dist/plan/sharing.h"
#include "dist/strategy/strategy.h"
#include "nn/module.h"
#include "nn/structure.h"
#include "optim/grad_scaler.h"
#include "optim/gradient_owner.h"
#include "optim/optimizer.h"
#include "train/devices.h"
#include "train/fabric_callback.h"
#include "train/fp8_level.h"
#include "train/metrics/logger.h"
#include "train/named_state.h"
#include "train/precision.h"
#include "train/shared_loader.h"

namespace weft::io {
struct Slice;
}

namespace weft::train {

class PendingSave;

/// Settings that the name of a precision leaves open.
struct NumericsOptions {
  optim::GradScalerOptions loss_scale = {};  // of 16-mixed
  bool loss_scale_is_fixed = false;          // its first value stays
  Fp8Options fp8 = {};
  std::string fp8_level = {};  // O1, O2, O3 of fp8 (train/fp8_level.h)
  kernels::Accumulation accumulation = kernels::Accumulation::kIeee;
  kernels::Tf32 tf32_rounding = kernels::Tf32::kTruncate;
};

struct FabricOptions {
  std::string device = "cpu";  // cpu or cuda; of a single device also its number: cuda:1
  /// With cuda a rank, or a thread of dp, takes the device of its number on its host, or in the
  /// list.
  Devices devices = 1;
  int num_nodes = 1;  // hosts with so many devices each, on which a launcher starts ranks
  /// 32-true, 64-true, 16-mixed (the loss is scaled), bf16-mixed, 16-true, bf16-true,
  /// transformer-engine (fp8), or by our names (train/precision.h).
  std::string precision = "32-true";
  /// By our names, Fabric's, Accelerate's or DeepSpeed's (dist/strategy/aliases.h). A parallel
  /// head: with forward() and cross_entropy() below. In bf16-mixed and 16-mixed weights that
  /// products alone read travel in 16 bits, with the same results, unless param_dtype says fp32: a
  /// model that reads them otherwise, or leaves Autocast for a part of itself, needs that.
  dist::StrategyOptions strategy = {};
  /// Who adds on GPUs: nccl, or exact, our kernels in the one order of summation, with the CPU's
  /// bits (dist/comm/device/on_device.h).
  std::string collectives = "nccl";
  NumericsOptions numerics = {};
  int64_t accumulate = 1;                // batches of one step, of accumulate() below
  bool split_batches = false;            // a loader's batch is that of all devices, not of each
  std::string state_dict_type = "full";  // of save(): full, sharded
  std::vector<std::shared_ptr<Logger>> loggers = {};            // of log()
  std::vector<std::shared_ptr<FabricCallback>> callbacks = {};  // of call()
};

/// The options with what the environment says of them, as `fabric run` does for Lightning's:
/// WEFT_DEVICE, WEFT_DEVICES, WEFT_NUM_NODES, WEFT_PRECISION, WEFT_STRATEGY, WEFT_STATE_DICT_TYPE.
/// Throws Error naming a variable whose value cannot be read.
FabricOptions from_environment(FabricOptions options = {});

/// The structure that a model describes. Where that says nothing of replicas, the model's default
/// constructor, if there is one, makes them.
template <std::derived_from<nn::Module> Model>
nn::ModelStructure structure_of(Model& model) {
  nn::ModelStructure structure = model.structure();
  if constexpr (std::default_initializable<Model>) {
    if (!structure.replica && typeid(model) == typeid(Model)) {
      structure.replica = [] { return std::make_unique<Model>(); };
    }
  }
  return structure;
}

class Fabric {
 public:
  /// Throws Error for options that do not go together.
  explicit Fabric(const FabricOptions& options);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// With several devices, outside mpirun and srun: starts this program again as so many ranks,
  /// waits, and returns their exit code, with which main() is to end. Otherwise joins the ranks
  /// that are there and returns nothing. The ranks have this program's name where argv[0] is an
  /// absolute path to it: an interpreter finds its packages by that.
  [[nodiscard]] std::optional<int> launch(int argc, char** argv);
  /// Joins ranks that are there already, such as threads of a test; null for a process alone.
  void launch(dist::CommunicatorPtr world);

  /// Where this rank computes.
  Device device() const { return device_; }
  int rank() const { return world_ ? world_->rank() : 0; }
  /// Among the ranks of this host.
  int local_rank() const;
  int size() const { return world_ ? world_->size() : 1; }
  bool is_main() const { return rank() == 0; }
  /// Ranks that take different samples, and this one's number among them.
  int data_size() const { return strategy().data_size(); }
  int data_rank() const { return strategy().data_rank(); }
  /// Devices that take different samples, threads of dp among them.
  int data_devices() const { return sharing().data_devices(); }
  /// Of the model that was set up first.
  dist::Strategy& strategy() const;
  /// Null for a process alone.
  const dist::CommunicatorPtr& world() const { return world_; }
  /// As given, with our names.
  const FabricOptions& options() const { return options_; }
  /// Of the batch that a loader of this Fabric gave last, of those that are in an epoch.
  data::LoaderWatch latest_batch() const { return watch_->latest(); }
  /// To which these loaders say what they give.
  const std::shared_ptr<data::WatchedLoaders>& watch() const { return watch_; }

  /// Takes over a model and optimizers of its parameters, which have not stepped yet: shards them
  /// as the strategy says, and moves the model to the device. The strategy asks the model for its
  /// structure. Under dp replicas are made by the model's default constructor where the structure
  /// does not say how. A model whose Fabric is gone may be set up again where that has left it
  /// whole. Throws Error for one that shares parameters with another that was set up, and for an
  /// optimizer that was set up, comes twice, has stepped, has parameters of other models, needs
  /// whole ones where the strategy cuts any, or, where a loss is scaled, has one that another has,
  /// too: then nothing has changed.
  template <std::derived_from<nn::Module> Model, std::derived_from<optim::Optimizer>... Optimizers>
  void setup(Model& model, Optimizers&... optimizers) {
    setup(model, std::vector<optim::Optimizer*>{&optimizers...}, structure_of(model));
  }
  /// The same, for a model that does not describe itself.
  void setup(nn::Module& model, optim::Optimizer& optimizer, const nn::ModelStructure& structure) {
    setup(model, std::vector{&optimizer}, structure);
  }
  void setup(nn::Module& model, const std::vector<optim::Optimizer*>& optimizers,
             const nn::ModelStructure& structure);
  void setup_model(nn::Module& model, const nn::ModelStructure& structure);
  /// Of parameters of models that were set up, one or several. Throws Error as setup() does.
  void setup_optimizers(const std::vector<optim::Optimizer*>& optimizers);
  void setup_optimizer(optim::Optimizer& optimizer) { setup_optimizers({&optimizer}); }
  /// Whose parameters an optimizer that was set up has.
  std::vector<nn::Module*> models_of(const optim::Optimizer& optimizer) const;
  /// Gives up a model and the optimizers of it: it is a module like any other again, without
  /// gradients, and may be set up elsewhere. Throws Error where this rank does not have all of it.
  void release(nn::Module& model);

  /// From here on the loader gives this rank's share, on its device: batches of its batch_size for
  /// each device, or with split_batches a part of each batch. Ranks that share a layer or a
  /// pipeline get the same; with dp one batch holds those of all devices. A share that would be
  /// empty holds a sample that another rank has as well. Without use_distributed_sampler the loader
  /// gives what it would alone, on this rank's device: it knows of the ranks by itself. Without
  /// move_to_device batches are where the loader's own options say.
  void setup_dataloader(data::Loader& loader, bool use_distributed_sampler = true,
                        bool move_to_device = true) const;
  /// The same for a new loader; its batch_size is always that of each device.
  std::unique_ptr<data::Loader> setup_dataloader(data::DatasetPtr dataset,
                                                 data::LoaderOptions options) const;
  /// The same for any other loader (shared_loader.h): `auto shared = fabric.share(loader);`, then
  /// shared.next(). Every rank reads all of `loader`, which must give the same on each, unless it
  /// is without use_distributed_sampler. Without move_to_device batches stay where they are.
  template <class Source>
  SharedLoader<Source> share(Source& loader, bool use_distributed_sampler = true,
                             bool move_to_device = true) const {
    SharedLoaderOptions options = {.device = device_, .watch = watch_};
    if (!move_to_device) options.device.reset();
    if (use_distributed_sampler) {
      options.ranks = data_size();
      options.rank = data_rank();
      if (!options_.split_batches) options.batches = data_devices();
    }
    return SharedLoader<Source>(loader, options);
  }

  /// The model on x, wherever that is, in the precision asked for; floating results come back in
  /// f32 or f64, on the device. model(x) is the same.
  Tensor forward(nn::Module& model, const Tensor& x);
  /// The same of the only model.
  Tensor forward(const Tensor& x) { return forward(*only_model("forward").module, x); }
  /// What function() returns, called in the precision and prepared for as model(x) is: for methods
  /// of a model. Throws Error under dp and pipeline, which run model(x) alone.
  Tensor forward(nn::Module& model, const std::function<Tensor()>& function);
  /// The same of a function that returns several.
  Tensors forward(nn::Module& model, const std::function<Tensors()>& function);
  /// What becomes of a call model(...) with any arguments and results, which call() makes, as of
  /// model(x): forward(model, call), but an Error where that would be a part of the logits.
  Tensors lead(nn::Module& model, const std::function<Tensors()>& call);
  /// What such a call hands to the model in the place of x: a tensor on the device, in the weights'
  /// dtype where it is floating, or an image of bytes.
  Tensor input(const Tensor& x, bool is_image = false) const;
  /// By which a model was set up; null for one that was not, or whose Fabric is gone.
  static Fabric* of(const nn::Module& model);
  /// ops::cross_entropy of what forward() returned. With parallel_head a rank has the logits of
  /// some classes alone: then it has to be this one.
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                       const ops::CrossEntropyOptions& options = {}) const {
    return strategy().cross_entropy(logits, labels, options);
  }
  /// Enters the precision, for as long as the result lives; the functions here do so themselves.
  PrecisionScope autocast();

  /// Before a model is measured: its buffers, running statistics say, become on all ranks what
  /// save() takes, as before each forward in training. Every rank calls.
  void share_buffers(nn::Module& model);

  /// Adds the gradients of the mean of all ranks' losses; in 16-mixed they are scaled.
  void backward(const Tensor& loss);
  /// Forward and backward of a step's micro-batches of the only model, in the strategy's order,
  /// which alone is a pipeline's schedule. The loss of each is its share of the whole batch's loss,
  /// scaled(); it may call the model's parts.
  void run(const dist::MicroBatches& batches);
  Tensor scaled(const Tensor& loss) { return scaler_.scale(loss); }

  /// While the result lives, backward() leaves the model's gradients on their rank, where they add
  /// up. The last backward before clipping and step() has to be outside.
  [[nodiscard]] std::shared_ptr<void> no_backward_sync(nn::Module& model, bool enabled = true);
  /// For the body of a loop of which options.accumulate rounds are one step of these models, as
  /// `accelerator.accumulate`: while the result lives, backward() divides their gradients by them,
  /// and until the last of them, or the last batch of a loader of this Fabric, step() of their
  /// optimizers is left out and clipping does nothing. Of several loaders that counts which gave a
  /// batch last and is not through. zero_grad() of these optimizers keeps what has added up, of all
  /// their models: it may begin the loop's body or end it. In the last round it keeps that for a
  /// backward() that reaches some of it, on any rank, or a step() which follows; without one, in
  /// the place of step(), it leaves the step out, and all is dropped where the round ends. Other
  /// models' gradients are whole, and their optimizers step. Throws Error for models of which one
  /// has had more rounds of its step than another.
  [[nodiscard]] std::shared_ptr<void> accumulate(const std::vector<nn::Module*>& models);
  [[nodiscard]] std::shared_ptr<void> accumulate(nn::Module& model) {
    return accumulate(std::vector<nn::Module*>{&model});
  }
  /// False in a round of accumulate() that ends no step.
  bool sync_gradients() const { return !is_accumulating_; }

  /// optim::clip_grad_norm of the optimizer's parameters: scales the gradients so that their norm
  /// over all ranks is at most max_norm, and returns the norm that they had. In 16-mixed it divides
  /// them by the loss scale first. Throws Error, changing no more than that, for a norm that is not
  /// finite where `error_if_nonfinite`.
  double clip_gradients(optim::Optimizer& optimizer, double max_norm,
                        bool error_if_nonfinite = false);
  /// In 16-mixed divides the gradients by the loss scale, once a step, and returns the norm of this
  /// rank's; else 0. Clipping and step() do it where it was not done.
  double unscale(optim::Optimizer& optimizer);
  /// The same; the norm, f64 [], stays on the device, for which a process alone does not wait.
  /// Undefined where nothing was divided.
  Tensor unread_unscale(optim::Optimizer& optimizer);
  /// optimizer.step(gradient_scale, gate), which then sets the loss scale and the scales of fp8 for
  /// the next step. Returns false, on all ranks, when a gradient was infinite on one of them and
  /// the step was skipped.
  bool step(optim::Optimizer& optimizer, double gradient_scale = 1,
            const kernels::StepGate& gate = {});
  /// Instead of step() of the only optimizer: nothing changes.
  void skip_step();
  optim::GradScaler& scaler() { return scaler_; }
  Fp8Scaling& fp8() { return fp8_; }

  /// In place; complete when it returns.
  void all_reduce(const Tensor& x, dist::ReduceOp op = dist::ReduceOp::kMean) const;
  /// [ranks, ...]: every rank's x, where x is. The gradient of x is the sum of what the ranks do
  /// with it.
  Tensor all_gather(const Tensor& x) const;
  /// [samples, ...]: the data ranks' rows, one after another, each sample of latest_batch() once:
  /// without the rows that a loader of this Fabric filled up with. Rows may differ in number.
  Tensor gather_for_metrics(const Tensor& x) const;
  /// The same of one number of each rank's batch: f64 [data ranks].
  Tensor gather_for_metrics(double value) const;
  void broadcast(const Tensor& x, int source = 0) const;
  void barrier() const;

  /// The whole of the only model as a safetensors file, written by rank 0. Every rank calls both,
  /// and gets an Error where rank 0 cannot write.
  void save(const std::string& path);
  void load(const std::string& path);
  /// Any state by the caller's names: `save(path, {{"model", &model}, {"optimizer", &optimizer},
  /// {"scaler", &fabric.scaler()}, {"epoch", &epoch}})`. Every rank calls. With state_dict_type
  /// full: whole, in one safetensors file, whatever the strategy. With sharded: in a directory to
  /// which each rank writes its part (io/sharded_safetensors.h). Either replaces an older one when
  /// it is complete.
  void save(const std::string& path, const std::vector<NamedState>& states) {
    async_save(path, states);
    wait_for_save();
  }
  /// The same; a sharded state is copied, and written while training goes on. It is complete after
  /// a step of an optimizer, the next save or wait_for_save(), whatever comes first; that throws
  /// what went wrong, a step before anything has changed. Rank 0 then calls `then`, and what this
  /// throws is thrown there, and elsewhere as an Error. The path is rank 0's. A Fabric that goes
  /// before that has dropped the state, and says so.
  void async_save(const std::string& path, const std::vector<NamedState>& states,
                  const std::function<void()>& then = {});
  void wait_for_save();
  /// Does without what is being saved, and says so on rank 0; no rank waits for another.
  void drop_save();
  /// What either kind of save() has left, under the same or another strategy, on any number of
  /// ranks; of a sharded one a rank reads its part. Returns the names in it that were not asked
  /// for. Throws Error naming what it lacks or has of another kind before anything has changed; a
  /// model's and an optimizer's tensors are checked when their turn comes.
  std::vector<std::string> load(const std::string& path, const std::vector<NamedState>& states);
  /// The same, for who decides by what is there: `ask` hears the names of the states and of their
  /// kinds (train/named_state.h), and returns those to load.
  using StateKinds = std::map<std::string, std::string>;
  std::vector<std::string> load_by_kinds(
      const std::string& path,
      const std::function<std::vector<NamedState>(const StateKinds&)>& ask);

  /// To options.loggers, on rank 0 alone. Without a step, 0 at first, then one more than the call
  /// before: calls are counted, of either kind, not the steps of an optimizer. Throws Error where a
  /// logger cannot write.
  void log(const std::string& name, double value, std::optional<int64_t> step = {});
  void log_dict(const NamedValues& values, std::optional<int64_t> step = {});
  /// Calls a function of those callbacks that have it, in their order and on every rank:
  /// `fabric.call(&Stopwatch::on_epoch_end, epoch)`.
  template <class Callback, class... Parameters, class... Arguments>
  void call(void (Callback::*hook)(Parameters...), Arguments&&... arguments) const {
    call_hook(options_.callbacks, hook, std::forward<Arguments>(arguments)...);
  }
  /// On rank 0 alone.
  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... arguments) const {
    if (is_main()) fmt::print(format, std::forward<Args>(arguments)...);
  }
  /// Weights of all ranks from one seed, dropout of each from its own stream: call it first.
  void seed_everything(uint64_t seed) const;

 private:
  /// A parameter of a model that was set up, and what its gradient is. That is a matter of each
  /// alone: a model's optimizers may have some of its parameters each, and step and drop gradients
  /// when they like; a backward pass may reach some parameters and not others.
  struct Parameter {
    std::string name;           // in the model
    Tensor whole;               // the model's
    Tensor kept;                // what this rank has of it, and the optimizer
    bool is_touched = false;    // by the backward under way, or the latest
    bool is_reached = false;    // by one since the gradient was dropped, on this rank
    bool is_adding_up = false;  // accumulate() has a gradient of a step to come, of its optimizer
    // Where ranks have different samples.
    bool is_local = false;  // the gradient is this rank's alone; else summed over the ranks
    Tensor sum_aside = {};  // what was summed while others come that are this rank's alone
  };
  /// A model that was set up.
  struct Model {
    nn::Module* module = nullptr;
    std::weak_ptr<void> is_alive;
    std::shared_ptr<dist::Strategy> strategy;
    std::unordered_set<const nn::Module*> parts;  // of the model
    std::vector<Parameter> parameters;
    std::unordered_map<const void*, size_t> places;  // in these, of whole and of kept ones
    std::shared_ptr<void> ownership;                 // of the gradients
    bool is_loading = false;                         // by its strategy
    bool is_passed = false;                          // an output, by the backward under way
    int local_depth = 0;                             // of no_backward_sync()
    // Of accumulate().
    int64_t rounds = 0;        // since the last step
    bool is_in_round = false;  // one is under way
    bool waits = false;        // and others of the step are to come
  };
  struct Optimizer {
    optim::Optimizer* optimizer = nullptr;
    std::weak_ptr<void> is_alive;
    std::vector<Model*> models;
    bool is_unscaled = false;  // its gradients, since they were computed
    bool is_used_up = false;   // a step has used them; zero_grad() is due where a loss is scaled
    bool is_drop_due = false;  // where the round ends, unless a backward or a step comes before
  };
  class Gradients;

  const dist::Sharing& sharing() const;
  std::shared_ptr<dist::Strategy> make_strategy() const;
  static void load_state(Model& model, const NamedTensors& state);
  NamedTensors state_everywhere(const Model& model) const;
  Tensor gather_rows(const Tensor& x, int64_t rows) const;
  void check_logits(const nn::Module& model) const;
  void lead_part(Model& model, const std::string& name, nn::Module& part);
  void check_call(const std::string& name, const nn::Module& part);
  void check_unshared(const nn::Module& model) const;
  void check_optimizers(const std::vector<optim::Optimizer*>& optimizers,
                        const nn::Module* coming) const;
  void add_optimizer(optim::Optimizer& optimizer);
  /// Whether what a model was is there when it is no longer this Fabric's.
  bool leaves_whole(const Model& model) const;
  Model& only_model(std::string_view function);
  Model& find_model(nn::Module& model, std::string_view function);
  Optimizer& find_optimizer(const optim::Optimizer& optimizer, std::string_view function);
  std::pair<Model*, Parameter*> find_parameter(const Tensor& tensor) const;
  static std::vector<Parameter*> trained_by(const Optimizer& optimizer, Model& model);
  static std::vector<Parameter*> trained_by(const Optimizer& optimizer);
  void forget_the_dead();
  Model* model_of(const optim::Optimizer& optimizer);
  Model* model_of(const nn::Module& module);
  NamedTensors whole_state(nn::Module& module);
  optim::OptimizerState whole_state(const optim::Optimizer& optimizer);
  dist::LocalTensors local_state(nn::Module& module);
  dist::LocalTensors local_state(const optim::Optimizer& optimizer);
  void start_save(const std::string& path, std::vector<io::Slice> slices,
                  const std::map<std::string, std::string>& metadata,
                  const std::function<void()>& then);
  void poll_save();
  struct SavedState;
  void load_model(const SavedState& from, const std::string& name, nn::Module& module);
  void load_optimizer(const SavedState& from, const std::string& name, optim::Optimizer& optimizer,
                      const nlohmann::json& groups);
  void run_backward(const std::function<void()>& pass);
  void watch_backward(Model& model);
  void watch_outputs(Model& model, const Tensors& outputs) const;
  void begin_pass(Model& model);
  void end_pass(Model& model);
  void abandon_pass(Model& model) const;
  void note_pass(Optimizer& entry) const;
  void end_round();
  static bool is_in_round(const Optimizer& optimizer);
  static bool waits(const Optimizer& optimizer);
  bool take_step(Optimizer& entry, double gradient_scale, const kernels::StepGate& gate);
  void drop_gradients(Optimizer& entry);
  void drop_gradients(Model& model);
  void drop_gradients(Model& model, const nn::Module& part);
  static void drop_gradients(Model& model, const std::vector<Parameter*>& parameters);
  void settle(Optimizer& entry);
  Tensor unscale(Optimizer& entry);
  void update_scale();
  void reduce_amax();

  const FabricOptions options_;
  std::optional<dist::Sharing> sharing_;  // once the number of devices is known
  int devices_ = 0;
  const Precision& precision_;
  optim::GradScaler scaler_;
  Fp8Scaling fp8_;
  std::optional<LowBitStates> low_bits_;  // of a level of fp8
  Device device_;
  dist::CommunicatorPtr world_;
  // Made by launch(); it becomes that of the first model.
  std::shared_ptr<dist::Strategy> geometry_;
  bool is_geometry_used_ = false;
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
  std::shared_ptr<data::WatchedLoaders> watch_ = std::make_shared<data::WatchedLoaders>();
  bool has_logged_ = false;
  int64_t next_log_ = 0;               // the step of a log() that says none
  std::unique_ptr<PendingSave> save_;  // of async_save(), until it is complete
  bool is_in_backward_ = false;
  bool is_update_due_ = false;  // of the loss scale, when all optimizers that wait for it are done
  // Of accumulate().
  bool is_in_round_ = false, is_accumulating_ = false;
  bool divides_gradients_ = false;  // of models in the round; else the loss was divided
  // Cleared when this goes: what was set up may be there for longer.
  std::shared_ptr<Fabric*> alive_ = std::make_shared<Fabric*>(this);
  std::shared_ptr<Gradients> gradients_;
};

}  // namespace weft::train
