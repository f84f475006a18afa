// Optimizers by name.
//
//   const auto optimizer = optim::make_optimizer("sgd", model.named_parameters(),
//                                                {{"lr", 0.1}, {"momentum", 0.9}});
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace weft::optim {

/// `options` are for the groups that have none of their own. Throws Error listing the known names
/// when there is none of that name, and naming an option that the optimizer does not have.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, ParameterGroups groups,
                                          const Options& options = {});
std::vector<std::string> optimizer_names();
/// What an optimizer can be told, with its defaults.
Options optimizer_options(const std::string& name);
/// Tensors as large as a parameter that an optimizer with these options keeps for each.
int64_t state_tensors(const std::string& name, const Options& options = {});

// An optimizer with its defaults, each in its own source file.
#define WEFT_OPTIMIZER(name) std::unique_ptr<Optimizer> make_##name(const ParameterGroups& groups);
#include "optim/optimizers.inc"  // IWYU pragma: keep
#undef WEFT_OPTIMIZER

}  // namespace weft::optim
