#include "train/engine/engine.h"

#include <filesystem>
#include <utility>

#include "dist/comm/processes/join.h"
#include "io/files.h"
#include "io/json_field.h"
#include "optim/clip.h"
#include "optim/deepspeed_schedule.h"
#include "train/optimization.h"
#include "train/runs/run_options.h"
#include "train/sharded_state.h"

namespace weft::train {
namespace {

constexpr const char* kLatest = "latest";
// Of a tag: a directory of shards, or a file.
constexpr const char *kState = "state", *kWholeState = "state.safetensors";
// Names of what a checkpoint holds.
constexpr const char *kOptimizer = "optimizer", *kScaler = "scaler", *kSchedule = "schedule",
                     *kCounts = "engine";

Config config_of(const ConfigFile& file, int64_t devices) {
  WEFT_CHECK(file.dialect == "deepspeed", "engine: {}: expected DeepSpeed's JSON, got {}'s",
             file.path, file.dialect);
  Config config = deepspeed_config(file);
  config.devices = devices;
  if (!file.settings.contains("strategy") && devices > 1) config.strategy.name = "ddp";
  apply_communication_dtype(file, config);
  apply(file.batch, file.path, config);
  return config;
}

FabricOptions options_of(const Config& config, const EngineOptions& options) {
  FabricOptions result = fabric_options(config, parse_device(options.device));
  result.state_dict_type = options.state_dict_type;
  return result;
}

}  // namespace

Engine::Engine(nn::Module& model, const nn::ModelStructure& structure, const ConfigFile& file,
               EngineOptions options)
    : model_(model) {
  dist::CommunicatorPtr world = std::move(options.world);
  if (!world && dist::is_rank()) world = dist::join_world();
  config_ = config_of(file, world ? world->size() : 1);
  fabric_ = std::make_unique<Fabric>(options_of(config_, options));
  fabric_->launch(std::move(world));
  if (!options.optimizer) {
    WEFT_CHECK(file.settings.contains("optimizer"),
               "engine: {}: there is no \"optimizer\", and the options have none", file.path);
    own_optimizer_ = optim::make_optimizer(config_.optimizer, model.named_parameters(),
                                           optimizer_options(config_));
  }
  optimizer_ = options.optimizer ? options.optimizer : own_optimizer_.get();
  fabric_->setup(model_, *optimizer_, structure);
  optim::Schedule schedule = options.lr_scheduler;
  if (!schedule && optim::is_deepspeed_schedule(config_.schedule)) {
    if (file.is_lr_of_schedule) optimizer_->set_lr(config_.lr);
    schedule = optim::deepspeed_schedule(config_.schedule, {.lr = optimizer_->lr()}, file.path);
  }
  if (schedule) scheduler_.emplace(*optimizer_, schedule);
}

Engine::~Engine() = default;

Tensor Engine::operator()(const Tensor& x) {
  begin_forward();
  return fabric_->forward(model_, x);
}

void Engine::begin_forward() {
  // A guard points to nothing: whether there is one shows in its owners. One that an earlier
  // forward pass of the micro-batch has taken stays, unless the boundary has been set by hand
  // since.
  const bool is_local = local_.use_count() > 0, will_be = !is_gradient_accumulation_boundary();
  if (model_.is_training() && is_local != will_be) {
    local_ = fabric_->no_backward_sync(model_, will_be);
  }
}

void Engine::backward(const Tensor& loss) {
  const auto parts = static_cast<double>(config_.accumulate);
  fabric_->backward(parts == 1 ? loss : loss * (1.0 / parts));
  local_.reset();
  has_gradients_ = true;
}

bool Engine::is_gradient_accumulation_boundary() const {
  return boundary_.value_or(micro_steps_of_step_ + 1 == config_.accumulate);
}

void Engine::step() {
  WEFT_CHECK(has_gradients_, "engine: step() without a backward() since the one before");
  const bool is_boundary = is_gradient_accumulation_boundary();
  ++micro_steps_;
  ++micro_steps_of_step_;
  has_gradients_ = false;
  was_step_applied_ = false;
  if (!is_boundary) return;
  micro_steps_of_step_ = 0;
  grad_norm_ = config_.clip_norm > 0 ? fabric_->clip_gradients(*optimizer_, config_.clip_norm)
                                     : optim::grad_norm(optimizer_->parameters());
  was_step_applied_ = fabric_->step(*optimizer_);
  optimizer_->zero_grad();
  ++global_steps_;
  global_samples_ += train_batch_size();
  if (!was_step_applied_) {
    ++skipped_steps_;
  } else if (scheduler_) {
    scheduler_->step();
  }
}

int64_t Engine::train_batch_size() const {
  return config_.batch_size * config_.accumulate * fabric_->data_devices();
}

std::vector<double> Engine::get_lr() const { return optimizer_->learning_rates(); }

// Checkpoints.

std::vector<NamedState> Engine::states(nlohmann::json& engine, nlohmann::json& client,
                                       NamedTensors& fp8) {
  std::vector<NamedState> all = {
      {"module", &model_},       {kOptimizer, optimizer_},      {kCounts, &engine},
      {"client_state", &client}, {kScaler, &fabric_->scaler()}, {"fp8", &fp8}};
  if (scheduler_) all.emplace_back(kSchedule, &*scheduler_);
  return all;
}

std::string Engine::state_path(const std::string& directory, const std::string& tag) const {
  WEFT_CHECK(!tag.empty() && tag != "." && tag != ".." && tag != kLatest &&
                 tag.find('/') == std::string::npos,
             "engine: {}: tag: expected a name of a file other than \"{}\", got \"{}\"", directory,
             kLatest, tag);
  const io::Path place = io::Path(directory) / tag;
  const bool is_sharded = fabric_->options().state_dict_type == "sharded";
  return (place / (is_sharded ? kState : kWholeState)).string();
}

void Engine::save_checkpoint(const std::string& directory, EngineCheckpoint checkpoint) {
  const int64_t pending = micro_steps_of_step_ + has_gradients_;
  WEFT_CHECK(pending == 0,
             "engine: save_checkpoint() in the middle of a step, {} micro-batches behind the last "
             "boundary; expected it behind a step() at a boundary",
             pending);
  const std::string tag =
      checkpoint.tag.empty() ? fmt::format("global_step{}", global_steps_) : checkpoint.tag;
  const std::string path = state_path(directory, tag);
  on_rank_0([&] { io::make_directories(io::Path(path).parent_path()); }, fabric_->world());
  nlohmann::json engine = {{"micro_steps", micro_steps_},
                           {"global_steps", global_steps_},
                           {"skipped_steps", skipped_steps_},
                           {"global_samples", global_samples_}};
  NamedTensors fp8 = fabric_->fp8().state_dict(model_.named_parameters());
  fabric_->save(path, states(engine, checkpoint.client_state, fp8));
  const auto finish = [&] {
    // A whole state beside a sharded one is an older one, and a load would take it.
    const io::Path whole = io::Path(path).parent_path() / kWholeState;
    if (whole != path) io::remove_tree(whole);
    if (!checkpoint.save_latest) return;
    io::write_file_atomically(io::Path(directory) / kLatest,
                              [&](io::FileWriter& file) { file.write(tag + "\n"); });
  };
  on_rank_0(finish, fabric_->world());
}

std::optional<LoadedCheckpoint> Engine::load_checkpoint(const std::string& directory,
                                                        std::string tag,
                                                        const EngineLoadOptions& options) {
  if (tag.empty()) {
    const io::Path latest = io::Path(directory) / kLatest;
    if (!std::filesystem::exists(latest)) return std::nullopt;
    tag = io::read_text(latest);
    while (tag.ends_with('\n')) tag.pop_back();
  }
  std::string path = state_path(directory, tag);
  // As it was saved, whatever kind would be saved now.
  const io::Path place = io::Path(path).parent_path();
  path = (place / kWholeState).string();
  if (!std::filesystem::exists(path)) path = (place / kState).string();
  nlohmann::json engine, client;
  NamedTensors fp8;
  std::vector<NamedState> wanted = states(engine, client, fp8);
  std::erase_if(wanted, [&](const NamedState& state) {
    const std::string& name = state.name;
    if (name == kCounts) return options.module_only;
    if (name == kSchedule) return options.module_only || !options.lr_scheduler_states;
    if (name == kOptimizer || name == kScaler) {
      return options.module_only || !options.optimizer_states;
    }
    return false;
  });
  fabric_->load(path, wanted);
  fabric_->fp8().load_state_dict(fp8, model_.named_parameters());
  io::read_at("engine: " + path, [&] {
    if (options.module_only) return;
    io::read_field(engine, "micro_steps", micro_steps_);
    io::read_field(engine, "global_steps", global_steps_);
    io::read_field(engine, "skipped_steps", skipped_steps_);
    io::read_field(engine, "global_samples", global_samples_);
  });
  // A checkpoint lies at a boundary: what has begun of a step is dropped.
  local_.reset();
  optimizer_->zero_grad();
  has_gradients_ = false;
  micro_steps_of_step_ = 0;
  return LoadedCheckpoint{path, client};
}

}  // namespace weft::train
