// How a run's parameters change, as its Config says: the optimizer over groups of them, and the
// schedule of its learning rate.
#pragma once

#include <memory>

#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/registry.h"
#include "optim/schedule.h"
#include "train/config.h"

namespace weft::train {

/// The options of config's optimizer; of the settings of a run it takes those that it has.
optim::Options optimizer_options(const Config& config);
/// config's optimizer over groups of the model's parameters: without weight decay of vectors and
/// embeddings, and with layer decay where it is asked for.
std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, nn::Module& model);
/// The factor on config.lr at each step of a run of so many; 0: nobody knows, and the schedule does
/// not go by them (see validate()).
optim::Schedule make_schedule(const Config& config, int64_t steps);

}  // namespace weft::train
