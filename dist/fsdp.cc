#include "dist/fsdp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/transfer.h"
#include "core/view.h"
#include "dist/ddp.h"
#include "dist/exact_sum.h"
#include "nn/meta.h"

namespace weft::dist {
namespace {

struct Parameter {
  std::string name;
  Tensor whole;  // the model's; a view of the unit's memory
  Shape shape;
  int64_t numel = 0;
  int64_t offset = 0;  // in the flat tensor
  Tensor slice;        // what this rank keeps of it: a leaf, [kept]
  int64_t kept = 0;
  int64_t first = 0;  // of the slice, in the parameter
};

struct Unit {
  std::string name;
  std::vector<Parameter> parameters;
  DType dtype = DType::f32;  // of the parts
  DType gathered_dtype = DType::f32;
  DType reduce_dtype = DType::f32;
  Device device = {};       // of the whole
  Device kept_device = {};  // of the parts
  int64_t padded = 0;
  int64_t part = 0;                 // padded / ranks of the shard group
  Tensor kept;                      // [part]: this rank's
  std::shared_ptr<Storage> memory;  // of the whole
  bool is_resident = false;
  // A fetch ahead of its use.
  Tensor incoming;
  Work fetch;
  // Gradients.
  Tensor kept_gradient;           // [part]
  Tensor local;                   // [padded]: gathered under no_sync, in reduce_dtype
  int missing = 0;                // trained parameters without gradient so far
  bool was_reduced = false;       // in this iteration
  bool has_new_gradient = false;  // kept_gradient belongs to this iteration
  struct Reduction {
    Tensor whole, part;
    Work scatter, replicate;
  };
  std::vector<Reduction> reductions;

