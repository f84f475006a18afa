// What is behind FullySharded (dist/data_parallel/fsdp.h): its units, and the course of an
// iteration over them.
//
// Forward and backward touch parameters, and Unsharding brings them. In backward a gradient that is
// ready is reported here; when a unit's are complete, Reduction takes them away and the unit is
// resharded. After the pass come the units of which not every parameter was used, and the optimizer
// finds its gradients.
#pragma once

#include <memory>
#include <vector>

#include "dist/data_parallel/fsdp.h"
#include "dist/data_parallel/fsdp_reduction.h"
#include "dist/data_parallel/fsdp_unit.h"
#include "dist/data_parallel/fsdp_unsharding.h"

namespace weft::dist {

class FullySharded::Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(nn::Module& module, const FsdpOptions& options, const WrapPolicy& policy);

  /// Apart from the constructor, which has no shared pointer to give.
  void register_hooks();

  /// A tensor becomes the first rank's on all.
  void synchronize(const Tensor& tensor);

  void on_ready(fsdp::Unit& unit);
  /// The end of a backward pass.
  void finish();
  /// What was unsharded is out of date when the optimizer has run.
  void after_step();
  bool is_stale() const { return kept_versions() != refreshed_; }

  int shard_rank() const { return options.shard->rank(); }
  int shard_size() const { return options.shard->size(); }

  nn::Module& module;
  const FsdpOptions options;
  std::vector<fsdp::Unit> units;
  fsdp::Unsharding unsharding;
  fsdp::Reduction reduction;
  bool synchronizes = true;  // false under no_sync

 private:
  Tensor values_of_first_rank(const fsdp::Unit& unit);
  void build(fsdp::Unit& unit);
  void begin();
  void end_iteration();
  uint64_t kept_versions() const;

  bool is_running_ = false;  // between a pass's first gradient and its end
  uint64_t refreshed_ = 0;   // kept_versions() at the last after_step()
};

}  // namespace weft::dist
