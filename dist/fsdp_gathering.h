// How the parameters of FullySharded (dist/fsdp.h) come and go.
//
// The memory of a unit asks for its content when it is touched. The unit is then gathered of the
// ranks' parts, and the one that followed it in the last iteration is fetched ahead. Units that
// were gathered first are let go.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "dist/fsdp_unit.h"

namespace weft::dist::fsdp {

class Gathering {
 public:
  /// `units` and `options` belong to the caller and outlive it. Collectives run in `group`.
  Gathering(std::vector<Unit>& units, const FsdpOptions& options, CommunicatorPtr group)
      : units_(units), options_(options), group_(std::move(group)) {}

  /// Memory for the whole of a unit, which is gathered when it is touched. Throws Error then, once
  /// this Gathering is gone.
  std::shared_ptr<Storage> memory_for(const Unit& unit);

  /// Brings a unit that is not there.
  void gather(Unit& unit);
  /// Brings them all up to date where they are, ZeRO-1's and -2's.
  void gather_whole();
  void let_go(Unit& unit);
  /// Lets all go, and remembers the order in which they came.
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
  std::vector<Unit*> residents_;           // in order of gathering
  std::vector<Unit*> order_, last_order_;  // of gatherings, in this iteration and the last
  int64_t count_ = 0, bytes_now_ = 0, peak_bytes_ = 0;
  // Cleared when this goes; memory that is touched later cannot be gathered any more.
  std::shared_ptr<Gathering*> alive_ = std::make_shared<Gathering*>(this);
};

}  // namespace weft::dist::fsdp