  int64_t gathered_bytes() const { return padded * static_cast<int64_t>(itemsize(gathered_dtype)); }
};

/// A tensor on a unit's memory that keeps no count of changes: what is gathered again is no change.
Tensor flat_view(const Unit& unit) {
  const auto alias = std::make_shared<Storage>(unit.memory->data(), unit.memory->bytes(),
                                               unit.memory->device(), [] {});
  return Tensor::view_of(alias, {unit.padded}, {1}, 0, unit.gathered_dtype);
}

void copy_into(Tensor target, const Tensor& source) {
  const NoGrad guard;
  ops::copy_(target, source);
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

class FullySharded::Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(nn::Module& module, const FsdpOptions& options, const WrapPolicy& policy)
      : module_(module), options_(options) {
    WEFT_CHECK(options.shard, "fsdp: a group of ranks to shard over is needed");
    WEFT_CHECK(options.average == ReduceOp::kMean || options.average == ReduceOp::kSum,
               "fsdp: gradients are averaged or summed, not reduced by {}",
               dist::name(options.average));
    WEFT_CHECK(options.gathered_units >= 2, "fsdp: gathered_units must be at least 2, got {}",
               options.gathered_units);
    std::vector<int> all(options.shard->size());
    std::iota(all.begin(), all.end(), 0);
    // Gatherings do not queue behind reductions.
    gather_group_ = options.shard->group(all, "fsdp gather");
    reduce_group_ = options.shard->group(all, "fsdp reduce");
    for (Communicator* group : {options.shard.get(), options.replicate.get()}) {
      // The list keeps the whole parameters alive: it must not outlive this line.
      if (group) verify_same_tensors(*group, module.state_dict(), "fsdp");
    }
    for (const auto& [name, buffer] : module.named_buffers()) {
      nn::materialize(buffer);
      synchronize(buffer);
    }
    assign_units(policy);
    for (Unit& unit : units_) build(unit);
    refreshed_ = kept_versions();
  }

  /// Apart from the constructor, which has no shared pointer to give.
  void register_hooks() {
    for (size_t u = 0; u < units_.size(); ++u) {
      for (size_t p = 0; p < units_[u].parameters.size(); ++p) {
        const Parameter& parameter = units_[u].parameters[p];
        if (!parameter.whole.requires_grad()) continue;
        register_ready_hook(parameter.whole, [weak = weak_from_this(), u, p] {
          if (const auto self = weak.lock()) self->on_ready(self->units_[u], p);
        });
      }
    }
  }

  bool keeps_whole() const {
    return options_.sharding == Sharding::kZero1 || options_.sharding == Sharding::kZero2;
  }
  int shard_rank() const { return options_.shard->rank(); }
  int shard_size() const { return options_.shard->size(); }
  int replicas() const { return options_.replicate ? options_.replicate->size() : 1; }

  // --- Construction.

  void synchronize(const Tensor& tensor) {
    if (options_.replicate) options_.replicate->broadcast(tensor).wait();
    options_.shard->broadcast(tensor).wait();
  }

  void assign_units(const WrapPolicy& policy) {
    std::unordered_map<const void*, std::string> names;
    for (const auto& [name, tensor] : module_.named_parameters()) names[tensor.id()] = name;
    std::unordered_set<const void*> taken;
    const auto make_unit = [&](const std::string& name, nn::Module& module) {
      Unit unit;
      unit.name = name.empty() ? "root" : name;
      for (const auto& [inner, tensor] : module.named_parameters()) {
        if (!taken.insert(tensor.id()).second) continue;
        unit.parameters.push_back({.name = names.at(tensor.id()),
                                   .whole = tensor,
                                   .shape = tensor.shape(),
                                   .numel = tensor.numel()});
      }
      if (!unit.parameters.empty()) units_.push_back(std::move(unit));
    };
    // Inner modules first: what they take is no longer their parents'.
    auto modules = module_.named_modules();
    for (auto entry = modules.rbegin(); entry != modules.rend(); ++entry) {
      const auto& [name, module] = *entry;
      if (name.empty() || (policy && policy(name, *module))) make_unit(name, *module);
    }
    std::reverse(units_.begin(), units_.end());
  }

  void build(Unit& unit) {
    const NoGrad guard;
    const MemoryScope scope(MemoryKind::kParameters);
    unit.dtype = unit.parameters[0].whole.dtype();
    unit.device = unit.parameters[0].whole.device();
    unit.kept_device = options_.cpu_offload ? Device{} : unit.device;
    int64_t offset = 0;
    for (Parameter& p : unit.parameters) {
      WEFT_CHECK(p.whole.dtype() == unit.dtype,
                 "fsdp: the unit {} holds {} {} and {} {}; a unit has one dtype", unit.name,
                 unit.parameters[0].name, unit.dtype, p.name, p.whole.dtype());
      WEFT_CHECK(p.whole.device() == unit.device,
                 "fsdp: the unit {} holds {} on {} and {} on {}; a unit has one device", unit.name,
                 unit.parameters[0].name, unit.device, p.name, p.whole.device());
      p.offset = offset;
      offset += p.numel;
    }
    const auto chosen = [&](DType asked) { return asked == DType::f32 ? unit.dtype : asked; };
    unit.gathered_dtype = chosen(options_.param_dtype);
    unit.reduce_dtype = chosen(options_.reduce_dtype);
    unit.part = (offset + shard_size() - 1) / shard_size();
    unit.padded = unit.part * shard_size();
    unit.missing = count_trained(unit);

    const bool in_place =
        keeps_whole() && unit.gathered_dtype == unit.dtype && unit.kept_device == unit.device;
    Tensor flat = Tensor::zeros({unit.padded}, unit.dtype, unit.device);
    for (const Parameter& p : unit.parameters) {
      const bool was_meta = !nn::has_memory(p.whole);
      nn::materialize(p.whole);
      synchronize(p.whole);
      copy_into(view::narrow(flat, 0, p.offset, p.numel), view::reshape(p.whole, {p.numel}));
      if (was_meta) nn::dematerialize(p.whole);
    }
    const int64_t begin = shard_rank() * unit.part;
    const Tensor own = view::narrow(flat, 0, begin, unit.part);
    unit.kept = in_place                          ? own
                : unit.kept_device == unit.device ? ops::clone(own)
                                                  : ops::to(own, unit.kept_device);
    if (in_place) {
      unit.memory = flat.storage();
      unit.is_resident = true;
    } else {
      flat = {};
      const size_t index = &unit - units_.data();
      unit.memory = std::make_shared<Storage>(
          static_cast<size_t>(unit.gathered_bytes()), unit.device,
          [alive = std::weak_ptr<Engine*>(alive_), index] {
            const auto engine = alive.lock();
            WEFT_CHECK(engine, "fsdp: a parameter is used after its FullySharded is gone");
            (*engine)->on_touch((*engine)->units_[index]);
          });
    }
    for (Parameter& p : unit.parameters) {
      const bool trains = p.whole.requires_grad();
      p.whole.set_data(Tensor::view_of(unit.memory, p.shape, contiguous_strides(p.shape), p.offset,
                                       unit.gathered_dtype));
      const int64_t low = std::clamp<int64_t>(begin - p.offset, 0, p.numel);
      const int64_t high = std::clamp<int64_t>(begin + unit.part - p.offset, 0, p.numel);
      p.first = low;
      p.kept = high - low;
      p.slice = view::narrow(unit.kept, 0, place_of(p, begin), p.kept);
      p.slice.set_requires_grad(trains);
    }
    if (keeps_whole() && !in_place) gather(unit);
  }

  /// Where a parameter's slice begins in the kept part.
  int64_t place_of(const Parameter& p, int64_t begin) const {
    return p.kept == 0 ? 0 : p.offset + p.first - begin;
  }
  int64_t begin_of(const Unit& unit) const { return shard_rank() * unit.part; }

  static int count_trained(const Unit& unit) {
    int count = 0;
    for (const Parameter& p : unit.parameters) count += p.whole.requires_grad();
    return count;
  }

  // --- Parameters come and go.

  void on_touch(Unit& unit) {
    std::lock_guard lock(touch_mutex_);
    if (unit.is_resident) return;
    make_room();
    gather(unit);
    prefetch_after(unit);
  }

  /// Issues the gathering of a unit into `out`.
  Work start_gather(Unit& unit, const Tensor& out) {
    ++gatherings_;
    const NoGrad guard;
    const Tensor sent = ops::to(ops::cast(unit.kept, unit.gathered_dtype), unit.device);
    return gather_group_->all_gather(out, sent);
  }

  void gather(Unit& unit) {
    const MemoryScope scope(MemoryKind::kGathered);
    // A forward that no backward followed, in evaluation, is no part of the next iteration.
    const bool is_expected =
        order_.size() < last_order_.size() && last_order_[order_.size()] == &unit;
    if (!is_expected && !last_order_.empty() && last_order_[0] == &unit) order_.clear();
    if (unit.incoming.defined()) {
      unit.fetch.wait();
      unit.memory->allocate();
      copy_same_layout(unit.incoming, flat_view(unit));
      unit.incoming = {};
      unit.fetch = {};
      gathered_now_ -= unit.gathered_bytes();
    } else {
      unit.memory->allocate();
      start_gather(unit, flat_view(unit)).wait();
    }
    unit.is_resident = true;
    residents_.push_back(&unit);
    order_.push_back(&unit);
    gathered_now_ += unit.gathered_bytes();
    note_gathered();
  }

  void note_gathered() { peak_gathered_ = std::max(peak_gathered_, gathered_now_); }

  /// Lets the units go that were gathered first. The last one stays: an operation may be reading it
  /// together with the one to come.
  void make_room() {
    if (options_.sharding != Sharding::kFullShard) return;
    while (static_cast<int>(residents_.size()) >= options_.gathered_units) {
      let_go(*residents_.front());
    }
  }

  void let_go(Unit& unit) {
    if (!unit.is_resident || keeps_whole()) return;
    unit.memory->free();
    unit.is_resident = false;
    std::erase(residents_, &unit);
    gathered_now_ -= unit.gathered_bytes();
  }

  void prefetch_after(Unit& unit) {
    const size_t place = order_.size() - 1;
    if (!options_.prefetches || place + 1 >= last_order_.size() || last_order_[place] != &unit)
      return;
    Unit& next = *last_order_[place + 1];
    if (next.is_resident || next.incoming.defined()) return;
    const MemoryScope scope(MemoryKind::kGathered);
    next.incoming = Tensor::empty({next.padded}, next.gathered_dtype, next.device);
    gathered_now_ += next.gathered_bytes();
    note_gathered();
    next.fetch = start_gather(next, next.incoming);
  }

  // --- Gradients leave.

  void begin() {
    if (is_running_) return;
    is_running_ = true;
    // Gradients that zero_grad() has dropped make room for the new ones.
    for (Unit& unit : units_) {
      if (!has_slice_gradient(unit)) unit.kept_gradient = {};
    }
    weft::after_backward([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->finish();
    });
  }

  void on_ready(Unit& unit, size_t) {
    begin();
    if (!synchronizes_) return;  // collected when the pass is over
    // A parameter used in several recomputed segments comes in parts; sums do not mind.
    if (--unit.missing > 0) return;
    if (options_.sharding != Sharding::kZero1) {
      reduce(unit);
      if (options_.sharding != Sharding::kZero2) let_go(unit);
    }
  }

  bool has_gradients(const Unit& unit) const {
    if (unit.local.defined()) return true;
    return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                       [](const Parameter& p) { return p.whole.grad().defined(); });
  }

