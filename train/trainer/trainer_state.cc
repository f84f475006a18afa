// What a Trainer saves and continues from: named states (train/named_state.h).
//
//   module, optimizer, schedule, scaler, fp8   as Fabric keeps them
//   trainer                                    JSON: where the fit stands, its figures, and each
//                                              rank's random stream
//   callback:KEY, tensors:KEY                  of each callback that has a key

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "io/json_field.h"
#include "train/exact_text.h"
#include "train/sharded_state.h"
#include "train/trainer/trainer.h"

namespace weft::train {
namespace {

constexpr int kVersion = 1;
constexpr const char* kTrainer = "trainer";
constexpr const char* kFp8 = "fp8";
constexpr const char *kSeconds = "seconds", *kValidated = "validated",
                     *kIsDue = "is_validation_due";

/// [ranks, 3]: seed, stream and offset of each.
std::vector<std::vector<uint64_t>> generators_of(const Fabric& fabric) {
  const Generator& mine = generator();
  std::vector<int64_t> bits;
  for (const uint64_t word : {mine.seed, mine.stream, mine.offset}) {
    bits.push_back(std::bit_cast<int64_t>(word));
  }
  const Tensor all = fabric.all_gather(Tensor::from(bits, {3}));
  std::vector<std::vector<uint64_t>> rows(fabric.size());
  for (int64_t i = 0; i < all.numel(); ++i) {
    rows[i / 3].push_back(std::bit_cast<uint64_t>(all.data<int64_t>()[i]));
  }
  return rows;
}

/// "optimizer", "optimizer_1", ...
std::string numbered(const std::string& name, size_t i) {
  return i == 0 ? name : fmt::format("{}_{}", name, i);
}

/// A state's name has no dots; what callbacks are called after may.
std::string without_dots(std::string key) {
  std::ranges::replace(key, '.', '_');
  return key;
}

}  // namespace

nlohmann::json Callback::state_dict() const { return nlohmann::json::object(); }

nlohmann::json Trainer::history() const {
  nlohmann::json metrics = nlohmann::json::array();
  for (const auto& [name, value] : metrics_) metrics.push_back({name, exact_text(value)});
  const nlohmann::json validated = validated_ ? nlohmann::json(*validated_) : nlohmann::json();
  return {{kIsDue, is_validation_due_},
          {kSeconds, seconds_},
          {"metrics", metrics},
          {kValidated, validated}};
}

nlohmann::json Trainer::state_dict() {
  nlohmann::json state = history();
  state.update({{"version", kVersion},
                {"epoch", epoch_},
                {"batch", batch_},
                {"batches", train_batches_},
                {"global_step", global_step_},
                {"generators", generators_of(fabric_)},
                {"epoch_means", epoch_means_.state_dict(fabric_)}});
  return state;
}

void Trainer::set_position(int64_t epoch, int64_t batch, int64_t global_step) {
  WEFT_CHECK(epoch >= 0, "\"epoch\": expected 0 or more, got {}", epoch);
  WEFT_CHECK(batch >= 0 && batch <= train_batches_,
             "\"batch\": expected one of the {} of an epoch, got {}", train_batches_, batch);
  WEFT_CHECK(global_step >= 0, "\"global_step\": expected 0 or more, got {}", global_step);
  epoch_ = epoch;
  batch_ = batch;
  global_step_ = global_step;
}

void Trainer::load_history(const nlohmann::json& history) {
  // Before it was kept a validation was never cut short.
  is_validation_due_ = validation_ && history.contains(kIsDue) && io::field<bool>(history, kIsDue);
  // Who goes by no clock may leave it out.
  if (history.contains(kSeconds)) io::read_field(history, kSeconds, seconds_);
  metrics_.clear();
  using Metrics = std::vector<std::pair<std::string, std::string>>;
  for (const auto& [name, value] : io::field<Metrics>(history, "metrics")) {
    metrics_.emplace_back(name, exact_number(value));
  }
  validated_.reset();
  if (!history.contains(kValidated)) {  // as if each were a validation's, before it was kept
    validated_.emplace();
    for (const auto& [name, value] : metrics_) validated_->push_back(name);
  } else if (!history[kValidated].is_null()) {
    validated_ = io::field<std::vector<std::string>>(history, kValidated);
  }
}

void Trainer::load_state_dict(const nlohmann::json& state) {
  const nlohmann::json& version = io::field(state, "version");
  WEFT_CHECK(version == kVersion, "it has format version {}, expected {}", version.dump(),
             kVersion);
  using Generators = std::vector<std::array<uint64_t, 3>>;
  const auto generators = io::field<Generators>(state, "generators");
  const auto ranks = static_cast<int>(generators.size());
  WEFT_CHECK(ranks > 0, "\"generators\": expected one of each rank, got none");
  const auto batch = io::field<int64_t>(state, "batch");
  const auto batches = io::field<int64_t>(state, "batches");
  WEFT_CHECK(batch == 0 || (ranks == fabric_.size() && batches == train_batches_),
             "it was saved after batch {} of {} of an epoch, on {} ranks; here an epoch has {} "
             "batches, on {}",
             batch, batches, ranks, train_batches_, fabric_.size());
  set_position(io::field<int64_t>(state, "epoch"), batch, io::field<int64_t>(state, "global_step"));
  load_history(state);
  if (ranks == fabric_.size()) {
    const auto& [seed, stream, offset] = generators[fabric_.rank()];
    generator() = {.seed = seed, .stream = stream, .offset = offset};
    epoch_means_.load_state_dict(io::object_field(state, "epoch_means"), fabric_.rank());
  } else {
    // At the start of an epoch: streams as if the fit had begun on these ranks.
    fabric_.seed_everything(generators[0][0]);
    generator().offset = generators[0][2];
  }
}

void Trainer::seek(data::LoaderPosition place, int64_t global_step, const nlohmann::json& history) {
  if (!history.is_null()) load_history(history);
  set_position(place.epoch, place.batch, global_step);
  is_validation_due_ = validation_ && (is_validation_due_ || batch_ == train_batches_);
}

/// What states point to while they are saved or loaded.
struct Trainer::Saved {
  nlohmann::json trainer;
  NamedTensors fp8;
  std::vector<nlohmann::json> callbacks;
  std::vector<NamedTensors> tensors;  // of callbacks
};

std::vector<NamedState> Trainer::model_states(TrainingModule& module) {
  const NamedModels models = module.models();
  if (models.size() == 1) return {{"module", models[0].second}};
  std::vector<NamedState> states;
  for (const auto& [name, model] : models) states.emplace_back("module_" + name, model);
  return states;
}

std::vector<NamedState> Trainer::states(Saved& saved) {
  std::vector<NamedState> all = model_states(*module_);
  all.insert(all.end(),
             {{"scaler", &fabric_.scaler()}, {kTrainer, &saved.trainer}, {kFp8, &saved.fp8}});
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    all.emplace_back(numbered("optimizer", i), part.optimizer.get());
    if (part.scheduler) all.emplace_back(numbered("schedule", i), &*part.scheduler);
  }
  saved.callbacks.resize(options_.callbacks.size());
  saved.tensors.resize(options_.callbacks.size());
  for (size_t i = 0; i < options_.callbacks.size(); ++i) {
    const std::string key = without_dots(options_.callbacks[i]->state_key());
    if (key.empty()) continue;
    all.emplace_back("callback:" + key, &saved.callbacks[i]);
    all.emplace_back("tensors:" + key, &saved.tensors[i]);
  }
  return all;
}

