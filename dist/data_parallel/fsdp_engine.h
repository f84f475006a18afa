// What is behind FullySharded (dist/data_parallel/fsdp.h). Forward and backward touch parameters,
// and Unsharding brings them. When a unit's gradients are complete it is resharded, and Reduction
// takes them away: units in one order on all ranks, be they complete on some of them alone. After
// the pass come the units of which not every parameter was used.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "dist/data_parallel/fsdp.h"
#include "dist/data_parallel/fsdp_unit.h"
#include "dist/data_parallel/pass_watch.h"
#include "kernels/op.h"

namespace weft::dist {
namespace fsdp {

struct HeldBytes {
  int64_t now = 0, peak = 0;
  void add(int64_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
};

/// How parameters come and go. The memory of a unit asks for its content when it is touched. The
/// unit is then unsharded from the ranks' parts, and the one that followed it in the last
/// iteration is fetched ahead. Units that were unsharded first are resharded: their memory is given
/// back.
///
/// A kernel may read several units, and must find each where it has found it first. So before every
/// kernel the blocks of all units are set aside, and whichever it reads is touched: that one stays
/// until the kernel is over, be there more of them for so long than options allow.
class Unsharding {
 public:
  /// `units` and `options` belong to the caller and outlive it. Collectives run in `group`. Before
  /// a unit is unsharded that was touched, `prepare` is called.
  Unsharding(std::vector<Unit>& units, const FsdpOptions& options, CommunicatorPtr group,
             std::function<void(Unit& unit)> prepare)
      : units_(units), options_(options), group_(std::move(group)), prepare_(std::move(prepare)) {}

  /// Memory for the whole of a unit, which is unsharded when it is touched. Throws Error then, once
  /// this Unsharding is gone.
  std::shared_ptr<Storage> memory_for(const Unit& unit);

  void unshard(Unit& unit);
  /// All of them, up to date where they are: ZeRO-1's and -2's.
  void unshard_all();
  /// Unless the kernel at hand reads it.
  void reshard(Unit& unit);
  /// What the program has changed in place of the whole becomes the parts'. Throws Error, once,
  /// where the whole is rounded, and where the parts have changed, too.
  void keep_changes(Unit& unit);
  /// The units of this iteration, in the order in which they were first unsharded.
  std::vector<Unit*> first_unsharded() const;
  /// What a backward pass that comes to this unit is through with: units that were first unsharded
  /// behind the last time that this one was, and those that were not in this iteration.
  std::vector<Unit*> units_behind(const Unit& unit) const;
  /// Reshards all, and remembers the order in which they came.
  void end_iteration();
  /// The same of an iteration that has failed, whose order says nothing; what is on its way, and
  /// changes that cannot be kept, stay there until end_iteration().
  void abandon_iteration();

  Communicator& group() const { return *group_; }
  int64_t count = 0;  // since the construction
  HeldBytes held;

 private:
  void on_touch(Unit& unit);
  /// Has set_aside() called before each kernel that this thread begins.
  kernels::BeforeKernels watch_this_thread() const;
  void set_aside();
  void put_back(Unit& unit);
  /// Whether the kernel at hand may hold the address of this one's memory.
  bool is_read(const Unit& unit) const;
  Tensor own_part(Unit& unit) const;
  Work start(Unit& unit, const Tensor& out);
  void fetch(Unit& unit);
  void arrive(Unit& unit);
  void make_room();
  void prefetch_after(Unit& unit);
  void drop_incoming(Unit& unit);

