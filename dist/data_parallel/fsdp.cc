#include "dist/data_parallel/fsdp.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/view.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/exact_sum.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp_engine.h"
#include "io/nearest.h"
#include "nn/class_name.h"
#include "nn/meta.h"
#include "nn/product_weights.h"

namespace weft::dist {

using fsdp::Parameter;
using fsdp::Unit;

namespace {

/// Units whose parameters ranks reach differently are reduced behind the others.
void put_deferred_last(std::vector<Unit*>& order) {
  std::stable_partition(order.begin(), order.end(),
                        [](const Unit* unit) { return !unit->is_deferred; });
}

const FsdpOptions& checked(const FsdpOptions& options) {
  WEFT_CHECK(options.shard, "fsdp: a group of ranks to shard over is needed");
  WEFT_CHECK(options.average == ReduceOp::kMean || options.average == ReduceOp::kSum,
             "fsdp: gradients are averaged or summed, not reduced by {}",
             dist::name(options.average));
  WEFT_CHECK(options.resident_units >= 2,
             "fsdp: expected 2 resident units or more, since an operation may read two together, "
             "got {}",
             options.resident_units);
  WEFT_CHECK(options.product_dtype == DType::f32 || options.product_dtype == DType::bf16 ||
                 options.product_dtype == DType::f16,
             "fsdp: products run in f32, bf16 or f16, not in {}", options.product_dtype);
  return options;
}

/// The shard group again, for collectives that do not queue behind the others'.
CommunicatorPtr twin(Communicator& shard, const char* name) {
  std::vector<int> all(static_cast<size_t>(shard.size()));
  std::iota(all.begin(), all.end(), 0);
  return shard.group(all, name);
}

}  // namespace

WrapPolicy wrap_by_size(int64_t parameters) {
  WEFT_CHECK(parameters > 0, "wrap_by_size: the number of parameters must be positive, got {}",
             parameters);
  return [parameters](const std::string&, nn::Module& module) {
    int64_t own = module.num_parameters();
    // What smaller modules inside take out already.
    for (const auto& [name, child] : module.named_modules()) {
      if (name.empty() || name.find('.') != std::string::npos) continue;
      if (child->num_parameters() >= parameters) own -= child->num_parameters();
    }
    return own >= parameters;
  };
}

WrapPolicy wrap_by_class_names(std::vector<std::string> names) {
  return [names = std::move(names)](const std::string& path, nn::Module& module) {
    if (path.empty()) {
      std::set<std::string> classes;
      for (const auto& [at, child] : module.named_modules()) classes.insert(nn::class_name(*child));
      for (const std::string& name : names) {
        const bool is_there = std::ranges::any_of(
            classes, [&](const std::string& full) { return nn::is_class_name(full, name); });
        std::vector<std::string> known;
        for (const std::string& full : classes) {
          known.push_back(full.substr(full.find_last_of(":.") + 1));  // as it is mostly named
        }
        WEFT_CHECK(is_there, "wrap: the model has no module of class {}; it has {}{}", name,
                   fmt::join(classes, ", "), io::did_you_mean(name, known));
      }
    }
    const std::string full = nn::class_name(module);
    return std::ranges::any_of(
        names, [&](const std::string& name) { return nn::is_class_name(full, name); });
  };
}

FullySharded::Engine::Engine(nn::Module& root, const FsdpOptions& given, const WrapPolicy& policy)
    : module(root),
      options(checked(given)),
      unsharding(units, options, twin(*options.shard, "fsdp unshard"),
                 [this](Unit& unit) { prepare(unit); }),
      reduction(options, twin(*options.shard, "fsdp reduce")) {
  for (Communicator* group : {options.shard.get(), options.replicate.get()}) {
    // The list keeps the whole parameters alive: it must not outlive this line.
    if (group) verify_same_tensors(*group, module.state_dict(), "fsdp");
  }
  for (auto [name, buffer] : module.named_buffers()) {
    const NoGrad guard;
    nn::materialize(buffer);
    synchronize(buffer);
    const bool is_narrowed = options.buffer_dtype != DType::f32 && is_floating(buffer.dtype());
    if (is_narrowed) buffer.set_data(ops::cast(buffer, options.buffer_dtype));
  }
  units = fsdp::cut_into_units(module, policy);
  const std::unordered_set<const void*> products = nn::product_weights(module);
  for (Unit& unit : units) {
    fsdp::lay_out(unit, options, products);
    build(unit);
  }
  // As modules are mostly registered in the order in which they are called.
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) order_.push_back(&*unit);
  refreshed_ = kept_versions();
}