void Trainer::save_checkpoint(const std::string& path) {
  async_save_checkpoint(path);
  fabric_.wait_for_save();
}

void Trainer::async_save_checkpoint(const std::string& path, const std::function<void()>& then) {
  WEFT_CHECK(!parts_.empty() && is_save_point_,
             "save_checkpoint: call it in on_save_point or after fit(): elsewhere a step is under "
             "way, which could not go on exactly");
  const auto make_directories = [&] {
    if (io::Path(path).has_parent_path()) io::make_directories(io::Path(path).parent_path());
  };
  on_rank_0(make_directories, fabric_.world());
  call(&Callback::on_save_start, *this, *module_);
  try {
    save_states(path, then);
  } catch (...) {
    // A process alone may go on without the file; ranks need not have failed together.
    if (fabric_.size() == 1) call(&Callback::on_save_end, *this, *module_);
    throw;
  }
  call(&Callback::on_save_end, *this, *module_);
}

void Trainer::save_states(const std::string& path, const std::function<void()>& then) {
  Saved saved;
  const std::vector<NamedState> all = states(saved);
  saved.trainer = state_dict();
  saved.fp8 = fabric_.fp8().state_dict(parameters());
  for (size_t i = 0; i < options_.callbacks.size(); ++i) {
    Callback& callback = *options_.callbacks[i];
    if (callback.state_key().empty()) continue;
    saved.callbacks[i] = callback.state_dict();
    saved.tensors[i] = callback.tensors(*this, *module_);
  }
  fabric_.async_save(path, all, then);
}

void Trainer::load_checkpoint(const std::string& path) {
  Saved saved;
  try {
    const std::vector<std::string> names = fabric_.load(path, {});
    const std::set<std::string> there(names.begin(), names.end());
    WEFT_CHECK(there.contains(kTrainer), "it is no checkpoint of a Trainer");
    std::vector<NamedState> wanted = states(saved);
    // A callback that was not there when it was saved begins anew.
    std::erase_if(wanted, [&](const NamedState& state) {
      return state.name.find(':') != std::string::npos && !there.contains(state.name);
    });
    fabric_.load(path, {{kTrainer, &saved.trainer}});
    const auto optimizers = std::ranges::count_if(
        there, [](const std::string& name) { return name.starts_with("optimizer"); });
    WEFT_CHECK(optimizers == std::ssize(parts_),
               "it was saved with {} optimizers, the module has {}", optimizers, parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      const bool had_one = there.contains(numbered("schedule", i));
      WEFT_CHECK(had_one == parts_[i].scheduler.has_value(),
                 "it was saved {} a schedule of the learning rate, the module has {}",
                 had_one ? "with" : "without", parts_[i].scheduler ? "one" : "none");
    }
    fabric_.load(path, wanted);
    fabric_.fp8().load_state_dict(saved.fp8, parameters());
    load_state_dict(saved.trainer);
    for (const NamedState& state : wanted) {
      for (size_t i = 0; i < options_.callbacks.size(); ++i) {
        Callback& callback = *options_.callbacks[i];
        const std::string key = without_dots(callback.state_key());
        if (key.empty()) continue;
        if (state.name == "callback:" + key) callback.load_state_dict(saved.callbacks[i]);
        if (state.name == "tensors:" + key) {
          callback.load_tensors(*this, *module_, saved.tensors[i]);
        }
      }
    }
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("cannot continue from {}: malformed: {}", path, error.what());
  } catch (const Error& error) {
    WEFT_FAIL("cannot continue from {}: {}", path, error.what());
  }
}

}  // namespace weft::train
