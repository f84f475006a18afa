// Which modules of a model train and which evaluate: layers may be frozen alone, as a batch norm
// with fixed statistics is.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace weft::nn {

/// The modes of a module and of all within it, by their names.
class Modes {
 public:
  explicit Modes(Module& module);
  /// Gives them to the module, or to a copy of it. A module that it did not have goes along with
  /// its parent, where that changes.
  void restore(Module& module) const;
  bool operator==(const Modes&) const = default;

 private:
  std::vector<std::pair<std::string, bool>> is_training_;  // a parent before its children
};

/// While it lives a module evaluates, and all within it.
class EvalScope {
 public:
  explicit EvalScope(Module& module) : module_(module), before_(module) { module.eval(); }
  ~EvalScope() { before_.restore(module_); }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  Module& module_;
  const Modes before_;
};

}  // namespace weft::nn
