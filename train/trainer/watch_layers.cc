#include "train/trainer/watch_layers.h"

#include "dist/strategy/strategy_kind.h"
#include "train/trainer/trainer.h"

namespace weft::train {

WatchLayers::WatchLayers(int64_t every_n_steps) : every_n_steps_(every_n_steps) {
  WEFT_CHECK(every_n_steps > 0, "WatchLayers: expected a positive number of steps, got {}",
             every_n_steps);
}

void WatchLayers::on_fit_start(Trainer& trainer, TrainingModule& module) {
  WEFT_CHECK(module.automatic_optimization,
             "WatchLayers: not where automatic_optimization is false: the gradients of a step are "
             "seen by training_step() alone");
  const Fabric& fabric = trainer.fabric();
  const dist::StrategyKind& kind = dist::strategy_of(fabric.options().strategy, fabric.size());
  const bool is_split = kind.devices == dist::StrategyKind::Devices::kRanks &&
                        !contains(kind.settings, dist::Settings::kBuckets);
  WEFT_CHECK(!is_split,
             "WatchLayers: not with {}, of which no rank has whole gradients; it goes "
             "with single, dp and ddp",
             kind.name);
}

void WatchLayers::on_before_optimizer_step(Trainer& trainer, TrainingModule& module,
                                           optim::Optimizer& optimizer) {
  layers_.clear();
  if ((trainer.global_step() + 1) % every_n_steps_ != 0) return;
  Fabric& fabric = trainer.fabric();
  if (!fabric.is_main()) return;
  layers_ = watch_layers(module.model(), optimizer.parameters(),
                         find_precision(fabric.options().precision), fabric.scaler().get_scale());
  trainer.log_figures(named_figures(layers_));
}

}  // namespace weft::train