void FullySharded::Engine::synchronize(const Tensor& tensor) {
  if (options.replicate) options.replicate->broadcast(tensor).wait();
  options.shard->broadcast(tensor).wait();
}

/// A unit's parameters as one flat tensor, [padded].
Tensor FullySharded::Engine::values_of_first_rank(const Unit& unit) {
  Tensor flat = buffer_for(unsharding.group(), unit.padded, unit.dtype, unit.device);
  ops::zero_(flat);
  for (const Parameter& p : unit.parameters) {
    const bool was_meta = !nn::has_memory(p.whole);
    nn::materialize(p.whole);
    synchronize(p.whole);
    Tensor place = fsdp::place_in_flat(p, flat);
    ops::copy_(place, p.whole);
    if (was_meta) nn::dematerialize(p.whole);
  }
  return flat;
}

/// Keeps this rank's part of a unit, and makes the model's parameters views of memory that comes
/// and goes.
void FullySharded::Engine::build(Unit& unit) {
  const NoGrad guard;
  const MemoryScope scope(MemoryKind::kParameters);
  const bool stays = fsdp::keeps_whole(options.sharding);
  {
    const Tensor flat = values_of_first_rank(unit);
    const Tensor own = view::narrow(flat, 0, shard_rank() * unit.part, unit.part);
    if (stays && unit.is_exact() && unit.kept_device == unit.device) {
      unit.kept = own;
      unit.memory = flat.storage();
      unit.is_resident = true;
    } else {
      unit.kept =
          unit.kept_device == unit.device ? ops::clone(own) : ops::to(own, unit.kept_device);
      unit.memory = unsharding.memory_for(unit);
    }
  }
  for (Parameter& p : unit.parameters) {
    const bool trains = p.whole.requires_grad();
    p.whole.set_data(Tensor::view_of(unit.memory, p.shape, contiguous_strides(p.shape), p.offset,
                                     unit.unsharded_dtype));
    p.slice = fsdp::slice_of_part(unit, p, unit.kept, shard_rank());
    p.slice.set_requires_grad(trains);
  }
  if (stays && !unit.is_resident) unsharding.unshard(unit);
  unit.forget_changes();
}

void FullySharded::Engine::register_hooks() {
  for (size_t u = 0; u < units.size(); ++u) {
    for (const Parameter& parameter : units[u].parameters) {
      register_parameter_hook(parameter.whole, [weak = weak_from_this(), u] {
        if (const auto self = weak.lock()) self->on_ready(self->units[u]);
      });
    }
  }
}

void FullySharded::Engine::begin() {
  if (watch_.is_under_way()) return;
  watch_.begin(while_alive(weak_from_this(), &Engine::finish),
               while_alive(weak_from_this(), &Engine::fail));
  recover();
  reset_pass();
  for (Unit& unit : units) {
    // Gradients that zero_grad() has dropped make room for the new ones.
    if (!unit.has_slice_gradient()) unit.kept_gradient = {};
  }
  if (is_ordered_) return;
  // The forward pass shows an order, where it has unsharded units.
  std::vector<Unit*> forward = unsharding.first_unsharded();
  std::erase_if(order_, [&](Unit* unit) { return std::ranges::count(forward, unit) > 0; });
  order_.insert(order_.begin(), forward.rbegin(), forward.rend());
}

void FullySharded::Engine::reset_pass() {
  next_ = 0;
  completed_.clear();
  passed_.clear();
  for (Unit& unit : units) {
    unit.missing = unit.count_trained();
    unit.is_complete = false;
    // Where backward passes unshard nothing a rank that is behind needs no other to go on.
    unit.is_awaitable = options.sharding != Sharding::kFullShard;
  }
}

