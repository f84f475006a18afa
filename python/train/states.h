// A dict of Python's as the named states of Fabric.save() and Fabric.load().
//
// Modules, optimizers, schedulers, scalers, loaders and tensors are those of C++; numbers, bools,
// texts and dicts of tensors become C++'s as well. Anything else is JSON under its name, with the
// tensors inside under its name and "#tensors". An object with state_dict() and load_state_dict()
// is what the first returns. Of a model that is filtered the tensors that stay are saved, as a
// dict.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "io/files.h"
#include "python/casters.h"
#include "train/fabric.h"

namespace weft::python {

class States {
 public:
  /// To be saved. A filter has by the key of a model, a dict, or an object whose state_dict() is
  /// one, a function(name, value) that says which items stay. Throws a TypeError naming the key and
  /// the type of what cannot be saved or filtered, a ValueError for a filter's key without a state.
  States(const nb::dict& state, const nb::dict& filter);
  /// To be filled from a file: what is no object of its own is asked for as the kind that is saved.
  /// Not strict: what the file lacks is left out, be it a state or a model's tensor.
  States(const nb::dict& state, const train::Fabric::StateKinds& kinds, const io::Path& path,
         bool strict);
  States(const States&) = delete;
  States& operator=(const States&) = delete;

  const std::vector<train::NamedState>& get() const { return states_; }
  /// After load(), which returned `left`: calls load_state_dict() of the objects that have one,
  /// puts the other values into the dict, and returns the names that were not asked for.
  std::vector<std::string> finish(std::vector<std::string> left);

 private:
  using Value =
      std::variant<int64_t, double, bool, std::string, nlohmann::json, NamedTensors, Tensor>;
  /// What load() fills that C++ has no object of.
  struct Asked {
    std::string name;
    nb::object owner;  // with a load_state_dict(), be it a model; none: the dict
    const Value* value = nullptr;
    const Value* tensors = nullptr;  // beside JSON
  };

  template <class T>
  const Value* keep(const std::string& name, T value);
  bool add_object(const std::string& name, nb::handle value);
  void add_value(const std::string& name, nb::handle value);
  void add_filtered(const std::string& name, nb::handle value, nb::handle stays);
  void ask(const std::string& name, nb::handle value, const std::string& kind);
  bool ask_some(const std::string& name, nb::handle model, const std::string& kind,
                const io::Path& path);

  nb::dict dict_;
  bool strict_ = true;
  std::vector<train::NamedState> states_;
  std::deque<Value> values_;  // states_ has their addresses
  std::vector<Asked> asked_;
  std::set<std::string> beside_;  // states in the file that are tensors of another, or read here
};

}  // namespace weft::python
