// The states of FullySharded: whole ones of the ranks' slices, and slices of whole ones.
#include <unordered_map>

#include "autograd/ops.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/data_parallel/fsdp_engine.h"
#include "optim/optimizer_state.h"

namespace weft::dist {

using fsdp::Parameter;
using fsdp::Unit;

namespace {

void copy_into(Tensor target, const Tensor& source) {
  const NoGrad guard;
  ops::copy_(target, source);
}

}  // namespace

NamedTensors FullySharded::full_state_dict(bool everywhere) {
  const NoGrad guard;
  engine_->keep_changes();
  const bool keeps = everywhere || engine_->shard_rank() == 0;
  std::unordered_map<const Parameter*, Tensor> whole;
  for (Unit& unit : engine_->units) {
    const Tensor flat = Tensor::empty({unit.padded}, unit.dtype, unit.device);
    engine_->unsharding.group().all_gather(flat, ops::to(unit.kept, unit.device)).wait();
    if (!keeps) continue;
    for (const Parameter& p : unit.parameters) {
      whole[&p] = ops::clone(fsdp::place_in_flat(p, flat));
    }
  }
  NamedTensors state;
  if (!keeps) return state;
  for (const auto& [name, entry] : engine_->module.unrouted_state()) {
    const Parameter* p = fsdp::find_entry(engine_->units, entry).second;
    state.emplace_back(name, p ? whole.at(p) : ops::clone(entry));
  }
  return state;
}

void FullySharded::load_full_state_dict(const NamedTensors& state) {
  const NoGrad guard;
  const std::unordered_map<std::string, Tensor> by_name(state.begin(), state.end());
  const NamedTensors entries = engine_->module.unrouted_state();
  for (const auto& [name, entry] : entries) {
    const auto found = by_name.find(name);
    WEFT_CHECK(found != by_name.end(), "fsdp: the state lacks \"{}\"", name);
    WEFT_CHECK(found->second.shape() == entry.shape(),
               "fsdp: \"{}\" in the state is {}, expected shape {}", name, found->second,
               entry.shape());
  }
  WEFT_CHECK(by_name.size() == entries.size(), "fsdp: the state holds {} tensors, the model {}",
             by_name.size(), entries.size());
  for (Unit& unit : engine_->units) unit.forget_changes();
  for (const auto& [name, entry] : entries) {
    const Tensor& source = by_name.at(name);
    if (const Parameter* p = fsdp::find_entry(engine_->units, entry).second) {
      copy_into(p->slice, ops::to(fsdp::slice_of_whole(*p, source), p->slice.device()));
    } else {
      copy_into(entry, ops::to(source, entry.device()));
    }
  }
  engine_->after_step();
}

optim::OptimizerState FullySharded::full_optimizer_state(const optim::OptimizerState& sharded,
                                                         bool everywhere) {
  const NoGrad guard;
  const bool keeps = everywhere || engine_->shard_rank() == 0;
  optim::OptimizerState full{.tensors = {}, .groups = sharded.groups};
  for (const auto& [name, slice] : sharded.tensors) {
    const std::string parameter = optim::parameter_of(name);
    Tensor whole = slice;
    if (!parameter.empty()) {
      const auto [unit, p] = fsdp::find_named(engine_->units, parameter);
      std::vector<int64_t> counts;  // of elements, by rank
      for (int r = 0; r < engine_->shard_size(); ++r) {
        counts.push_back(fsdp::kept_by(*unit, *p, r).count);
      }
      whole = Tensor::empty(p->shape, slice.dtype(), unit->device);
      const Tensor sent = ops::to(slice, unit->device);
      engine_->unsharding.group().all_gather(whole, sent, counts).wait();
    }
    if (keeps) full.tensors.emplace_back(name, whole);
  }
  return full;
}

optim::OptimizerState FullySharded::shard_optimizer_state(const optim::OptimizerState& full) const {
  const NoGrad guard;
  optim::OptimizerState sharded{.tensors = {}, .groups = full.groups};
  for (const auto& [name, whole] : full.tensors) {
    const std::string parameter = optim::parameter_of(name);
    if (parameter.empty()) {
      sharded.tensors.emplace_back(name, whole);
      continue;
    }
    const Parameter& p = *fsdp::find_named(engine_->units, parameter).second;
    WEFT_CHECK(whole.shape() == p.shape, "fsdp: \"{}\" in the state is {}, expected shape {}", name,
               whole, p.shape);
    sharded.tensors.emplace_back(name, ops::clone(fsdp::slice_of_whole(p, whole)));
  }
  return sharded;
}

std::vector<FullySharded::Kept> FullySharded::kept_state() const {
  engine_->keep_changes();
  std::vector<Kept> kept;
  for (const auto& [name, entry] : engine_->module.unrouted_state()) {
    const Parameter* p = fsdp::find_entry(engine_->units, entry).second;
    kept.push_back({.name = name,
                    .tensor = p ? p->slice : entry,
                    .shape = entry.shape(),
                    .is_buffer = p == nullptr,
                    .first = p ? p->kept.first : 0});
  }
  return kept;
}

}  // namespace weft::dist
