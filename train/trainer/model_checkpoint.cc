#include "train/trainer/model_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/json_field.h"
#include "train/exact_text.h"
#include "train/sharded_state.h"
#include "train/trainer/trainer.h"

namespace weft::train {
namespace {

constexpr const char* kName = "ModelCheckpoint";

/// Of a file; a sharded state is a directory.
const char* suffix_of(const Trainer& trainer) {
  return trainer.fabric().options().state_dict_type == "full" ? ".safetensors" : "";
}

/// "epoch=3-step=1200" of "{epoch}-{step}"; nothing before a metric's first value.
std::optional<std::string> file_name(const std::string& pattern, const Trainer& trainer) {
  std::string text;
  for (size_t at = 0; at < pattern.size();) {
    const size_t open = pattern.find('{', at), close = pattern.find('}', open);
    if (open == pattern.npos || close == pattern.npos) return text + pattern.substr(at);
    text += pattern.substr(at, open - at);
    at = close + 1;
    const std::string field = pattern.substr(open + 1, close - open - 1);
    const std::string name = field.substr(0, field.find(':'));
    if (name == "epoch" || name == "step") {
      text += fmt::format("{}={}", name, name == "epoch" ? trainer.epoch() : trainer.global_step());
      continue;
    }
    const std::string format = name == field ? "" : field.substr(name.size());
    const std::optional<double> value = trainer.metric_so_far(name, "filename");
    if (!value) return std::nullopt;
    text += name + "=" + fmt::format(fmt::runtime("{" + format + "}"), *value);
  }
  return text;
}

/// Those of a fit.
std::vector<ModelCheckpoint*> all_of(const Trainer& trainer) {
  std::vector<ModelCheckpoint*> all;
  for (const auto& callback : trainer.options().callbacks) {
    auto* const one = dynamic_cast<ModelCheckpoint*>(callback.get());
    if (one) all.push_back(one);
  }
  return all;
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options)
    : options_(std::move(options)),
      kept_(options_.save_top_k, options_.monitor.empty() ? Mode::kMax : options_.mode) {
  WEFT_CHECK(options_.save_top_k >= -1,
             "save_top_k: expected a number of states, or -1 for all, got {}", options_.save_top_k);
  WEFT_CHECK(!options_.monitor.empty() || options_.save_top_k <= 1,
             "save_top_k: {} states without a monitor, which says which are best; use 1, or -1 for "
             "all",
             options_.save_top_k);
  WEFT_CHECK(options_.every_n_train_steps >= 0,
             "every_n_train_steps: expected a number of steps, or 0, got {}",
             options_.every_n_train_steps);
  const auto& interval = options_.train_time_interval;
  WEFT_CHECK(!interval || interval->count() > 0,
             "train_time_interval: expected a positive duration, got {} s", interval->count());
  WEFT_CHECK(!options_.filename.empty() && options_.filename.find('/') == std::string::npos,
             "filename: expected a name without directories, got \"{}\"", options_.filename);
}

std::string ModelCheckpoint::best_model_path() const {
  return kept_.entries().empty() ? "" : kept_.entries().front().what.string();
}

double ModelCheckpoint::best_model_score() const {
  const bool has_one = !kept_.entries().empty() && !options_.monitor.empty();
  return has_one ? kept_.entries().front().score : NAN;
}

std::vector<std::string> ModelCheckpoint::kept() const {
  std::vector<std::string> paths;
  for (const auto& [path, score] : kept_.entries()) paths.push_back(path.string());
  return paths;
}

void ModelCheckpoint::on_fit_start(Trainer& trainer, TrainingModule&) {
  const std::string& output = trainer.options().directory;
  WEFT_CHECK(!options_.dirpath.empty() || !output.empty(),
             "ModelCheckpoint: give its dirpath, or the Trainer's directory");
  directory_ =
      options_.dirpath.empty() ? io::Path(output) / "checkpoints" : io::Path(options_.dirpath);
  continues_here_ = false;
  decided_at_ = -1;
  if (!trainer.fabric().is_main()) return;
  io::make_directories(directory_);
  io::FileWriter(directory_ / ".writable");  // its destructor removes it
}

bool ModelCheckpoint::is_due(const Trainer& trainer) const {
  const bool by_steps = options_.every_n_train_steps > 0;
  const auto& interval = options_.train_time_interval;
  if (!by_steps && !interval) {
    return trainer.has_validation() ? trainer.has_validated() : trainer.has_ended_epoch();
  }
  return (by_steps && trainer.global_step() % options_.every_n_train_steps == 0) ||
         (interval && trainer.seconds() - saved_at_ >= interval->count());
}

/// Each state that is saved has what all ModelCheckpoints come to at this save point. What they
/// rank comes before what is "last" to them, which names it; and what those of the save point
/// before name stays until all of this one are there.
void ModelCheckpoint::on_save_point(Trainer& trainer, TrainingModule&) {
  std::vector<ModelCheckpoint*> all = all_of(trainer);
  // A callback of the program's own may hand the call on.
  if (std::ranges::find(all, this) == all.end()) all.push_back(this);
  for (ModelCheckpoint* one : all) one->decide(trainer);
  std::vector<io::Path> paths, dropped;
  for (ModelCheckpoint* one : all) {
    if (!one->ranked_) continue;
    paths.push_back(*std::exchange(one->ranked_, std::nullopt));
    if (one->dropped_) dropped.push_back(*one->dropped_);
  }
  for (ModelCheckpoint* one : all) {
    if (std::exchange(one->saves_last_, false)) paths.push_back(one->last_);
  }
  const auto remove_dropped = [dropped] {
    for (const io::Path& path : dropped) io::remove_tree(path);
  };
  for (const io::Path& path : paths) {
    const bool is_final = &path == &paths.back();
    trainer.async_save_checkpoint(path.string(),
                                  is_final ? remove_dropped : std::function<void()>());
  }
}

/// Once at a save point: what is to be saved at it.
void ModelCheckpoint::decide(Trainer& trainer) {
  if (std::exchange(decided_at_, trainer.global_step()) == trainer.global_step()) return;
  ranked_.reset();
  const bool due = is_due(trainer);
  if (due) {
    saved_at_ = trainer.seconds();
    if (options_.save_top_k != 0) rank(trainer);
  }
  // Work that a signal ends is saved in any case.
  saves_last_ = (options_.save_last && (due || trainer.is_stopping())) || trainer.was_interrupted();
  if (saves_last_) last_ = path_of_last(trainer);
}

bool ModelCheckpoint::has(const io::Path& path) const {
  const auto& kept = kept_.entries();
  return path == last_ || std::ranges::find(kept, path, &TopK<io::Path>::Entry::what) != kept.end();
}

/// The first of "NAME", "NAME-v1", ... that is not taken.
io::Path ModelCheckpoint::free_path(const Trainer& trainer, const std::string& name,
                                    const std::function<bool(const io::Path&)>& is_taken) const {
  for (int version = 0;; ++version) {
    const std::string suffix = version == 0 ? "" : fmt::format("-v{}", version);
    const io::Path path = directory_ / (name + suffix + suffix_of(trainer));
    if (!is_taken(path)) return path;
  }
}

/// Rank 0 looks at the disk, whose word all ranks take. What a fit that goes on finds there and
/// nobody keeps is what it had saved after the state from which it goes on: it is replaced.
io::Path ModelCheckpoint::ranked_path(Trainer& trainer, const std::string& name) const {
  trainer.fabric().wait_for_save();  // which may remove one
  std::string path;
  if (trainer.fabric().is_main()) {
    path = free_path(trainer, name, [&](const io::Path& candidate) {
      const auto has_it = [&](const ModelCheckpoint* one) { return one->has(candidate); };
      std::error_code unreadable;
      return std::ranges::any_of(all_of(trainer), has_it) ||
             (!continues_here_ && std::filesystem::exists(candidate, unreadable));
    });
  }
  return broadcast_text(path, trainer.fabric().world());
}

/// What ranks know without asking.
io::Path ModelCheckpoint::path_of_last(const Trainer& trainer) const {
  return free_path(trainer, "last", [&](const io::Path& candidate) {
    return std::ranges::any_of(all_of(trainer), [&](const ModelCheckpoint* one) {
      return one != this && one->has(candidate);
    });
  });
}

void ModelCheckpoint::rank(Trainer& trainer) {
  const std::optional<double> found = options_.monitor.empty()
                                          ? static_cast<double>(trainer.global_step())
                                          : trainer.metric_so_far(options_.monitor, kName);
  const std::optional<std::string> name = file_name(options_.filename, trainer);
  if (!found || !name) return;
  if (!kept_.takes(*found)) return;
  ranked_ = ranked_path(trainer, *name);
  dropped_ = kept_.add(*ranked_, *found);
}

std::string ModelCheckpoint::state_key() const {
  const auto& interval = options_.train_time_interval;
  std::string rest;  // what has its default goes without saying
  if (options_.mode == Mode::kMax) rest += ", max";
  if (options_.save_top_k != 1) rest += fmt::format(", top {}", options_.save_top_k);
  if (!options_.dirpath.empty()) rest += ", in " + options_.dirpath;
  return fmt::format("{}({}, {}, {}, {}{})", kName, options_.filename, options_.monitor,
                     options_.every_n_train_steps, interval ? interval->count() : 0, rest);
}

nlohmann::json ModelCheckpoint::state_dict() const {
  nlohmann::json kept = nlohmann::json::array();
  for (const auto& [path, score] : kept_.entries()) {
    kept.push_back({path.string(), exact_text(score)});
  }
  return {{"kept", kept},
          {"last", last_.string()},
          {"dirpath", directory_.string()},
          {"saved_at", saved_at_}};
}

void ModelCheckpoint::load_state_dict(const nlohmann::json& state) {
  std::vector<TopK<io::Path>::Entry> kept;
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  for (const auto& [path, score] : io::field<Pairs>(state, "kept")) {
    kept.push_back({path, exact_number(score)});
  }
  kept_.set_entries(std::move(kept));
  last_ = io::field<std::string>(state, "last");
  // Older states do not say.
  continues_here_ =
      state.contains("dirpath") && io::field<std::string>(state, "dirpath") == directory_.string();
  io::read_field(state, "saved_at", saved_at_);
}

}  // namespace weft::train
