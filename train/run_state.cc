#include "train/run_state.h"

#include <nlohmann/json.hpp>

namespace weft::train {

nlohmann::json to_json(const RunState& s) {
  return {{"progress",
           {{"step", s.step},
            {"epoch", s.epoch},
            {"batch", s.batch},
            {"loss_sum", s.statistics.loss_sum},
            {"correct", s.statistics.correct},
            {"images", s.statistics.images}}},
          {"last_epoch",
           {{"loss", s.last_epoch.loss},
            {"train_accuracy", s.last_epoch.train_accuracy},
            {"val_loss", s.last_epoch.validation.loss},
            {"val_accuracy", s.last_epoch.validation.accuracy}}}};
}

RunState run_state_from_json(const nlohmann::json& json) {
  RunState s;
  const nlohmann::json& p = json.at("progress");
  p.at("step").get_to(s.step);
  p.at("epoch").get_to(s.epoch);
  p.at("batch").get_to(s.batch);
  p.at("loss_sum").get_to(s.statistics.loss_sum);
  p.at("correct").get_to(s.statistics.correct);
  p.at("images").get_to(s.statistics.images);
  if (s.epoch > 0) {  // before, there are NaNs, which JSON lacks
    const nlohmann::json& last = json.at("last_epoch");
    last.at("loss").get_to(s.last_epoch.loss);
    last.at("train_accuracy").get_to(s.last_epoch.train_accuracy);
    last.at("val_loss").get_to(s.last_epoch.validation.loss);
    last.at("val_accuracy").get_to(s.last_epoch.validation.accuracy);
  }
  return s;
}

}  // namespace weft::train
