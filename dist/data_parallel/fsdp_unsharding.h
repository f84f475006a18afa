// How the parameters of FullySharded (dist/data_parallel/fsdp.h) come and go.
//
// The memory of a unit asks for its content when it is touched. The unit is then unsharded,
// gathered of the ranks' parts, and the one that followed it in the last iteration is fetched
// ahead. Units that were unsharded first are resharded: their memory is given back.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "dist/data_parallel/fsdp_unit.h"

namespace weft::dist::fsdp {

class Unsharding {
 public:
  /// `units` and `options` belong to the caller and outlive it. Collectives run in `group`.
  Unsharding(std::vector<Unit>& units, const FsdpOptions& options, CommunicatorPtr group)
      : units_(units), options_(options), group_(std::move(group)) {}

  /// Memory for the whole of a unit, which is unsharded when it is touched. Throws Error then, once
  /// this Unsharding is gone.
  std::shared_ptr<Storage> memory_for(const Unit& unit);

  void unshard(Unit& unit);
  /// All of them, up to date where they are: ZeRO-1's and -2's.
  void unshard_all();
  void reshard(Unit& unit);
  /// Reshards all, and remembers the order in which they came.
  void end_iteration();

  Communicator& group() const { return *group_; }
  /// Since the construction.
  int64_t count() const { return count_; }
  int64_t bytes_now() const { return bytes_now_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = bytes_now_; }

 private:
  void on_touch(Unit& unit);
  Work start(Unit& unit, const Tensor& out);
  void make_room();
  void prefetch_after(Unit& unit);
  void drop_incoming(Unit& unit);
  void hold(int64_t bytes);

  std::vector<Unit>& units_;
  const FsdpOptions& options_;
  const CommunicatorPtr group_;
  std::mutex touch_mutex_;
  std::vector<Unit*> residents_;           // in order of unsharding
  std::vector<Unit*> order_, last_order_;  // of unsharding, in this iteration and the last
  int64_t count_ = 0, bytes_now_ = 0, peak_bytes_ = 0;
  // Cleared when this goes; memory that is touched later cannot be unsharded any more.
  std::shared_ptr<Unsharding*> alive_ = std::make_shared<Unsharding*>(this);
};

}  // namespace weft::dist::fsdp
