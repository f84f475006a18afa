// What strategies of dist/ have to know of the models here.
#pragma once

#include <functional>
#include <memory>

#include "dist/strategy.h"
#include "nn/module.h"

namespace weft::models {

/// Units: transformer and residual blocks; MLPs: those of the transformer blocks; tokens: those of
/// the encoder; head: the last linear layer; segments: the model's own. `replica` makes another
/// model of the same architecture; null where none is needed.
dist::ModelStructure structure_of(nn::Module& model,
                                  std::function<std::unique_ptr<nn::Module>()> replica = {});

}  // namespace weft::models
