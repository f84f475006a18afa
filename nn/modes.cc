#include "nn/modes.h"

#include <algorithm>

namespace weft::nn {

Modes::Modes(Module& module) {
  for (const auto& [name, part] : module.named_modules()) {
    is_training_.emplace_back(name, part->is_training());
  }
}

void Modes::restore(Module& module) const {
  auto next = is_training_.begin();
  for (const auto& [name, part] : module.named_modules()) {
    const auto mode = std::find_if(next, is_training_.end(),
                                   [&at = name](const auto& known) { return known.first == at; });
    if (mode == is_training_.end()) continue;
    // It reaches the children as well, whose turn is later.
    if (part->is_training() != mode->second) part->train(mode->second);
    next = std::next(mode);
  }
}

}  // namespace weft::nn
