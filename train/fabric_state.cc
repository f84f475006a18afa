// What Fabric saves and loads.
//
// A file of named states is a safetensors file: a model's tensors under "<name>.<its name>", an
// optimizer's likewise, a tensor's under its name. The metadata "weft.state" is a JSON object with,
// for each name, {"kind": "model"} or what else there is to know: an optimizer's groups, a scalar's
// value. A sharded state has the same tensors and metadata, spread over files.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/ops.h"
#include "core/scoped_value.h"
#include "core/transfer.h"
#include "dist/strategy/strategy_kind.h"
#include "io/checked_json.h"
#include "io/json_field.h"
#include "io/safetensors.h"
#include "optim/optimizer_state.h"
#include "optim/schedule.h"
#include "train/exact_text.h"
#include "train/fabric.h"
#include "train/sharded_state.h"

namespace weft::train {
namespace {

constexpr const char* kState = "weft.state";

/// Of NamedState::Value, in its order.
constexpr const char* kKinds[] = {"model",   "optimizer", "scheduler", "scaler", "loader", "tensor",
                                  "tensors", "integer",   "number",    "truth",  "text",   "json"};
static_assert(std::size(kKinds) == std::variant_size_v<NamedState::Value>);

std::string kind_of(const NamedState& state) { return kKinds[state.value.index()]; }

void check_names(const char* function, const std::vector<NamedState>& states) {
  std::set<std::string> names;
  for (const auto& [name, value] : states) {
    WEFT_CHECK(!name.empty() && name.find('.') == std::string::npos,
               "fabric.{}: a state's name must not be empty or have dots, got \"{}\"", function,
               name);
    WEFT_CHECK(names.insert(name).second, "fabric.{}: two states are called \"{}\"", function,
               name);
    const bool is_null = std::visit([](const auto* pointer) { return pointer == nullptr; }, value);
    WEFT_CHECK(!is_null, "fabric.{}: the state \"{}\" is null", function, name);
  }
}

nlohmann::json parse_description(const std::string& text, const std::string& path) {
  return io::parse_foreign_json(text, path + ": " + kState);
}

/// Of states that are malformed none: who asks for them is told what is wrong.
Fabric::StateKinds kinds_in(const nlohmann::json& description) {
  Fabric::StateKinds kinds;
  if (!description.is_object()) return kinds;
  for (const auto& [name, entry] : description.items()) {
    if (!entry.is_object() || !entry.contains("kind")) continue;
    if (const auto* const kind = entry["kind"].get_ptr<const std::string*>()) kinds[name] = *kind;
  }
  return kinds;
}

/// Of what was not set up, which is rank 0's to write.
dist::LocalTensors whole_tensors(const NamedTensors& tensors, bool is_main) {
  dist::LocalTensors all;
  for (const auto& [name, tensor] : tensors) {
    all.push_back({name, tensor, {.whole = tensor.shape(), .copies = is_main ? 1 : 0}});
  }
  return all;
}

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

void Fabric::save(const std::string& path) {
  const Model& model = only_model("save");
  NamedTensors state = model.strategy->model_state(*model.module);
  for (auto& [name, tensor] : state) tensor = to_device(tensor, Device{});
  on_rank_0([&] { io::write_safetensors(path, state, {{"format", "pt"}}); }, world_);
}

void Fabric::load(const std::string& path) {
  load_state(only_model("load"), io::read_safetensors(path).tensors);
}

/// Each rank keeps its part of the whole model's state.
void Fabric::load_state(Model& model, const NamedTensors& state) {
  const ScopedValue is_loading(model.is_loading, true);
  model.strategy->load_model_state(*model.module, state);
}

/// The whole state on every rank, on the CPU. Rank 0 has it, or gets it, and sends it on.
NamedTensors Fabric::state_everywhere(const Model& model) const {
  const NoGrad guard;
  NamedTensors state = model.strategy->model_state(*model.module);
  nlohmann::json list = nlohmann::json::array();
  for (auto& [name, tensor] : state) {
    tensor = ops::contiguous(to_device(detach(tensor), Device{}));
    list.push_back({name, static_cast<int>(tensor.dtype()),
                    std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())});
  }
  if (!world_) return state;
  list = nlohmann::json::parse(broadcast_text(list.dump(), world_));
  if (!is_main()) {
    state.clear();
    for (const nlohmann::json& entry : list) {
      state.emplace_back(entry[0].get<std::string>(),
                         Tensor::empty(Shape(entry[2].get<std::vector<int64_t>>()),
                                       static_cast<DType>(entry[1].get<int>())));
    }
  }
  for (const auto& [name, tensor] : state) world_->broadcast(tensor).wait();
  return state;
}

/// The only model of an optimizer that was set up, whose strategy knows its state; null: the
/// optimizer has all of it.
Fabric::Model* Fabric::model_of(const optim::Optimizer& optimizer) {
  forget_the_dead();
  const auto entry = std::ranges::find_if(
      optimizers_, [&](const auto& known) { return known->optimizer == &optimizer; });
  if (entry == optimizers_.end()) return nullptr;
  const std::vector<Model*>& models = (*entry)->models;
  if (models.size() == 1) return models[0];
  WEFT_CHECK(!world_,
             "fabric: the state of an optimizer of {} models cannot be put together from several "
             "ranks; use an optimizer for each",
             models.size());
  return nullptr;
}

Fabric::Model* Fabric::model_of(const nn::Module& module) {
  forget_the_dead();
  for (const auto& model : models_) {
    if (model->module == &module) return model.get();
  }
  return nullptr;
}

NamedTensors Fabric::whole_state(nn::Module& module) {
  const Model* const model = model_of(module);
  return model ? model->strategy->model_state(module) : module.state_dict();
}

optim::OptimizerState Fabric::whole_state(const optim::Optimizer& optimizer) {
  const Model* const model = model_of(optimizer);
  return model ? model->strategy->optimizer_state(optimizer) : optimizer.state_dict();
}

dist::LocalTensors Fabric::local_state(nn::Module& module) {
  if (const Model* const model = model_of(module)) return model->strategy->local_state(module);
  return whole_tensors(module.state_dict(), is_main());
}

dist::LocalTensors Fabric::local_state(const optim::Optimizer& optimizer) {
  const NamedTensors tensors = optimizer.state_dict().tensors;
  if (const Model* const model = model_of(optimizer)) {
    return optimizer_tensors(tensors, model->strategy->local_state(*model->module));
  }
  return whole_tensors(tensors, is_main());
}

void Fabric::wait_for_save() {
  if (!save_) return;
  const std::unique_ptr<PendingSave> save = std::move(save_);
  save->wait();
}

void Fabric::drop_save() { save_.reset(); }

void Fabric::poll_save() {
  if (!save_) return;
  std::unique_ptr<PendingSave> save = std::move(save_);
  if (!save->poll()) save_ = std::move(save);
}

void Fabric::async_save(const std::string& path, const std::vector<NamedState>& states,
                        const std::function<void()>& then) {
  check_names("save", states);
  wait_for_save();
  forget_the_dead();  // a loss scale that moves yet is saved as it is then
  const bool is_sharded = options_.state_dict_type == "sharded";
  NamedTensors tensors;  // whole ones
  SliceCopies slices;    // of this rank
  nlohmann::json description = nlohmann::json::object();
  for (const NamedState& state : states) {
    nlohmann::json& entry = description[state.name];
    entry["kind"] = kind_of(state);
    const auto add = [&](const NamedTensors& more) {
      for (const auto& [name, tensor] : more) {
        tensors.emplace_back(state.name + "." + name, to_device(detach(tensor), Device{}));
      }
    };
    const auto keep = [&entry](const auto& value) { entry["value"] = value; };
    const Overloaded visitor{
        [&](nn::Module* model) {
          if (is_sharded) return slices.add(state.name, local_state(*model));
          add(whole_state(*model));
        },
        [&](optim::Optimizer* optimizer) {
          if (is_sharded) {
            entry["groups"] = optimizer->state_dict().groups;
            return slices.add(state.name, local_state(*optimizer));
          }
          const optim::OptimizerState all = whole_state(*optimizer);
          entry["groups"] = all.groups;
          add(all.tensors);
        },
        [&](Tensor* x) { tensors.emplace_back(state.name, to_device(detach(*x), Device{})); },
        [&](NamedTensors* some) { add(*some); },
        [&](optim::Scheduler* scheduler) { keep(scheduler->state_dict()); },
        [&](optim::GradScaler* scaler) { keep(scaler->state_dict()); },
        [&](data::Loader* loader) {
          keep(std::pair(loader->position().epoch, loader->position().batch));
        },
        [&](double* value) { keep(exact_text(*value)); },
        [&](const auto* value) { keep(*value); },
    };
    std::visit(visitor, state.value);
  }
  const io::Metadata metadata = {{"format", "pt"}, {kState, description.dump()}};
  parse_description(metadata.at(kState), path);  // what load() would refuse is not written
  if (is_sharded) {
    if (is_main()) slices.add(tensors);
    return start_save(path, slices.take(), metadata, then);
  }
  const auto write = [&] {
    io::write_safetensors(path, tensors, metadata);
    if (then) then();
  };
  on_rank_0(write, world_);
}

/// Makes the directory, and has this rank's slices written to it.
void Fabric::start_save(const std::string& path, std::vector<io::Slice> slices,
                        const io::Metadata& metadata, const std::function<void()>& then) {
  nlohmann::json place;
  if (is_main()) {
    try {
      io::make_directory(path);
      place = {{"directory", path}, {"generation", io::next_generation(path)}};
    } catch (const Error& error) {
      place = {{"failure", error.what()}};
    }
  }
  place = nlohmann::json::parse(broadcast_text(place.dump(), world_));
  WEFT_CHECK(!place.contains("failure"), "{}", place["failure"].get<std::string>());
  const io::Path directory = place.at("directory").get<std::string>();
  const io::Path file = directory / io::shard_name(rank(), size(), place.at("generation"));
  const auto mine = std::make_shared<std::vector<io::Slice>>(std::move(slices));
  const std::string strategy = dist::strategy_of(options_.strategy, devices_).name;
  save_ = std::make_unique<PendingSave>(
      world_, directory.string(),
      [file, mine] {
        nlohmann::json shard = io::write_shard(file, *mine);
        mine->clear();
        return shard;
      },
      [directory, strategy, metadata, then](const std::vector<nlohmann::json>& shards) {
        io::write_shard_index(directory, {shards, strategy, metadata});
        if (then) then();
      });
}

/// What load() reads from: a file, or the shards of a directory.
struct Fabric::SavedState {
  explicit SavedState(const std::string& path) {
    if (io::is_sharded_state(path)) {
      reader = std::make_shared<io::ShardedReader>(path);
      metadata = reader->index().metadata;
    } else {
      io::SafeTensors file = io::read_safetensors(path);
      whole = std::move(file.tensors);
      metadata = std::move(file.metadata);
    }
  }
  /// All of a state's tensors, by their own names.
  NamedTensors tensors_of(const std::string& state) const {
    NamedTensors tensors;
    const std::string prefix = state + ".";
    const auto add = [&](const std::string& name, const auto& make) {
      if (name == state) tensors.emplace_back(name, make());
      if (name.starts_with(prefix)) tensors.emplace_back(name.substr(prefix.size()), make());
    };
    for (const auto& [name, tensor] : whole) {
      add(name, [&tensor = tensor] { return tensor; });
    }
    if (!reader) return tensors;
    for (const auto& [name, entry] : reader->index().tensors) {
      add(name, [&, &name = name] { return reader->read(name); });
    }
    return tensors;
  }

