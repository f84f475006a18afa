#include <algorithm>

#include "autograd/ops.h"
#include "core/memory_account.h"
#include "dist/data_parallel/fsdp_engine.h"

namespace weft::dist::fsdp {

bool has_gradients(const Unit& unit) {
  return unit.local.defined() || std::ranges::any_of(unit.parameters, [](const Parameter& p) {
           return p.whole.grad().defined();
         });
}

/// The unit's gradients, and what was collected of them under no_sync, as one flat tensor.
Tensor Reduction::take_flat(Unit& unit) {
  const NoGrad guard;
  Tensor flat = unit.local.defined() ? unit.local
                                     : Tensor::zeros({unit.padded}, unit.reduce_dtype, unit.device);
  for (Parameter& p : unit.parameters) {
    const Tensor gradient = p.whole.grad();
    if (!gradient.defined()) continue;
    Tensor place = place_in_flat(p, flat);
    if (unit.local.defined()) {
      ops::add_(place, ops::cast(gradient, unit.reduce_dtype));
    } else {
      ops::copy_(place, gradient);
    }
    p.whole.set_grad({});
  }
  unit.local = {};
  return flat;
}

void Reduction::collect(Unit& unit) {
  // Kept in the dtype in which gradients travel: the sum of many must not be rounded to the
  // parameters' narrow one each time.
  unit.local = take_flat(unit);
  assign_memory(unit.local, MemoryKind::kGradients);
}

void Reduction::start(Unit& unit) {
  while (on_their_way_.size() >= 2) complete(*on_their_way_.front());
  const MemoryScope scope(MemoryKind::kBuckets);
  Unit::OnItsWay sum;
  sum.whole = take_flat(unit);
  assign_memory(sum.whole, MemoryKind::kBuckets);  // it may have been collected under no_sync
  sum.part = Tensor::empty({unit.part}, unit.reduce_dtype, unit.device);
  held.add(static_cast<int64_t>(sum.whole.nbytes() + sum.part.nbytes()));
  sum.scatter = group_->reduce_scatter(sum.part, sum.whole);
  unit.sums.push_back(std::move(sum));
  if (std::find(on_their_way_.begin(), on_their_way_.end(), &unit) == on_their_way_.end()) {
    on_their_way_.push_back(&unit);
  }
  unit.was_reduced = true;
  unit.missing = unit.count_trained();
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
    if (!unit.has_new_gradient) {
      // Gradients that zero_grad() has dropped do not count; others are added to.
      if (!unit.has_slice_gradient()) unit.kept_gradient = {};
      unit.has_new_gradient = true;
    }
    if (unit.kept_gradient.defined()) {
      ops::add_(unit.kept_gradient, part);
    } else {
      unit.kept_gradient = part;
      assign_memory(part, MemoryKind::kGradients);
    }
    held.add(-static_cast<int64_t>(sum.whole.nbytes() + sum.part.nbytes()));
  }
  unit.sums.clear();
  std::erase(on_their_way_, &unit);
}

void Reduction::complete_all() {
  while (!on_their_way_.empty()) complete(*on_their_way_.front());
}

void Reduction::hand_out(std::vector<Unit>& units) {
  for (Unit& unit : units) {
    unit.was_reduced = unit.has_new_gradient = false;
    if (!unit.kept_gradient.defined()) continue;
    for (Parameter& p : unit.parameters) {
      if (!p.whole.requires_grad()) continue;
      p.slice.set_grad(slice_of_part(unit, p, unit.kept_gradient, options_.shard->rank()));
    }
  }
}

}  // namespace weft::dist::fsdp