/// A unit is about to be unsharded, on every rank. A backward pass that comes to it is through with
/// those that its forward came to later: when the pass goes on to another one their sums begin,
/// complete or not. So no rank waits for a sum that another one, which has yet to unshard something
/// with it, would begin at the end of its pass. Activations that are recomputed come to these next.
/// Copies' ranks wait for each other here alone: one may be ahead, whose neighbour waits for it.
void FullySharded::Engine::prepare(Unit& unit) {
  recover();
  if (!watch_.is_under_way() || local_depth > 0 || options.sharding != Sharding::kFullShard) return;
  if (std::ranges::find(passed_, &unit) == passed_.end()) start_passed();
  passed_ = unsharding.units_behind(unit);
  for (Unit* const later : passed_) {
    // Of another rank it may be complete, and resharded.
    const bool has_some = !later->is_complete && later->missing < later->count_trained();
    if (has_some) unsharding.reshard(*later);
  }
}

void FullySharded::Engine::start_passed() {
  for (size_t i = 0; i < order_.size(); ++i) {
    Unit& earlier = *order_[i];
    const bool is_trained = earlier.count_trained() > 0;
    const bool is_passed = std::ranges::find(passed_, &earlier) != passed_.end();
    if (is_trained && (!is_passed || earlier.is_deferred)) break;
    earlier.is_awaitable = true;
    if (i < next_) continue;
    start_next();
    if (is_trained) unsharding.reshard(earlier);
  }
  if (options.replicate && options.replicate->size() > 1) reduction.complete_awaitable();
}

void FullySharded::Engine::start_next() {
  Unit& unit = *order_[next_++];
  if (unit.count_trained() > 0) reduction.start(unit);
}

/// The pass has failed: nothing of it is left but collectives that are under way.
void FullySharded::Engine::fail() {
  for (const Unit& unit : units) {
    for (const Parameter& p : unit.parameters) p.whole.set_grad({});
  }
  unsharding.abandon_iteration();
}

/// And these are taken off it before the next ones, on all ranks.
void FullySharded::Engine::recover() {
  if (!watch_.recover("fsdp", {&unsharding.group(), &reduction.group(), options.replicate.get()})) {
    return;
  }
  unsharding.end_iteration();
  reduction.drop_all(units);
  reset_pass();
}

void FullySharded::Engine::on_ready(Unit& unit) {
  begin();
  if (local_depth > 0) return;  // collected when the pass is over
  // A parameter used in several recomputed segments comes in parts; sums do not mind.
  if (--unit.missing > 0) return;
  unit.missing = unit.count_trained();
  if (options.sharding == Sharding::kZero1) return;  // reduced when the pass is over
  if (!std::exchange(unit.is_complete, true)) completed_.push_back(&unit);
  // Nothing is left to be unsharded: no rank needs this one to go on.
  const bool is_all_there =
      std::ranges::all_of(units, [](const Unit& u) { return u.is_complete || u.is_resident; });
  if (is_all_there) {
    for (Unit& other : units) other.is_awaitable = true;
  }
  const auto is_next = [&](const Unit& u) {
    return u.count_trained() == 0 || (u.is_complete && !u.is_deferred);
  };
  while (next_ < order_.size() && is_next(*order_[next_])) start_next();
  unsharding.reshard(unit);
}

void FullySharded::Engine::finish() {
  if (local_depth > 0) {
    for (Unit& unit : units) {
      if (fsdp::has_gradients(unit)) reduction.collect(unit);
    }
  } else {
    for (Unit& unit : units) unit.is_awaitable = true;
    const size_t started = next_;
    while (next_ < order_.size()) start_next();  // also where this rank has none: others may
    start_late(started);
    reduction.complete_all();
    reduction.hand_out(units);
    if (!std::exchange(is_ordered_, true)) agree_on_order();
  }
  unsharding.end_iteration();
  reset_pass();
}