  std::vector<Unit>& units_;
  const FsdpOptions& options_;
  const CommunicatorPtr group_;
  const std::function<void(Unit& unit)> prepare_;
  // Recursive: what unshards a unit runs kernels, and keeps the changes of another.
  std::recursive_mutex touch_mutex_;
  std::vector<Unit*> residents_;           // in order of unsharding
  std::vector<Unit*> order_, last_order_;  // of unsharding, in this iteration and the last
  // Cleared when this goes; memory that is touched later cannot be unsharded any more.
  std::shared_ptr<Unsharding*> alive_ = std::make_shared<Unsharding*>(this);
  kernels::BeforeKernels before_kernels_ = watch_this_thread();  // which uses the model
};

/// How gradients leave: a unit's are summed over the ranks, each of which keeps the sum of its
/// part; the optimizer finds it at the parameters' slices. Under no_sync they stay whole and add up
/// until the next sum. All of that changes when a pass is over: one that fails leaves things as
/// they were. A unit's gradients travel together, but each is dropped and added to for itself:
/// optimizers may have some of a unit's parameters alone.
class Reduction {
 public:
  /// `options` outlives it. Sums over the shard group run in `group`.
  Reduction(const FsdpOptions& options, CommunicatorPtr group)
      : options_(options), group_(std::move(group)) {}

  /// Sends the gradients at hand on their way. Two units' are at a time, and more where a rank may
  /// begin the first one's sum no sooner than this one goes on.
  void start(Unit& unit);
  /// Waits for all that are on their way, or for the first ones that may be waited for.
  void complete_all();
  void complete_awaitable();
  /// The same, and keeps nothing of them: of a pass that has failed.
  void drop_all(std::vector<Unit>& units);
  /// Collects the gradients at hand in unit.local.
  void collect(Unit& unit);
  /// Adds what has arrived to the slices' gradients, at the end of a pass.
  void hand_out(std::vector<Unit>& units);

  Communicator& group() const { return *group_; }
  HeldBytes held;  // by gradients on their way

 private:
  Tensor take_flat(Unit& unit, bool is_collecting);
  void complete(Unit& unit);
  void begin_sum(Unit& unit);

  const FsdpOptions& options_;
  const CommunicatorPtr group_;
  std::vector<Unit*> on_their_way_;
};

/// Whether there are gradients that have not been sent.
bool has_gradients(const Unit& unit);

}  // namespace fsdp

class FullySharded::Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(nn::Module& module, const FsdpOptions& options, const WrapPolicy& policy);

  /// Apart from the constructor, which has no shared pointer to give.
  void register_hooks();
  void begin();  // of a backward pass that is summed, or collected

  /// A tensor becomes the first rank's on all.
  void synchronize(const Tensor& tensor);

  void on_ready(fsdp::Unit& unit);
  /// The end of a backward pass.
  void finish();
  /// finish() without a pass.
  void finish_alone();
  void keep_changes();
  /// What was unsharded is out of date when the optimizer has run.
  void after_step();
  bool is_stale() const { return kept_versions() != refreshed_; }
  /// visit(p, place) for each of these parameters of the model that has a gradient in Unit::local;
  /// `place` is that gradient.
  void for_each_local(const Tensors& parameters,
                      const std::function<void(fsdp::Parameter& p, Tensor place)>& visit);

  int shard_rank() const { return options.shard->rank(); }
  int shard_size() const { return options.shard->size(); }

  nn::Module& module;
  const FsdpOptions options;
  std::vector<fsdp::Unit> units;
  fsdp::Unsharding unsharding;
  fsdp::Reduction reduction;
  int local_depth = 0;  // of no_sync()
  int64_t told = 0;     // bytes sent to agree with the other ranks

 private:
  Tensor values_of_first_rank(const fsdp::Unit& unit);
  void build(fsdp::Unit& unit);
  void prepare(fsdp::Unit& unit);
  void start_passed();
  void start_next();
  void start_late(size_t started);
  void agree_on_order();
  void reset_pass();
  void tell(const Tensor& x, const std::function<Work(Communicator& group, const Tensor& x)>& how);
  void fail();
  void recover();
  uint64_t kept_versions() const;

  PassWatch watch_;
  std::vector<fsdp::Unit*> order_;      // in which units are reduced, the same on every rank
  bool is_ordered_ = false;             // by what a pass has shown
  size_t next_ = 0;                     // of order_, in this pass
  std::vector<fsdp::Unit*> completed_;  // in this pass, as they were
  std::vector<fsdp::Unit*> passed_;     // units_behind() the latest that was unsharded in this pass
  uint64_t refreshed_ = 0;              // kept_versions() at the last after_step()
};

}  // namespace weft::dist
