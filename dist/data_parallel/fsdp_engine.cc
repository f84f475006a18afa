#include "dist/data_parallel/fsdp_engine.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/transfer.h"
#include "core/view.h"
#include "dist/comm/device/on_device.h"

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
  if (kernels::BeforeKernels::in_kernel_here() && !before_kernels_.is_of_this_thread() &&
      !before_kernels_.in_kernel()) {
    before_kernels_ = watch_this_thread();
  }
  if (unit.is_resident) return put_back(unit);
  prepare_(unit);
  make_room();
  unshard(unit);
  prefetch_after(unit);
  put_back(unit);  // outside of kernels those which the fetch has run have set it aside
}

kernels::BeforeKernels Unsharding::watch_this_thread() const {
  return kernels::BeforeKernels([alive = std::weak_ptr<Unsharding*>(alive_)] {
    if (const auto unsharding = alive.lock()) (*unsharding)->set_aside();
  });
}

void Unsharding::set_aside() {
  if (options_.sharding != Sharding::kFullShard) return;
  std::lock_guard lock(touch_mutex_);
  for (Unit* const unit : residents_) {
    if (unit->aside) continue;
    unit->aside = std::make_unique<Storage>(unit->memory->bytes(), unit->device, [] {});
    unit->aside->take(*unit->memory);
  }
}

void Unsharding::put_back(Unit& unit) {
  if (unit.aside) unit.memory->take(*std::exchange(unit.aside, nullptr));
}

bool Unsharding::is_read(const Unit& unit) const {
  return unit.is_resident && !unit.aside && before_kernels_.in_kernel();
}

/// What this rank sends of a unit, on its device.
Tensor Unsharding::own_part(Unit& unit) const {
  const bool stays = options_.offload_optimizer && !keeps_whole(options_.sharding);
  const uint64_t version = unit.kept.version();
  if (stays && unit.sent.defined() && unit.sent_version == version) return unit.sent;
  const NoGrad guard;
  const Tensor part = ops::to(unit.is_narrowed() ? narrowed_part(unit, group_->rank())
                                                 : ops::cast(unit.kept, unit.unsharded_dtype),
                              unit.device);
  if (stays) unit.sent = part, unit.sent_version = version;
  return part;
}

/// Begins to unshard a unit into `out`, in place: both ends of a collective are registered memory.
Work Unsharding::start(Unit& unit, const Tensor& out) {
  ++count;
  std::vector<int64_t> counts(group_->size(), unit.part);
  if (unit.is_narrowed()) counts = unit.wire.bytes_by_rank(group_->size());
  const auto own = counts.begin() + group_->rank();
  const Tensor place = view::narrow(out, 0, std::accumulate(counts.begin(), own, int64_t{0}), *own);
  const Tensor part = own_part(unit);
  if (part.raw() != place.raw()) copy_same_layout(part, place);
  return group_->all_gather(out, place, counts);
}

void Unsharding::unshard(Unit& unit) {
  const MemoryScope scope(MemoryKind::kGathered);
  // A forward that no backward followed, in evaluation, is no part of the next iteration.
  const bool is_expected =
      order_.size() < last_order_.size() && last_order_[order_.size()] == &unit;
  if (!is_expected && !last_order_.empty() && last_order_[0] == &unit) order_.clear();
  if (unit.is_narrowed() && !unit.incoming.defined()) fetch(unit);
  if (unit.incoming.defined()) {
    arrive(unit);
  } else {
    const Tensor whole = buffer_for(*group_, unit.padded, unit.unsharded_dtype, unit.device);
    start(unit, whole).wait();
    unit.memory->take(*whole.storage());
  }
  unit.is_resident = true;
  residents_.push_back(&unit);
  order_.push_back(&unit);
  held.add(unit.unsharded_bytes());
}

/// Begins to unshard a unit into memory beside its own.
void Unsharding::fetch(Unit& unit) {
  const MemoryScope scope(MemoryKind::kGathered);
  unit.incoming = unit.is_narrowed()
                      ? buffer_for(*group_, unit.wire.bytes(), DType::u8, unit.device)
                      : buffer_for(*group_, unit.padded, unit.unsharded_dtype, unit.device);
  held.add(unit.arriving_bytes());
  unit.fetch = start(unit, unit.incoming);
}

/// Waits for what was fetched, and puts it in its place.
void Unsharding::arrive(Unit& unit) {
  unit.fetch.wait();
  Tensor whole = unit.incoming;
  if (unit.is_narrowed()) {
    whole = unit.is_resident ? flat_view(unit)
                             : Tensor::empty({unit.padded}, unit.unsharded_dtype, unit.device);
    widen(unit, unit.incoming, whole);
  }
  if (!unit.is_resident) unit.memory->take(*whole.storage());
  drop_incoming(unit);
}

