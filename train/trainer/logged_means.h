// Means of what steps log, over batches and ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/fabric.h"
#include "train/trainer/training_module.h"

namespace weft::train {

/// Values add up on their device, so that nobody waits for it before a mean is asked for.
class LoggedMeans {
 public:
  /// Adds a value that counts `weight` times. Throws Error unless it is one number.
  void add(const std::string& name, const Tensor& value, double weight);
  /// The means over all that was added on any rank, in the order of the names; NaN where nothing
  /// counted. Every rank calls. Throws Error on all of them when their names differ, but for ranks
  /// that have added nothing: a pipeline's first stages.
  NamedValues means(const Fabric& fabric);
  void clear() { entries_.clear(); }

  /// What every rank has added: a row for each. Every rank calls, as for means().
  nlohmann::json state_dict(const Fabric& fabric);
  /// Takes up this rank's row of as many ranks.
  void load_state_dict(const nlohmann::json& state, int rank);

 private:
  struct Entry {
    std::string name;
    Tensor sum;  // f64 []
    double weight = 0;
  };

  std::vector<double> all_sums(const Fabric& fabric);
  void agree_on_names(const Fabric& fabric);

  std::vector<Entry> entries_;
};

}  // namespace weft::train
