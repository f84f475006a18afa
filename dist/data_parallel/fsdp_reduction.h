// How the gradients of FullySharded (dist/data_parallel/fsdp.h) leave: a unit's are summed over the
// ranks, each of which keeps the sum of its part; the optimizer finds it at the parameters' slices.
// Under no_sync they stay whole and add up until the next sum.
#pragma once

#include <vector>

#include "dist/data_parallel/fsdp_unit.h"

namespace weft::dist::fsdp {

class Reduction {
 public:
  /// `options` outlives it. Sums over the shard group run in `group`.
  Reduction(const FsdpOptions& options, CommunicatorPtr group)
      : options_(options), group_(std::move(group)) {}

  /// Sends the gradients at hand on their way. Two units' are at a time.
  void start(Unit& unit);
  /// Waits for all that are on their way.
  void complete_all();
  /// Collects the gradients at hand in unit.local.
  void collect(Unit& unit);
  /// Gives the slices their gradients.
  void hand_out(std::vector<Unit>& units);

  Communicator& group() const { return *group_; }
  int64_t bytes_now() const { return bytes_now_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = bytes_now_; }

 private:
  Tensor take_flat(Unit& unit);
  void complete(Unit& unit);

  const FsdpOptions& options_;
  const CommunicatorPtr group_;
  std::vector<Unit*> on_their_way_;
  int64_t bytes_now_ = 0, peak_bytes_ = 0;
};

/// Whether there are gradients that have not been sent.
bool has_gradients(const Unit& unit);

}  // namespace weft::dist::fsdp