void Unsharding::unshard_all() {
  std::vector<Work> works;
  Unit* coming = nullptr;  // two narrowed units at a time take memory beside their own
  for (Unit& unit : units_) {
    if (!unit.is_narrowed()) {
      works.push_back(start(unit, flat_view(unit)));
      continue;
    }
    fetch(unit);
    if (Unit* const before = std::exchange(coming, &unit)) arrive(*before);
  }
  if (coming) arrive(*coming);
  for (const Work& work : works) work.wait();
}

/// Two units at a time, besides the one being fetched: reshards those that were unsharded first.
/// Outside of kernels the last one stays: it may be read together with the one to come.
void Unsharding::make_room() {
  if (options_.sharding != Sharding::kFullShard) return;
  for (Unit* const unit : std::vector(residents_)) {
    if (std::ssize(residents_) < options_.resident_units) return;
    reshard(*unit);
  }
}

void Unsharding::keep_changes(Unit& unit) {
  if (!unit.has_changes()) return;
  const bool has_stepped = unit.kept.version() != unit.kept_version;
  unit.forget_changes();
  if (!unit.is_resident) return;
  WEFT_CHECK(unit.is_exact(),
             "fsdp: parameters of the unit {} were changed in place where they are rounded to {}; "
             "what is kept of them in {} can be changed by load_state_dict()",
             unit.name, unit.is_narrowed() ? unit.wire_dtype : unit.unsharded_dtype, unit.dtype);
  WEFT_CHECK(!has_stepped,
             "fsdp: parameters of the unit {} were changed in place, and the optimizer has taken "
             "its step from what they were before: call keep_changes() ahead of the step",
             unit.name);
  const NoGrad guard;
  for (Parameter& p : unit.parameters) {
    ops::copy_(p.slice, ops::to(slice_of_whole(p, p.whole), unit.kept_device));
  }
  unit.kept_version = unit.kept.version();
}

void Unsharding::reshard(Unit& unit) {
  if (options_.sharding == Sharding::kFullShard && is_read(unit)) return;
  keep_changes(unit);
  if (!unit.is_resident || keeps_whole(options_.sharding)) return;
  put_back(unit);
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
  fetch(next);
}

void Unsharding::drop_incoming(Unit& unit) {
  unit.incoming = {};
  unit.fetch = {};
  held.add(-unit.arriving_bytes());
}

std::vector<Unit*> Unsharding::first_unsharded() const {
  std::vector<Unit*> units;
  for (Unit* const unit : order_) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  return units;
}

