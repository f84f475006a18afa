// What Fabric saves and loads.
//
// A file of named states is a safetensors file: a model's tensors under "<name>.<its name>", an
// optimizer's likewise, a tensor's under its name. The metadata "weft.state" is a JSON object with,
// for each name, {"kind": "model"} or what else there is to know: an optimizer's groups, a scalar's
// value.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "autograd/ops.h"
#include "core/transfer.h"
#include "io/safetensors.h"
#include "optim/optimizer_state.h"
#include "optim/schedule.h"
#include "train/exact_text.h"
#include "train/fabric.h"

namespace weft::train {
namespace {

constexpr const char* kState = "weft.state";

struct KindOf {
  const char* operator()(nn::Module*) const { return "model"; }
  const char* operator()(optim::Optimizer*) const { return "optimizer"; }
  const char* operator()(optim::Scheduler*) const { return "scheduler"; }
  const char* operator()(optim::GradScaler*) const { return "scaler"; }
  const char* operator()(data::Loader*) const { return "loader"; }
  const char* operator()(Tensor*) const { return "tensor"; }
  const char* operator()(NamedTensors*) const { return "tensors"; }
  const char* operator()(int64_t*) const { return "integer"; }
  const char* operator()(double*) const { return "number"; }
  const char* operator()(bool*) const { return "truth"; }
  const char* operator()(std::string*) const { return "text"; }
  const char* operator()(nlohmann::json*) const { return "json"; }
};

std::string kind_of(const NamedState& state) { return std::visit(KindOf(), state.value); }

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
  if (is_main()) io::write_safetensors(path, state, {{"format", "pt"}});
  barrier();
}

void Fabric::load(const std::string& path) {
  const Model& model = only_model("load");
  model.strategy->load_model_state(*model.module, io::read_safetensors(path).tensors);
}

/// The strategy that knows the whole of an optimizer's state; null: the optimizer does itself.
dist::Strategy* Fabric::strategy_of(const optim::Optimizer& optimizer) {
  forget_the_dead();
  const auto entry = std::ranges::find_if(
      optimizers_, [&](const auto& known) { return known->optimizer == &optimizer; });
  if (entry == optimizers_.end()) return nullptr;
  const std::vector<Model*>& models = (*entry)->models;
  if (models.size() == 1) return models[0]->strategy.get();
  WEFT_CHECK(!world_,
             "fabric: the state of an optimizer of {} models cannot be put together from several "
             "ranks; use an optimizer for each",
             models.size());
  return nullptr;
}

dist::Strategy* Fabric::strategy_of(const nn::Module& module) {
  forget_the_dead();
  for (const auto& model : models_) {
    if (model->module == &module) return model->strategy.get();
  }
  return nullptr;
}

void Fabric::save(const std::string& path, const std::vector<NamedState>& states) {
  check_names("save", states);
  NamedTensors tensors;
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
          dist::Strategy* const strategy = strategy_of(*model);
          add(strategy ? strategy->model_state(*model) : model->state_dict());
        },
        [&](optim::Optimizer* optimizer) {
          dist::Strategy* const strategy = strategy_of(*optimizer);
          const optim::OptimizerState all =
              strategy ? strategy->optimizer_state(*optimizer) : optimizer->state_dict();
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
  if (is_main()) {
    io::write_safetensors(path, tensors, {{"format", "pt"}, {kState, description.dump()}});
  }
  barrier();
}

std::vector<std::string> Fabric::load(const std::string& path,
                                      const std::vector<NamedState>& states) {
  check_names("load", states);
  const io::SafeTensors file = io::read_safetensors(path);
  const auto text = file.metadata.find(kState);
  WEFT_CHECK(text != file.metadata.end(),
             "{}: holds no named states; fabric.load(path) reads a file of a model alone", path);
  nlohmann::json description;
  // Everything that is not a tensor is looked at before anything changes.
  std::vector<std::function<void()>> changes;
  std::set<std::string> asked;
  try {
    description = nlohmann::json::parse(text->second);
    for (const NamedState& state : states) {
      asked.insert(state.name);
      WEFT_CHECK(description.contains(state.name), "{}: holds no state \"{}\"", path, state.name);
      const nlohmann::json entry = description.at(state.name);
      const std::string kind = entry.at("kind");
      WEFT_CHECK(kind == kind_of(state), "{}: the state \"{}\" is of kind {}, expected {}", path,
                 state.name, kind, kind_of(state));
      NamedTensors tensors;
      const std::string prefix = state.name + ".";
      for (const auto& [name, tensor] : file.tensors) {
        if (name == state.name) tensors.emplace_back(name, tensor);
        if (name.starts_with(prefix)) tensors.emplace_back(name.substr(prefix.size()), tensor);
      }
      const auto value = [&entry] { return entry.at("value"); };
      using Change = std::function<void()>;
      const Overloaded visitor{
          [&](nn::Module* model) -> Change {
            return [this, model, tensors] {
              dist::Strategy* const strategy = strategy_of(*model);
              if (!strategy) model->load_state_dict(tensors);
              if (strategy) strategy->load_model_state(*model, tensors);
            };
          },
          [&](optim::Optimizer* optimizer) -> Change {
            return [this, optimizer, saved = optim::OptimizerState{tensors, entry.at("groups")}] {
              dist::Strategy* const strategy = strategy_of(*optimizer);
              if (!strategy) optimizer->load_state_dict(saved);
              if (strategy) strategy->load_optimizer_state(*optimizer, saved);
            };
          },
          [&](Tensor* x) -> Change {
            WEFT_CHECK(tensors.size() == 1 && tensors[0].second.shape() == x->shape(),
                       "{}: \"{}\" is {}, expected shape {}", path, state.name,
                       tensors.empty() ? "missing" : fmt::format("{}", tensors[0].second),
                       x->shape());
            return [x, from = tensors[0].second] {
              const NoGrad guard;
              ops::copy_(*x, ops::to(from, x->device()));
            };
          },
          [&](NamedTensors* some) -> Change { return [some, tensors] { *some = tensors; }; },
          [&](optim::Scheduler* scheduler) -> Change {
            return [scheduler, saved = value()] { scheduler->load_state_dict(saved); };
          },
          [&](optim::GradScaler* scaler) -> Change {
            return [scaler, saved = value()] { scaler->load_state_dict(saved); };
          },
          [&](data::Loader* loader) -> Change {
            const auto [epoch, batch] = value().get<std::pair<int64_t, int64_t>>();
            return [loader, at = data::LoaderPosition{epoch, batch}] { loader->seek(at); };
          },
          [&](double* x) -> Change { return [x, saved = exact_number(value())] { *x = saved; }; },
          [&]<class T>(T* x) -> Change {
            return [x, saved = value().template get<T>()] { *x = saved; };
          },
      };
      changes.push_back(std::visit(visitor, state.value));
    }
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: malformed states: {}", path, error.what());
  }
  for (const auto& change : changes) change();
  std::vector<std::string> left;
  for (const auto& [name, entry] : description.items()) {
    if (!asked.contains(name)) left.push_back(name);
  }
  return left;
}

}  // namespace weft::train