  std::shared_ptr<io::ShardedReader> reader;  // of shards
  NamedTensors whole;                         // of a file
  io::Metadata metadata;
};

void Fabric::load_model(const SavedState& from, const std::string& name, nn::Module& module) {
  Model* const model = model_of(module);
  if (!from.reader) {
    const NamedTensors state = from.tensors_of(name);
    if (!model) module.load_state_dict(state);
    if (model) load_state(*model, state);
    return;
  }
  // A part of a model that is shared out, whose tensors would be copies, refuses whatever comes.
  if (!model) module.load_state_dict({}, {.strict = false});
  std::set<std::string> wanted;
  for (const auto& [entry, tensor] : module.unrouted_state()) wanted.insert(name + "." + entry);
  for (const auto& [entry, place] : from.reader->index().tensors) {
    WEFT_CHECK(!entry.starts_with(name + ".") || wanted.contains(entry),
               "{}: tensor \"{}\" is none of the model's", from.reader->directory().string(),
               entry);
  }
  read_into(*from.reader, name, local_state(module));
  if (model) model->strategy->after_step();
}

void Fabric::load_optimizer(const SavedState& from, const std::string& name,
                            optim::Optimizer& optimizer, const nlohmann::json& groups) {
  Model* const model = model_of(optimizer);
  if (model && from.reader) {
    optimizer.load_state_dict(
        {read_optimizer(*from.reader, name, model->strategy->local_state(*model->module)), groups});
    return;
  }
  const optim::OptimizerState state = {from.tensors_of(name), groups};
  if (!model) optimizer.load_state_dict(state);
  if (model) model->strategy->load_optimizer_state(optimizer, state);
}

std::vector<std::string> Fabric::load(const std::string& path,
                                      const std::vector<NamedState>& states) {
  return load_by_kinds(path, [&](const StateKinds&) { return states; });
}

std::vector<std::string> Fabric::load_by_kinds(
    const std::string& path, const std::function<std::vector<NamedState>(const StateKinds&)>& ask) {
  wait_for_save();
  forget_the_dead();  // lest a loss scale that is loaded moves for what was before
  const SavedState file(path);
  const auto text = file.metadata.find(kState);
  WEFT_CHECK(text != file.metadata.end(),
             "{}: holds no named states; fabric.load(path) reads a file of a model alone", path);
  const nlohmann::json description = parse_description(text->second, path);
  const std::vector<NamedState> states = ask(kinds_in(description));
  check_names("load", states);
  // Everything that is not a tensor is looked at before anything changes.
  std::vector<std::function<void()>> changes;
  std::set<std::string> asked;
  try {
    for (const NamedState& state : states) {
      asked.insert(state.name);
      WEFT_CHECK(description.contains(state.name), "holds no state \"{}\"", state.name);
      const nlohmann::json& entry = io::object_field(description, state.name);
      const auto kind = io::field<std::string>(entry, "kind");
      WEFT_CHECK(kind == kind_of(state), "the state \"{}\" is of kind {}, expected {}", state.name,
                 kind, kind_of(state));
      const auto value = [&]<class T = nlohmann::json>(std::type_identity<T> = {}) {
        return io::value_of<T>(io::field(entry, "value"), state.name);
      };
      using Change = std::function<void()>;
      const Overloaded visitor{
          [&](nn::Module* model) -> Change {
            return [this, &file, &state, model] { load_model(file, state.name, *model); };
          },
          [&](optim::Optimizer* optimizer) -> Change {
            return [this, &file, &state, optimizer, groups = io::object_field(entry, "groups")] {
              load_optimizer(file, state.name, *optimizer, groups);
            };
          },
          [&](Tensor* x) -> Change {
            const NamedTensors tensors = file.tensors_of(state.name);
            WEFT_CHECK(tensors.size() == 1 && tensors[0].second.shape() == x->shape(),
                       "\"{}\" is {}, expected shape {}", state.name,
                       tensors.empty() ? "missing" : fmt::format("{}", tensors[0].second),
                       x->shape());
            return [x, from = tensors[0].second] {
              const NoGrad guard;
              ops::copy_(*x, ops::to(from, x->device()));
            };
          },
          [&](NamedTensors* some) -> Change {
            return [some, tensors = file.tensors_of(state.name)] { *some = tensors; };
          },
          [&](optim::Scheduler* scheduler) -> Change {
            return [scheduler, saved = value()] { scheduler->load_state_dict(saved); };
          },
          [&](optim::GradScaler* scaler) -> Change {
            // Of a precision without a loss scale: this one's stays where it is.
            const nlohmann::json saved = value();
            if (saved == nlohmann::json::object()) return [] {};
            return [scaler, saved] { scaler->load_state_dict(saved); };
          },
          [&](data::Loader* loader) -> Change {
            using Place = std::pair<int64_t, int64_t>;
            const auto [epoch, batch] = value(std::type_identity<Place>());
            return [loader, at = data::LoaderPosition{epoch, batch}] { loader->seek(at); };
          },
          [&](double* x) -> Change {
            const auto exact = value(std::type_identity<std::string>());
            return [x, saved = exact_number(exact)] { *x = saved; };
          },
          [&]<class T>(T* x) -> Change {
            return [x, saved = value(std::type_identity<T>())] { *x = saved; };
          },
      };
      changes.push_back(std::visit(visitor, state.value));
    }
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: malformed states: {}", path, error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", path, error.what());
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    try {
      changes[i]();
    } catch (const nlohmann::json::exception& error) {
      WEFT_FAIL("{}: the state \"{}\" is malformed: {}", path, states[i].name, error.what());
    } catch (const Error& error) {
      WEFT_FAIL("{}: the state \"{}\": {}", path, states[i].name, error.what());
    }
  }
  std::vector<std::string> left;
  for (const auto& [name, entry] : description.items()) {
    if (!asked.contains(name)) left.push_back(name);
  }
  return left;
}

}  // namespace weft::train