/// Sums what came behind the beginning of its unit's sum, and what units have that are frozen. The
/// ranks ask each other in the first pass, and later on where there is any: a rank that has some
/// alone is an Error of all, by their collectives. From the next pass on these units come when a
/// pass is over, and so do those that the first has not completed: others need not wait for them.
void FullySharded::Engine::start_late(size_t started) {
  constexpr int32_t kIncomplete = 1, kLate = 2;
  std::vector<int32_t> mine(units.size());
  const bool had_pass = !completed_.empty();
  for (size_t i = is_ordered_ || !had_pass ? order_.size() : started; i < order_.size(); ++i) {
    if (!order_[i]->is_complete) mine[order_[i] - units.data()] = kIncomplete;
  }
  for (size_t i = 0; i < units.size(); ++i) {
    if (fsdp::has_gradients(units[i])) mine[i] = kLate;
  }
  if (is_ordered_ && std::ranges::count(mine, kLate) == 0) return;
  const Tensor all = Tensor::from(mine, {std::ssize(mine)});
  tell(all,
       [](Communicator& group, const Tensor& x) { return group.all_reduce(x, ReduceOp::kMax); });
  for (size_t i = 0; i < units.size(); ++i) {
    const int32_t found = all.data<int32_t>()[i];
    if (found == kLate) reduction.start(units[i]);
    units[i].is_deferred |= found > 0 && units[i].count_trained() > 0;
  }
  put_deferred_last(order_);
}

/// The order in which the first rank's units were complete.
void FullySharded::Engine::agree_on_order() {
  std::vector<Unit*> mine = completed_;
  for (Unit* const unit : order_) {
    if (std::ranges::find(mine, unit) == mine.end()) mine.push_back(unit);
  }
  put_deferred_last(mine);
  std::vector<int64_t> places;
  for (const Unit* const unit : mine) places.push_back(unit - units.data());
  const Tensor all = Tensor::from(places, {std::ssize(places)});
  tell(all, [](Communicator& group, const Tensor& x) { return group.broadcast(x); });
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = &units[all.data<int64_t>()[i]];
}

/// A collective among all ranks, when no gradients are on their way.
void FullySharded::Engine::tell(
    const Tensor& x, const std::function<Work(Communicator& group, const Tensor& x)>& how) {
  reduction.complete_all();
  for (Communicator* const group : {options.replicate.get(), &reduction.group()}) {
    if (!group) continue;
    const int64_t before = group->traffic().sent;
    how(*group, x).wait();
    told += group->traffic().sent - before;
  }
}

void FullySharded::Engine::finish_alone() {
  const auto attempt = watch_.attempt([this] { fail(); });
  recover();
  finish();
  attempt->is_over = true;
}

void FullySharded::Engine::keep_changes() {
  for (Unit& unit : units) unsharding.keep_changes(unit);
}

void FullySharded::Engine::after_step() {
  unsharding.end_iteration();
  for (Unit& unit : units) {
    // What an Autocast has cast of the parameters is out of date, be it around several steps.
    unit.memory->bump_version();
    unit.forget_changes();
  }
  if (fsdp::keeps_whole(options.sharding)) unsharding.unshard_all();
  refreshed_ = kept_versions();
}

/// Counts the changes of the parts: the same on every rank, since each has a slice of every
/// parameter, be it empty.
uint64_t FullySharded::Engine::kept_versions() const {
  uint64_t sum = 0;
  for (const Unit& unit : units) sum += unit.kept.version();
  return sum;
}

FullySharded::FullySharded(nn::Module& module, const FsdpOptions& options, const WrapPolicy& policy)
    : engine_(std::make_shared<Engine>(module, options, policy)) {
  engine_->register_hooks();
}

void FullySharded::follow(const Tensors& outputs) {
  const auto is_trained = [](const Unit& unit) { return unit.count_trained() > 0; };
  if (std::ranges::none_of(engine_->units, is_trained)) return;
  register_output_hook(outputs, while_alive(engine_->weak_from_this(), &Engine::begin));
}

void FullySharded::Engine::for_each_local(
    const Tensors& parameters, const std::function<void(Parameter& p, Tensor place)>& visit) {
  const NoGrad guard;
  std::unordered_set<const void*> asked;
  for (const Tensor& parameter : parameters) asked.insert(parameter.id());
  for (Unit& unit : units) {
    for (Parameter& p : unit.parameters) {
      if (p.has_local && asked.contains(p.whole.id())) visit(p, fsdp::place_in_flat(p, unit.local));
    }
  }
}

