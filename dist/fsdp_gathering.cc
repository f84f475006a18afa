#include "dist/fsdp_gathering.h"

#include <algorithm>
#include <utility>

#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/transfer.h"

namespace weft::dist::fsdp {

std::shared_ptr<Storage> Gathering::memory_for(const Unit& unit) {
  const size_t index = static_cast<size_t>(&unit - units_.data());
  return std::make_shared<Storage>(
      static_cast<size_t>(unit.gathered_bytes()), unit.device,
      [alive = std::weak_ptr<Gathering*>(alive_), index] {
        const auto gathering = alive.lock();
        WEFT_CHECK(gathering, "fsdp: a parameter is used after its FullySharded is gone");
        (*gathering)->on_touch((*gathering)->units_[index]);
      });
}

void Gathering::on_touch(Unit& unit) {
  std::lock_guard lock(touch_mutex_);
  if (unit.is_resident) return;
  make_room();
  gather(unit);
  prefetch_after(unit);
}

/// Issues the gathering of a unit into `out`.
Work Gathering::start(Unit& unit, const Tensor& out) {
  ++count_;
  const NoGrad guard;
  const Tensor sent = ops::to(ops::cast(unit.kept, unit.gathered_dtype), unit.device);
  return group_->all_gather(out, sent);
}

void Gathering::gather(Unit& unit) {
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
  hold(unit.gathered_bytes());
}

void Gathering::gather_whole() {
  std::vector<Work> works;
  for (Unit& unit : units_) works.push_back(start(unit, flat_view(unit)));
  for (const Work& work : works) work.wait();
}

void Gathering::hold(int64_t bytes) {
  bytes_now_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_now_);
}

/// Lets the units go that were gathered first. The last one stays: an operation may be reading it
/// together with the one to come.
void Gathering::make_room() {
  if (options_.sharding != Sharding::kFullShard) return;
  while (static_cast<int>(residents_.size()) >= options_.gathered_units) {
    let_go(*residents_.front());
  }
}

void Gathering::let_go(Unit& unit) {
  if (!unit.is_resident || keeps_whole(options_.sharding)) return;
  unit.memory->free();
  unit.is_resident = false;
  std::erase(residents_, &unit);
  bytes_now_ -= unit.gathered_bytes();
}

void Gathering::prefetch_after(Unit& unit) {
  const size_t place = order_.size() - 1;
  if (!options_.prefetches || place + 1 >= last_order_.size() || last_order_[place] != &unit)
    return;
  Unit& next = *last_order_[place + 1];
  if (next.is_resident || next.incoming.defined()) return;
  const MemoryScope scope(MemoryKind::kGathered);
  next.incoming = Tensor::empty({next.padded}, next.gathered_dtype, next.device);
  hold(next.gathered_bytes());
  next.fetch = start(next, next.incoming);
}

void Gathering::drop_incoming(Unit& unit) {
  unit.incoming = {};
  unit.fetch = {};
  bytes_now_ -= unit.gathered_bytes();
}

void Gathering::end_iteration() {
  for (Unit& unit : units_) {
    if (unit.incoming.defined()) {
      unit.fetch.wait();
      drop_incoming(unit);
    }
    let_go(unit);
  }
  if (!order_.empty()) last_order_ = std::exchange(order_, {});
}

}  // namespace weft::dist::fsdp