  /// The unit's gradients, and what was gathered of them under no_sync, as one flat tensor.
  Tensor take_flat(Unit& unit) {
    const NoGrad guard;
    Tensor flat = unit.local.defined()
                      ? unit.local
                      : Tensor::zeros({unit.padded}, unit.reduce_dtype, unit.device);
    for (Parameter& p : unit.parameters) {
      const Tensor gradient = p.whole.grad();
      if (!gradient.defined()) continue;
      Tensor place = view::reshape(view::narrow(flat, 0, p.offset, p.numel), p.shape);
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

  void reduce(Unit& unit) {
    // Two units' gradients on their way at a time.
    while (reducing_.size() >= 2) complete(*reducing_.front());
    const MemoryScope scope(MemoryKind::kBuckets);
    Unit::Reduction r;
    r.whole = take_flat(unit);
    assign_memory(r.whole, MemoryKind::kBuckets);  // it may have been gathered under no_sync
    r.part = Tensor::empty({unit.part}, unit.reduce_dtype, unit.device);
    reducing_now_ += static_cast<int64_t>(r.whole.nbytes() + r.part.nbytes());
    peak_reducing_ = std::max(peak_reducing_, reducing_now_);
    r.scatter = reduce_group_->reduce_scatter(r.part, r.whole);
    unit.reductions.push_back(std::move(r));
    if (std::find(reducing_.begin(), reducing_.end(), &unit) == reducing_.end()) {
      reducing_.push_back(&unit);
    }
    unit.was_reduced = true;
    unit.missing = count_trained(unit);
  }

  void complete(Unit& unit) {
    const NoGrad guard;
    for (Unit::Reduction& r : unit.reductions) {
      r.scatter.wait();
      if (replicas() > 1) options_.replicate->all_reduce(r.part).wait();
      Tensor part = ops::to(ops::cast(r.part, unit.dtype), unit.kept_device);
      if (options_.average == ReduceOp::kMean) {
        const double ranks = static_cast<double>(shard_size()) * replicas();
        part = ops::div(part, ops::to(Tensor::full({1}, ranks, unit.dtype), unit.kept_device));
      }
      if (!unit.has_new_gradient) {
        // Gradients that zero_grad() has dropped do not count; others are added to.
        if (!has_slice_gradient(unit)) unit.kept_gradient = {};
        unit.has_new_gradient = true;
      }
      if (unit.kept_gradient.defined()) {
        ops::add_(unit.kept_gradient, part);
      } else {
        unit.kept_gradient = part;
        assign_memory(part, MemoryKind::kGradients);
      }
      reducing_now_ -= static_cast<int64_t>(r.whole.nbytes() + r.part.nbytes());
    }
    unit.reductions.clear();
    std::erase(reducing_, &unit);
  }

  static bool has_slice_gradient(const Unit& unit) {
    return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                       [](const Parameter& p) { return p.slice.grad().defined(); });
  }

  void finish() {
    is_running_ = false;
    for (Unit& unit : units_) {
      if (count_trained(unit) == 0) continue;
      if (!synchronizes_) {
        // Kept in the dtype in which gradients travel: the sum of many must not be rounded to the
        // parameters' narrow one each time.
        if (!has_gradients(unit)) continue;
        unit.local = take_flat(unit);
        assign_memory(unit.local, MemoryKind::kGradients);
      } else if (!unit.was_reduced || has_gradients(unit)) {
        reduce(unit);  // also where this rank has none: others may
      }
    }
    while (!reducing_.empty()) complete(*reducing_.front());
    if (synchronizes_) hand_out();
    end_iteration();
  }

  void hand_out() {
    for (Unit& unit : units_) {
      unit.was_reduced = unit.has_new_gradient = false;
      if (!unit.kept_gradient.defined()) continue;
      for (Parameter& p : unit.parameters) {
        if (!p.whole.requires_grad()) continue;
        p.slice.set_grad(view::narrow(unit.kept_gradient, 0, place_of(p, begin_of(unit)), p.kept));
      }
    }
  }

  /// What was gathered will be out of date when the optimizer has run.
  void end_iteration() {
    for (Unit& unit : units_) {
      unit.missing = count_trained(unit);
      if (unit.incoming.defined()) {
        unit.fetch.wait();
        unit.incoming = {};
        unit.fetch = {};
        gathered_now_ -= unit.gathered_bytes();
      }
      let_go(unit);
    }
    if (!order_.empty()) last_order_ = std::exchange(order_, {});
  }

  void after_step() {
    end_iteration();
    if (keeps_whole()) gather_whole();
    refreshed_ = kept_versions();
  }

  /// Counts the changes of the parts: the same on every rank, since each has a slice of every
  /// parameter, be it empty.
  uint64_t kept_versions() const {
    uint64_t sum = 0;
    for (const Unit& unit : units_) sum += unit.kept.version();
    return sum;
  }
  bool is_stale() const { return kept_versions() != refreshed_; }

  void gather_whole() {
    std::vector<Work> works;
    for (Unit& unit : units_) works.push_back(start_gather(unit, flat_view(unit)));
    for (const Work& work : works) work.wait();
  }

  double grad_norm() const {
    std::vector<Tensor> gradients;
    for (const Unit& unit : units_) {
      // The padding is zero.
      if (unit.kept_gradient.defined() && has_slice_gradient(unit)) {
        gradients.push_back(unit.kept_gradient);
      }
    }
    return exact_norm(gradients, options_.shard.get());
  }

  // --- States.

  /// The parameter that an entry of the model's state_dict() stands for; null for a buffer.
  std::pair<Unit*, Parameter*> find(const Tensor& entry) {
    for (Unit& unit : units_) {
      if (entry.storage() != unit.memory) continue;
      for (Parameter& p : unit.parameters) {
        if (p.offset == entry.offset() && p.shape == entry.shape()) return {&unit, &p};
      }
    }
    return {nullptr, nullptr};
  }

  NamedTensors full_state_dict(bool everywhere) {
    const NoGrad guard;
    const bool keeps = everywhere || shard_rank() == 0;
    std::unordered_map<const Parameter*, Tensor> whole;
    for (Unit& unit : units_) {
      const Tensor flat = Tensor::empty({unit.padded}, unit.dtype, unit.device);
      gather_group_->all_gather(flat, ops::to(unit.kept, unit.device)).wait();
      if (!keeps) continue;
      for (const Parameter& p : unit.parameters) {
        whole[&p] = ops::clone(view::reshape(view::narrow(flat, 0, p.offset, p.numel), p.shape));
      }
    }
    NamedTensors state;
    if (!keeps) return state;
    for (const auto& [name, entry] : module_.state_dict()) {
      const Parameter* p = find(entry).second;
      state.emplace_back(name, p ? whole.at(p) : ops::clone(entry));
    }
    return state;
  }

  void load_full_state_dict(const NamedTensors& state) {
    const NoGrad guard;
    const std::unordered_map<std::string, Tensor> by_name(state.begin(), state.end());
    const NamedTensors entries = module_.state_dict();
    for (const auto& [name, entry] : entries) {
      const auto found = by_name.find(name);
      WEFT_CHECK(found != by_name.end(), "fsdp: the state lacks \"{}\"", name);
      WEFT_CHECK(found->second.shape() == entry.shape(),
                 "fsdp: \"{}\" in the state is {}, expected shape {}", name, found->second,
                 entry.shape());
    }
    WEFT_CHECK(by_name.size() == entries.size(), "fsdp: the state holds {} tensors, the model {}",
               by_name.size(), entries.size());
    for (const auto& [name, entry] : entries) {
      const Tensor& source = by_name.at(name);
      if (const Parameter* p = find(entry).second) {
        copy_into(p->slice, ops::to(slice_of(*p, source), p->slice.device()));
      } else {
        copy_into(entry, source);
      }
    }
    after_step();
  }

  static Tensor slice_of(const Parameter& p, const Tensor& whole) {
    const NoGrad guard;
    return view::narrow(view::reshape(ops::contiguous(whole), {p.numel}), 0, p.first, p.kept);
  }

  /// Elements of a parameter on each rank of the shard group.
  std::vector<int64_t> counts_of(const Unit& unit, const Parameter& p) const {
    std::vector<int64_t> counts;
    for (int r = 0; r < shard_size(); ++r) {
      const int64_t begin = r * unit.part;
      const int64_t low = std::clamp<int64_t>(begin - p.offset, 0, p.numel);
      const int64_t high = std::clamp<int64_t>(begin + unit.part - p.offset, 0, p.numel);
      counts.push_back(high - low);
    }
    return counts;
  }

  optim::OptimizerState full_optimizer_state(const optim::OptimizerState& sharded,
                                             bool everywhere) {
    const NoGrad guard;
    optim::OptimizerState full{.tensors = {}, .groups = sharded.groups};
    for (const auto& [name, slice] : sharded.tensors) {
      const size_t dot = name.rfind('.');
      if (name.substr(dot) == ".step") {
        full.tensors.emplace_back(name, slice);
        continue;
      }
      const auto [unit, p] = named(name.substr(0, dot));
      const Tensor whole = Tensor::empty(p->shape, slice.dtype(), unit->device);
      const Tensor sent = ops::to(slice, unit->device);
      gather_group_->all_gather(whole, sent, counts_of(*unit, *p)).wait();
      if (everywhere || shard_rank() == 0) full.tensors.emplace_back(name, whole);
    }
    if (!everywhere && shard_rank() != 0) full.tensors.clear();
    return full;
  }

  optim::OptimizerState shard_optimizer_state(const optim::OptimizerState& full) {
    const NoGrad guard;
    optim::OptimizerState sharded{.tensors = {}, .groups = full.groups};
    for (const auto& [name, whole] : full.tensors) {
      const size_t dot = name.rfind('.');
      if (dot != std::string::npos && name.substr(dot) == ".step") {
        sharded.tensors.emplace_back(name, whole);
        continue;
      }
      const auto [unit, p] = named(name.substr(0, dot));
      WEFT_CHECK(whole.shape() == p->shape, "fsdp: \"{}\" in the state is {}, expected shape {}",
                 name, whole, p->shape);
      sharded.tensors.emplace_back(name, ops::clone(slice_of(*p, whole)));
    }
    return sharded;
  }

  std::pair<Unit*, Parameter*> named(const std::string& name) {
    for (Unit& unit : units_) {
      for (Parameter& p : unit.parameters) {
        if (p.name == name) return {&unit, &p};
      }
    }
    WEFT_FAIL("fsdp: the model has no parameter \"{}\"", name);
  }

  nn::Module& module_;
  const FsdpOptions options_;
  CommunicatorPtr gather_group_, reduce_group_;
  std::vector<Unit> units_;
  bool synchronizes_ = true;
  bool is_running_ = false;

  std::mutex touch_mutex_;
  std::vector<Unit*> residents_;           // in order of gathering
  std::vector<Unit*> order_, last_order_;  // of gatherings, in this iteration and the last
  std::vector<Unit*> reducing_;
  uint64_t refreshed_ = 0;
  int64_t gatherings_ = 0;
  int64_t gathered_now_ = 0, peak_gathered_ = 0, reducing_now_ = 0, peak_reducing_ = 0;
  // Cleared when the engine goes; memory that is touched later cannot be gathered any more.
  std::shared_ptr<Engine*> alive_ = std::make_shared<Engine*>(this);
};

FullySharded::FullySharded(nn::Module& module, const FsdpOptions& options, const WrapPolicy& policy)
    : engine_(std::make_shared<Engine>(module, options, policy)) {
  engine_->register_hooks();
}

FullySharded::~FullySharded() = default;

NamedTensors FullySharded::named_parameters() const {
  // In the order of the model, whatever the units.
  std::map<std::string, Tensor> slices;
  for (const Unit& unit : engine_->units_) {
    for (const Parameter& p : unit.parameters) slices[p.name] = p.slice;
  }
  NamedTensors result;
  for (const auto& [name, tensor] : engine_->module_.named_parameters()) {
    result.emplace_back(name, slices.at(name));
  }
  return result;
}

optim::ParameterGroups FullySharded::shard(const optim::ParameterGroups& groups) const {
  std::unordered_map<const void*, Tensor> slices;
  for (const Unit& unit : engine_->units_) {
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

void FullySharded::after_step() { engine_->after_step(); }
void FullySharded::refresh() {
  if (engine_->is_stale()) engine_->after_step();
}

void FullySharded::broadcast_buffers() {
  for (const auto& [name, buffer] : engine_->module_.named_buffers()) engine_->synchronize(buffer);
}

double FullySharded::grad_norm() const { return engine_->grad_norm(); }

FullySharded::NoSync::NoSync(FullySharded& fsdp)
    : fsdp_(fsdp), previous_(fsdp.engine_->synchronizes_) {
  fsdp.engine_->synchronizes_ = false;
}
FullySharded::NoSync::~NoSync() { fsdp_.engine_->synchronizes_ = previous_; }

void FullySharded::synchronize() { engine_->finish(); }

NamedTensors FullySharded::full_state_dict(bool everywhere) {
  return engine_->full_state_dict(everywhere);
}
void FullySharded::load_full_state_dict(const NamedTensors& state) {
  engine_->load_full_state_dict(state);
}
optim::OptimizerState FullySharded::full_optimizer_state(const optim::OptimizerState& sharded,
                                                         bool everywhere) {
  return engine_->full_optimizer_state(sharded, everywhere);
}
optim::OptimizerState FullySharded::shard_optimizer_state(const optim::OptimizerState& full) const {
  return engine_->shard_optimizer_state(full);
}

FullySharded::Part FullySharded::sharded_state_dict() const {
  const NoGrad guard;
  Part part;
  part.layout = nlohmann::json::object();
  for (const auto& [name, entry] : engine_->module_.state_dict()) {
    const Parameter* p = engine_->find(entry).second;
    if (!p && engine_->shard_rank() != 0) continue;  // buffers are whole on every rank
    part.slices.emplace_back(name, p ? ops::clone(p->slice) : ops::clone(entry));
    part.layout[name] = {
        {"shape", std::vector<int64_t>(entry.shape().begin(), entry.shape().end())},
        {"first", p ? p->first : 0}};
  }
  return part;
}

NamedTensors FullySharded::assemble(const std::vector<Part>& parts) {
  const NoGrad guard;
  NamedTensors state;
  std::unordered_map<std::string, size_t> places;
  std::unordered_map<std::string, int64_t> filled;
  for (const Part& part : parts) {
    for (const auto& [name, slice] : part.slices) {
      const nlohmann::json& layout = part.layout.at(name);
      const Shape shape(layout.at("shape").get<std::vector<int64_t>>());
      const auto [place, is_new] = places.try_emplace(name, state.size());
      if (is_new) state.emplace_back(name, Tensor::zeros(shape, slice.dtype()));
      Tensor& whole = state[place->second].second;
      const int64_t first = layout.at("first").get<int64_t>();
      WEFT_CHECK(whole.shape() == shape && first >= 0 && first + slice.numel() <= whole.numel(),
                 "fsdp: the parts of \"{}\" do not fit together", name);
      copy_into(view::narrow(view::reshape(whole, {whole.numel()}), 0, first, slice.numel()),
                view::reshape(slice, {slice.numel()}));
      filled[name] += slice.numel();
    }
  }
  for (const auto& [name, whole] : state) {
    WEFT_CHECK(filled[name] == whole.numel(), "fsdp: of \"{}\" {} of {} elements are there", name,
               filled[name], whole.numel());
  }
  return state;
}

FullySharded::Memory FullySharded::memory() const {
  Memory memory;
  for (const Unit& unit : engine_->units_) {
    memory.parameters += static_cast<int64_t>(unit.kept.nbytes());
    if (unit.kept_gradient.defined()) {
      memory.gradients += static_cast<int64_t>(unit.kept_gradient.nbytes());
    }
  }
  for (const Unit& unit : engine_->units_) {
    if (unit.local.defined()) memory.accumulated += static_cast<int64_t>(unit.local.nbytes());
  }
  memory.gathered = engine_->gathered_now_;
  memory.peak_gathered = engine_->peak_gathered_;
  memory.peak_reducing = engine_->peak_reducing_;
  return memory;
}

void FullySharded::reset_peak_memory() {
  engine_->peak_gathered_ = engine_->gathered_now_;
  engine_->peak_reducing_ = engine_->reducing_now_;
}

std::vector<std::pair<std::string, int64_t>> FullySharded::units() const {
  std::vector<std::pair<std::string, int64_t>> result;
  for (const Unit& unit : engine_->units_) result.emplace_back(unit.name, unit.padded);
  return result;
}

int64_t FullySharded::gatherings() const { return engine_->gatherings_; }

int64_t FullySharded::bytes_sent() const {
  return engine_->gather_group_->traffic().sent + engine_->reduce_group_->traffic().sent +
         (engine_->options_.replicate ? engine_->options_.replicate->traffic().sent : 0);
}

}  // namespace weft::dist