NamedTensors FullySharded::named_parameters() const {
  // In the order of the model, whatever the units.
  NamedTensors result = engine_->module.named_parameters();
  for (auto& [name, tensor] : result) tensor = fsdp::find_named(engine_->units, name).second->slice;
  return result;
}

optim::ParameterGroups FullySharded::shard(const optim::ParameterGroups& groups) const {
  std::unordered_map<const void*, Tensor> slices;
  for (const Unit& unit : engine_->units) {
    for (const Parameter& p : unit.parameters) slices[p.whole.id()] = p.slice;
  }
  optim::ParameterGroups result = groups;
  for (optim::ParameterGroup& group : result) {
    for (auto& [name, tensor] : group.parameters) {
      const auto found = slices.find(tensor.id());
      WEFT_CHECK(found != slices.end(), "fsdp: \"{}\" is not a parameter of the sharded model",
                 name);
      tensor = found->second;
    }
  }
  return result;
}

void FullySharded::keep_changes() { engine_->keep_changes(); }
void FullySharded::after_step() { engine_->after_step(); }
void FullySharded::refresh() {
  if (engine_->is_stale()) engine_->after_step();
}

void FullySharded::broadcast_buffers() {
  for (const auto& [name, buffer] : engine_->module.named_buffers()) engine_->synchronize(buffer);
}

double FullySharded::grad_norm() const {
  std::vector<Tensor> gradients;
  for (const Unit& unit : engine_->units) {
    for (const Parameter& p : unit.parameters) {
      if (p.slice.grad().defined()) gradients.push_back(p.slice.grad());
    }
  }
  return exact_norm(gradients, engine_->options.shard.get());
}

void FullySharded::drop_local_gradients(const Tensors& parameters) {
  engine_->for_each_local(parameters, [](Parameter& p, Tensor place) {
    ops::zero_(place);
    p.has_local = false;
  });
  for (Unit& unit : engine_->units) {
    if (std::ranges::none_of(unit.parameters, &Parameter::has_local)) unit.local = {};
  }
}

void FullySharded::scale_local_gradients(const Tensors& parameters, double factor) {
  engine_->for_each_local(parameters, [&](Parameter&, Tensor place) {
    ops::mul_(place, ops::full({}, factor, place.dtype(), place.device()));
  });
}

std::shared_ptr<void> FullySharded::no_sync() {
  ++engine_->local_depth;
  return {nullptr, [engine = engine_](void*) { --engine->local_depth; }};
}

void FullySharded::synchronize() { engine_->finish_alone(); }

FullySharded::Memory FullySharded::memory() const {
  Memory memory;
  const auto bytes = [](const Tensor& t) {
    return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  };
  for (const Unit& unit : engine_->units) {
    memory.parameters += bytes(unit.kept);
    memory.gradients += bytes(unit.kept_gradient);
    memory.accumulated += bytes(unit.local);
  }
  memory.unsharded = engine_->unsharding.held.now;
  memory.peak_unsharded = engine_->unsharding.held.peak;
  memory.peak_reducing = engine_->reduction.held.peak;
  return memory;
}

void FullySharded::reset_peak_memory() {
  for (auto* held : {&engine_->unsharding.held, &engine_->reduction.held}) held->peak = held->now;
}

std::vector<std::pair<std::string, int64_t>> FullySharded::units() const {
  std::vector<std::pair<std::string, int64_t>> result;
  for (const Unit& unit : engine_->units) result.emplace_back(unit.name, unit.padded);
  return result;
}

int64_t FullySharded::unshardings() const { return engine_->unsharding.count; }

int64_t FullySharded::bytes_sent() const {
  const CommunicatorPtr& replicate = engine_->options.replicate;
  return engine_->unsharding.group().traffic().sent + engine_->reduction.group().traffic().sent +
         (replicate ? replicate->traffic().sent : 0) - engine_->told;
}

}  // namespace weft::dist