std::vector<Unit*> Unsharding::units_behind(const Unit& unit) const {
  const auto last = std::ranges::find(order_.rbegin(), order_.rend(), &unit);
  std::vector<Unit*> behind;
  if (last == order_.rend()) return behind;
  const std::unordered_set<const Unit*> before(order_.begin(), last.base());
  for (Unit& other : units_) {
    if (!before.contains(&other)) behind.push_back(&other);
  }
  return behind;
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

void Unsharding::abandon_iteration() {
  for (Unit& unit : units_) {
    if (!unit.has_changes() || unit.is_exact()) reshard(unit);
  }
  order_.clear();
}

bool has_gradients(const Unit& unit) {
  const bool has_local = unit.local.defined() && !unit.is_local_sent;
  return has_local || std::ranges::any_of(unit.parameters, [](const Parameter& p) {
           return p.whole.grad().defined();
         });
}

/// The unit's gradients, and what was collected of them under no_sync, as one flat tensor: that of
/// the latter, or one of its own.
Tensor Reduction::take_flat(Unit& unit, bool is_collecting) {
  const NoGrad guard;
  const Tensor local = unit.is_local_sent ? Tensor() : unit.local;
  Tensor flat = local;
  if (!is_collecting || !local.defined()) {
    flat = buffer_for(*group_, unit.padded, unit.reduce_dtype, unit.device);
    local.defined() ? ops::copy_(flat, local) : ops::zero_(flat);
  }
  for (Parameter& p : unit.parameters) {
    p.has_sent |= !is_collecting && local.defined() && p.has_local;
    const Tensor gradient = p.whole.grad();
    if (!gradient.defined()) continue;
    Tensor place = place_in_flat(p, flat);
    if (local.defined()) {
      ops::add_(place, ops::cast(gradient, unit.reduce_dtype));
    } else {
      ops::copy_(place, gradient);
    }
    p.whole.set_grad({});
    (is_collecting ? p.has_local : p.has_sent) = true;
  }
  return flat;
}

void Reduction::collect(Unit& unit) {
  // Kept in the dtype in which gradients travel: the sum of many must not be rounded to the
  // parameters' narrow one each time.
  unit.local = take_flat(unit, true);
  assign_memory(unit.local, MemoryKind::kGradients);
}

void Reduction::start(Unit& unit) {
  const auto can_complete = [&](const Unit& first) {
    const bool is_alone = !options_.replicate || options_.replicate->size() == 1;
    return first.is_awaitable || (is_alone && std::ranges::all_of(first.sums, [](const auto& sum) {
                                    return sum.scatter.is_done();
                                  }));
  };
  while (on_their_way_.size() >= 2 && can_complete(*on_their_way_.front())) {
    complete(*on_their_way_.front());
  }
  const MemoryScope scope(MemoryKind::kBuckets);
  Unit::OnItsWay sum;
  sum.whole = take_flat(unit, false);
  unit.is_local_sent = unit.local.defined();
  sum.part = buffer_for(*group_, unit.part, unit.reduce_dtype, unit.device);
  held.add(static_cast<int64_t>(sum.whole.nbytes() + sum.part.nbytes()));
  sum.scatter = group_->reduce_scatter(sum.part, sum.whole);
  unit.sums.push_back(std::move(sum));
  if (std::find(on_their_way_.begin(), on_their_way_.end(), &unit) == on_their_way_.end()) {
    on_their_way_.push_back(&unit);
  }
}

void Reduction::complete(Unit& unit) {
  const NoGrad guard;
  const int replicas = options_.replicate ? options_.replicate->size() : 1;
  for (Unit::OnItsWay& sum : unit.sums) {
    sum.scatter.wait();
    if (replicas > 1) options_.replicate->all_reduce(sum.part).wait();
    Tensor part = ops::to(ops::cast(sum.part, unit.dtype), unit.kept_device);
    if (options_.average == ReduceOp::kMean) {
      const double ranks = static_cast<double>(options_.shard->size()) * replicas;
      part = ops::div(part, ops::to(Tensor::full({1}, ranks, unit.dtype), unit.kept_device));
    }
    assign_memory(part, MemoryKind::kGradients);
    unit.arrived.push_back(part);
    held.add(-static_cast<int64_t>(sum.whole.nbytes() + sum.part.nbytes()));
  }
  unit.sums.clear();
  std::erase(on_their_way_, &unit);
}

/// Makes kept_gradient what the pass adds to: of each slice the gradient that it shows, and zeros
/// where zero_grad() has dropped it.
void Reduction::begin_sum(Unit& unit) {
  if (!unit.has_slice_gradient()) {
    unit.kept_gradient = {};
    return;
  }
  if (!unit.kept_gradient.defined()) {
    const MemoryScope scope(MemoryKind::kGradients);
    unit.kept_gradient = ops::full({unit.part}, 0, unit.dtype, unit.kept_device);
  }
  for (const Parameter& p : unit.parameters) {
    if (p.kept.count == 0) continue;
    Tensor place = slice_of_part(unit, p, unit.kept_gradient, options_.shard->rank());
    const Tensor gradient = p.slice.grad();
    if (!gradient.defined()) {
      ops::zero_(place);
    } else if (gradient.storage() != place.storage()) {
      ops::copy_(place, gradient);  // somebody has set it
    }
  }
}

void Reduction::complete_all() {
  while (!on_their_way_.empty()) complete(*on_their_way_.front());
}

void Reduction::complete_awaitable() {
  while (!on_their_way_.empty() && on_their_way_.front()->is_awaitable) {
    complete(*on_their_way_.front());
  }
}

void Reduction::drop_all(std::vector<Unit>& units) {
  for (Unit& unit : units) {
    for (const Unit::OnItsWay& sum : unit.sums) {
      sum.scatter.wait();
      held.add(-static_cast<int64_t>(sum.whole.nbytes() + sum.part.nbytes()));
    }
    unit.sums.clear();
    unit.arrived.clear();
    unit.is_local_sent = false;
    for (Parameter& p : unit.parameters) p.has_sent = false;
  }
  on_their_way_.clear();
}

void Reduction::hand_out(std::vector<Unit>& units) {
  const NoGrad guard;
  for (Unit& unit : units) {
    if (std::exchange(unit.is_local_sent, false)) {
      unit.local = {};
      for (Parameter& p : unit.parameters) p.has_local = false;
    }
    if (!unit.arrived.empty()) begin_sum(unit);
    for (const Tensor& part : std::exchange(unit.arrived, {})) {
      if (unit.kept_gradient.defined()) {
        ops::add_(unit.kept_gradient, part);
      } else {
        unit.kept_gradient = part;
      }
    }
    if (!unit.kept_gradient.defined()) continue;
    for (Parameter& p : unit.parameters) {
      // One that was frozen may have been trained in its forward.
      if (!std::exchange(p.has_sent, false) && !p.whole.requires_grad()) continue;
      p.slice.set_grad(slice_of_part(unit, p, unit.kept_gradient, options_.shard->rank()));
    }
  }
}

}  // namespace weft::dist::fsdp
