#include <utility>

#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/transfer.h"
#include "dist/data_parallel/fsdp_engine.h"

namespace weft::dist::fsdp {

std::shared_ptr<Storage> Unsharding::memory_for(const Unit& unit) {
  const size_t index = static_cast<size_t>(&unit - units_.data());
  return std::make_shared<Storage>(
      static_cast<size_t>(unit.unsharded_bytes()), unit.device,
      [alive = std::weak_ptr<Unsharding*>(alive_), index] {
        const auto unsharding = alive.lock();
        WEFT_CHECK(unsharding, "fsdp: a parameter is used after its FullySharded is gone");
        (*unsharding)->on_touch((*unsharding)->units_[index]);
      });
}

void Unsharding::on_touch(Unit& unit) {
  std::lock_guard lock(touch_mutex_);
  if (unit.is_resident) return;
  make_room();
  unshard(unit);
  prefetch_after(unit);
}

/// Begins to gather a unit into `out`.
Work Unsharding::start(Unit& unit, const Tensor& out) {
  ++count;
  const NoGrad guard;
  const Tensor sent = ops::to(ops::cast(unit.kept, unit.unsharded_dtype), unit.device);
  return group_->all_gather(out, sent);
}

void Unsharding::unshard(Unit& unit) {
  const MemoryScope scope(MemoryKind::kGathered);
  // A forward that no backward followed, in evaluation, is no part of the next iteration.
  const bool is_expected =
      order_.size() < last_order_.size() && last_order_[order_.size()] == &unit;
  if (!is_expected && !last_order_.empty() && last_order_[0] == &unit) order_.clear();
  if (unit.incoming.defined()) {
    unit.fetch.wait();
    unit.memory->allocate();
    copy_same_layout(unit.incoming, flat_view(unit));
    drop_incoming(unit);
  } else {
    unit.memory->allocate();
    start(unit, flat_view(unit)).wait();
  }
  unit.is_resident = true;
  residents_.push_back(&unit);
  order_.push_back(&unit);
  held.add(unit.unsharded_bytes());
}

void Unsharding::unshard_all() {
  std::vector<Work> works;
  for (Unit& unit : units_) works.push_back(start(unit, flat_view(unit)));
  for (const Work& work : works) work.wait();
}

/// Two units at a time, besides the one being fetched: reshards those that were unsharded first.
/// The last one stays: an operation may be reading it together with the one to come.
void Unsharding::make_room() {
  if (options_.sharding != Sharding::kFullShard) return;
  while (residents_.size() >= 2) reshard(*residents_.front());
}

void Unsharding::reshard(Unit& unit) {
  if (!unit.is_resident || keeps_whole(options_.sharding)) return;
  unit.memory->free();
  unit.is_resident = false;
  std::erase(residents_, &unit);
  held.add(-unit.unsharded_bytes());
}

void Unsharding::prefetch_after(Unit& unit) {
  const size_t place = order_.size() - 1;
  if (!options_.prefetches || place + 1 >= last_order_.size() || last_order_[place] != &unit)
    return;
  Unit& next = *last_order_[place + 1];
  if (next.is_resident || next.incoming.defined()) return;
  const MemoryScope scope(MemoryKind::kGathered);
  next.incoming = Tensor::empty({next.padded}, next.unsharded_dtype, next.device);
  held.add(next.unsharded_bytes());
  next.fetch = start(next, next.incoming);
}

void Unsharding::drop_incoming(Unit& unit) {
  unit.incoming = {};
  unit.fetch = {};
  held.add(-unit.unsharded_bytes());
}

void Unsharding::end_iteration() {
  for (Unit& unit : units_) {
    if (unit.incoming.defined()) {
      unit.fetch.wait();
      drop_incoming(unit);
    }
    reshard(unit);
  }
  if (!order_.empty()) last_order_ = std::exchange(order_, {});
}

}  // namespace weft::dist::fsdp
