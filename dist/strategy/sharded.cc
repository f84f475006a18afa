// fsdp, zero1 to zero3, hsdp: one implementation, which keeps more or less of the model whole.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "dist/comm/device_mesh.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/data_parallel/fsdp_wire.h"
#include "dist/strategy/strategies.h"
#include "dist/strategy/strategy_kind.h"
#include "optim/optimizer_state.h"

namespace weft::dist {
namespace {

class Sharded : public Strategy {
 public:
  Sharded(std::string name, const FsdpOptions& options, std::string wrap)
      : name_(std::move(name)), options_(options), wrap_(std::move(wrap)) {
    options_.average = ReduceOp::kSum;
  }

  int data_size() const override { return options_.shard->size() * replicas(); }
  int data_rank() const override {
    const int row = options_.replicate ? options_.replicate->rank() : 0;
    return row * options_.shard->size() + options_.shard->rank();
  }
  void wrap(nn::Module& module, const ModelStructure& structure) override {
    fsdp_ = std::make_unique<FullySharded>(module, options_, wrap_policy(wrap_, structure.units));
  }
  optim::ParameterGroups groups(const optim::ParameterGroups& groups) override {
    return fsdp_->shard(groups);
  }
  bool cuts_parameters() const override { return true; }
  Tensors call(nn::Module& module, const std::function<Tensors()>& function) override {
    fsdp_->refresh();
    if (module.is_training()) fsdp_->broadcast_buffers();
    Tensors outputs = function();
    fsdp_->follow(outputs);
    return outputs;
  }
  void drop_local_gradients(const Tensors& parameters) override {
    fsdp_->drop_local_gradients(parameters);
  }
  void scale_local_gradients(const Tensors& parameters, double factor) override {
    fsdp_->scale_local_gradients(parameters, factor);
  }
  void share_buffers(nn::Module&) override { fsdp_->broadcast_buffers(); }
  std::shared_ptr<void> no_sync() override { return fsdp_->no_sync(); }
  ExactSum squares(const Tensors& slices) override {
    ExactSum sum = Strategy::squares(slices);
    all_reduce(sum, *options_.shard);
    return sum;
  }
  void keep_changes() override { fsdp_->keep_changes(); }
  void after_step() override { fsdp_->after_step(); }
  bool keeps_whole_state() const override { return false; }
  NamedTensors model_state(nn::Module&) override { return fsdp_->full_state_dict(); }
  optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer) override {
    return fsdp_->full_optimizer_state(optimizer.state_dict());
  }
  void load_model_state(nn::Module&, const NamedTensors& state) override {
    fsdp_->load_full_state_dict(state);
  }
  void load_optimizer_state(optim::Optimizer& optimizer,
                            const optim::OptimizerState& state) override {
    optimizer.load_state_dict(fsdp_->shard_optimizer_state(state));
  }
  LocalTensors local_state(nn::Module&) override {
    const int copies = replicas(), copy = options_.replicate ? options_.replicate->rank() : 0;
    LocalTensors all;
    for (const FullySharded::Kept& kept : fsdp_->kept_state()) {
      TensorPlacement placement{.whole = kept.shape, .copies = copies, .copy = copy};
      if (!kept.is_buffer) placement.flat = {kept.first, kept.tensor.numel()};
      if (kept.is_buffer || numel(kept.shape) == 0) {
        placement.copies = data_rank() == 0 ? 1 : 0;
        placement.copy = 0;
      }
      all.push_back({kept.name, kept.tensor, placement});
    }
    return all;
  }
  int64_t padded_elements() const override {
    int64_t elements = 0;
    for (const auto& [name, padded] : fsdp_->units()) elements += padded;
    return elements;
  }
  std::string describe(int64_t parameters, int64_t state_tensors) const override {
    const int64_t ranks = options_.shard->size();
    const int64_t whole = options_.sharding == Sharding::kZero1   ? 2 * kElementBytes
                          : options_.sharding == Sharding::kZero2 ? kElementBytes
                                                                  : 0;
    const int64_t cut = kept_bytes(state_tensors) - whole;
    const std::string formula = whole > 0 ? fmt::format("({} + {} / F) P", whole, cut)
                                          : fmt::format("{} P / F, and unsharded units", cut);
    std::string text =
        fmt::format("{} on {} ranks, F = {}: {} = {} on each", name_, data_size(), ranks, formula,
                    megabytes(whole * parameters + cut * parameters / ranks));
    if (options_.param_dtype != DType::f32) {
      text += fmt::format("; parameters travel in {}", options_.param_dtype);
    } else if (options_.product_dtype != DType::f32) {
      text += fmt::format("; weights of products travel in {}", options_.product_dtype);
    }
    if (options_.reduce_dtype != DType::f32) {
      text += fmt::format("; gradients travel in {}", options_.reduce_dtype);
    }
    return text;
  }

 private:
  int replicas() const { return options_.replicate ? options_.replicate->size() : 1; }

  const std::string name_;
  FsdpOptions options_;
  const std::string wrap_;
  std::unique_ptr<FullySharded> fsdp_;
};

int64_t sum(const std::vector<int64_t>& elements) {
  return std::accumulate(elements.begin(), elements.end(), int64_t{0});
}

/// Elements of a unit, the root's number being -1, padded.
int64_t unit_elements(const ModelLayout& layout, int unit, int shard) {
  return padded(unit < 0 ? layout.root() : layout.units[unit], shard);
}
/// What of it travels.
fsdp::Wire wire_of(const ModelLayout& layout, int unit, const Sharing& sharing) {
  const bool is_narrowed = sharing.product_bytes < sharing.whole_bytes && sharing.shard > 1;
  return {.elements = unit_elements(layout, unit, sharing.shard),
          .narrowed = is_narrowed ? layout.products(unit) : 0,
          .item = sharing.whole_bytes,
          .narrow_item = sharing.product_bytes};
}

/// The units of a step's backward pass, in the order in which their gradients are complete: the
/// root last.
std::vector<int> reduce_order(const ModelLayout& layout) {
  std::vector<int> order(layout.units.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (layout.root() > 0) order.push_back(-1);
  return order;
}
std::vector<int64_t> reduced_units(const ModelLayout& layout, int shard) {
  std::vector<int64_t> elements;
  for (int unit : reduce_order(layout)) elements.push_back(unit_elements(layout, unit, shard));
  return elements;
}

/// Two units' gradients are on their way at a time, with the parts that they are summed into.
int64_t peak_of_buckets(const std::vector<int64_t>& units, int shard) {
  int64_t peak = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const int64_t before = i > 0 ? units[i - 1] : 0;
    peak = std::max(peak, (units[i] + before) + (units[i] + before) / shard);
  }
  return peak;
}

/// Bytes: a unit's gradients arrive whole, next to the parts that are complete: those of all units
/// but the two on their way. The root's behind the units arrive first and wait for the rest of it.
int64_t peak_of_gradients(const ModelLayout& layout, const std::vector<int64_t>& units,
                          const Sharing& sharing) {
  int64_t parts = 0, peak = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool is_root = layout.root() > 0 && i + 1 == units.size();
    const int64_t whole =
        is_root ? layout.root() : layout.units[layout.units.size() - 1 - i] + layout.root_behind;
    peak = std::max(peak, kElementBytes * parts + sharing.whole_bytes * whole);
    if (i >= 1) parts += units[i - 1] / sharing.shard;
  }
  return std::max(peak, kElementBytes * sum(units) / sharing.shard);
}

/// Bytes: two units at hand and the next on its way, or, of one that is narrowed, all of it in
/// both forms. What is sent of a narrowed one is a copy.
int64_t peak_of_unsharding(const ModelLayout& layout, const Sharing& sharing) {
  const std::vector<int> order = unshard_order(layout);
  const auto whole = [&](size_t i) {
    if (i >= order.size()) return int64_t{0};
    return sharing.whole_bytes * unit_elements(layout, order[i], sharing.shard);
  };
  const auto coming = [&](size_t i, bool with_sent) {
    if (i >= order.size()) return int64_t{0};
    const fsdp::Wire wire = wire_of(layout, order[i], sharing);
    return wire.bytes() + (with_sent && wire.narrowed > 0 ? wire.bytes() / sharing.shard : 0);
  };
  int64_t peak = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    peak = std::max(peak, whole(i) + whole(i + 1) + coming(i + 2, true));
    if (wire_of(layout, order[i], sharing).narrowed == 0) continue;
    peak = std::max(peak, (i > 0 ? whole(i - 1) : 0) + whole(i) + coming(i, false));
  }
  return peak;
}

std::string unit_name(int unit) { return unit < 0 ? "root" : fmt::format("unit {}", unit); }

/// A step's schedule: a unit is unsharded while the one before it computes; two units' gradients
/// are on their way at a time; what zero1 reduces and what zero1 and zero2 unshard, hides behind
/// nothing.
class ShardedStep {
 public:
  ShardedStep(Sharding sharding, const RankWork& rank, const Sharing& sharing,
              const GroupSeconds& seconds, int64_t images)
      : units_(rank, sharing, seconds, images, clock_),
        layout_(rank.layout),
        sharing_(sharing),
        work_(rank.work),
        seconds_(seconds),
        reshards_(sharding == Sharding::kFullShard),
        reduces_early_(sharding != Sharding::kZero1),
        order_(unshard_order(layout_)) {}

  Timeline run() {
    const int units = static_cast<int>(layout_.units.size());
    if (layout_.root_before > 0) touch(-1);
    clock_.compute("forward root", work_.before.forward);
    for (int u = 0; u < units; ++u) {
      touch(u);
      units_.forward(u);
    }
    if (layout_.root_behind > 0) touch(-1);
    clock_.compute("forward root", work_.behind.forward);
    clock_.compute("backward root", work_.behind.backward);
    for (int u = units - 1; u >= 0; --u) {
      touch(u);
      units_.backward(u);
      std::erase(resident_, u);
      if (reduces_early_) reduce(u);
    }
    clock_.compute("backward root", work_.before.backward);
    if (!reduces_early_) {
      for (int u = 0; u < units; ++u) reduce(u);
    }
    if (layout_.root() > 0) reduce(-1);
    while (!reducing_.empty()) complete();
    clock_.compute("optimizer", work_.optimizer);
    if (reshards_) return clock_.timeline();
    double end = clock_.now();
    for (int u = layout_.root() > 0 ? -1 : 0; u < units; ++u) end = unshard(u);
    clock_.wait(end);
    return clock_.timeline();
  }

 private:
  double gradient_bytes(int unit) const {
    return static_cast<double>(sharing_.gradient_bytes *
                               unit_elements(layout_, unit, sharing_.shard));
  }
  double unshard(int unit) {
    const auto bytes = static_cast<double>(wire_of(layout_, unit, sharing_).bytes());
    return clock_.launch("unshard", "all_gather " + unit_name(unit),
                         seconds_.shard(Collective::kAllGather, bytes));
  }

  void touch(int unit) {
    if (!reshards_) return;
    if (std::find(resident_.begin(), resident_.end(), unit) != resident_.end()) return;
    while (resident_.size() >= 2) resident_.pop_front();
    const auto coming = incoming_.find(unit);
    clock_.wait(coming != incoming_.end() ? coming->second : unshard(unit));
    incoming_.erase(unit);
    resident_.push_back(unit);
    if (++next_ < order_.size() &&
        std::find(resident_.begin(), resident_.end(), order_[next_]) == resident_.end()) {
      incoming_[order_[next_]] = unshard(order_[next_]);
    }
  }

  void reduce(int unit) {
    while (reducing_.size() >= 2) complete();
    const double end =
        clock_.launch("reduce", "reduce_scatter " + unit_name(unit),
                      seconds_.shard(Collective::kReduceScatter, gradient_bytes(unit)));
    reducing_.emplace_back(unit, end);
  }
  void complete() {
    const auto [unit, end] = reducing_.front();
    reducing_.pop_front();
    clock_.wait(end);
    if (sharing_.replicas == 1) return;
    clock_.wait(clock_.launch(
        "replicate", "all_reduce " + unit_name(unit),
        seconds_.replicate(Collective::kAllReduce, gradient_bytes(unit) / sharing_.shard)));
  }

  StepClock clock_;
  const UnitClock units_;
  const ModelLayout& layout_;
  const Sharing sharing_;
  const StepWork& work_;
  const GroupSeconds& seconds_;
  const bool reshards_, reduces_early_;
  const std::vector<int> order_;
  size_t next_ = 0;
  std::deque<int> resident_;
  std::map<int, double> incoming_;
  std::deque<std::pair<int, double>> reducing_;
};

int largest_proper_divisor(int ranks) {
  for (int size = ranks / 2; size > 1; --size) {
    if (ranks % size == 0) return size;
  }
  return 1;
}

DType products_travel_in(const StrategyOptions& options) {
  if (!options.param_dtype.empty()) return DType::f32;
  return narrow_dtype("product-dtype", options.product_dtype);
}

class ShardedKind : public StrategyKind {
 public:
  explicit ShardedKind(Sharding sharding) : sharding_(sharding) {}

  Sharing share(const StrategyOptions& options, int devices) const override {
    return with_bytes(options, {.shard = devices});
  }
  bool takes_fp8_level(int level) const override {
    const bool is_zero = sharding_ == Sharding::kZero1 || sharding_ == Sharding::kZero2;
    return level == 0 || (level == 3 && is_zero);
  }
  std::unique_ptr<Strategy> make(const StrategyOptions& options, const Sharing& sharing,
                                 CommunicatorPtr world) const override {
    FsdpOptions fsdp{.shard = world,
                     .sharding = options.shard_grad_op ? Sharding::kShardGradOp : sharding_,
                     .param_dtype = narrow_dtype("param-dtype", options.param_dtype),
                     .reduce_dtype = narrow_dtype("reduce-dtype", options.reduce_dtype),
                     .product_dtype = products_travel_in(options),
                     .buffer_dtype = narrow_dtype("buffer-dtype", options.buffer_dtype),
                     .cpu_offload = options.cpu_offload,
                     .offload_optimizer = options.offload_optimizer,
                     .prefetches = !options.no_prefetch};
    if (options.resident_units > 0) fsdp.resident_units = options.resident_units;
    if (sharing.replicas > 1) {
      const DeviceMesh mesh(world, {{"replicate", sharing.replicas}, {"shard", sharing.shard}});
      fsdp.shard = mesh.shared_group("shard");
      fsdp.replicate = mesh.shared_group("replicate");
    }
    return make_sharded(name, fsdp, options.wrap);
  }

  StateBytes state_bytes(const ModelLayout& layout, const Sharing& sharing) const override {
    const std::vector<int64_t> units = reduced_units(layout, sharing.shard);
    const int64_t whole = sum(units), part = whole / sharing.shard;
    StateBytes bytes;
    bytes[MemoryKind::kParameters] = kElementBytes * part;
    bytes[MemoryKind::kOptimizer] = kElementBytes * layout.state_tensors * part;
    bytes[MemoryKind::kBuckets] = sharing.gradient_bytes * peak_of_buckets(units, sharing.shard);
    bytes[MemoryKind::kGradients] = is_cut() ? peak_of_gradients(layout, units, sharing)
                                             : sharing.whole_bytes * layout.parameters;
    if (is_full()) {
      bytes[MemoryKind::kGathered] = peak_of_unsharding(layout, sharing);
      return bytes;
    }
    // The part lies in the whole, where that is as exact; two narrowed units arrive at a time.
    const bool is_exact = sharing.whole_bytes == kElementBytes &&
                          (sharing.product_bytes == kElementBytes || sharing.shard == 1);
    if (is_exact) {
      bytes[MemoryKind::kParameters] = kElementBytes * whole;
      return bytes;
    }
    int64_t before = 0, peak = 0;
    for (int unit : reduce_order(layout)) {
      const fsdp::Wire wire = wire_of(layout, unit, sharing);
      const int64_t arriving = wire.narrowed > 0 ? wire.bytes() + wire.bytes() / sharing.shard : 0;
      peak = std::max(peak, before + arriving);
      before = arriving;
    }
    bytes[MemoryKind::kGathered] = sharing.whole_bytes * whole + peak;
    return bytes;
  }
  /// reduce_scatter of all units; all_gather of all once, or of each as often as it is unsharded:
  /// forward and backward, but for those that are still there when backward begins. Among copies
  /// all_reduce of the parts.
  int64_t sent_bytes(const ModelLayout& layout, const Sharing& sharing,
                     const StepShape& step) const override {
    const int f = sharing.shard;
    int64_t gathered = 0, reduced = 0;  // bytes, elements
    for (int unit : is_full() ? unshard_order(layout) : reduce_order(layout)) {
      gathered += (f - 1) * wire_of(layout, unit, sharing).bytes(sharing.shard_index(step.rank), f);
    }
    for (int64_t unit : reduced_units(layout, f)) {
      reduced += (f - 1) * (unit / f) +
                 sent_by_all_reduce(unit / f, sharing.replicas, sharing.replica_index(step.rank));
    }
    return gathered + sharing.gradient_bytes * reduced;
  }

  std::string state_formula() const override {
    switch (sharding_) {
      case Sharding::kZero1:
        return "4 P parameters + 4 P gradients + 8 P/F optimizer = (8 + 8/F) P, and two units on "
               "their way";
      case Sharding::kZero2:
        return "4 P parameters + 4 P/F gradients + 8 P/F optimizer = (4 + 12/F) P, and three "
               "units' gradients";
      default:
        return "4 P/F parameters + 4 P/F gradients + 8 P/F optimizer = 16 P/F, three units "
               "unsharded and three units' gradients";
    }
  }
  std::string sent_formula() const override {
    return is_full() ? "3 (F-1)/F 4 P, less the last units; of weights 2 P twice in 16 bits"
                     : "2 (F-1)/F 4 P; of weights 2 P in 16 bits";
  }
  Timeline timeline(const std::vector<RankWork>& ranks, const Sharing& sharing,
                    const GroupSeconds& seconds, const StepShape& step) const override {
    return ShardedStep(sharding_, ranks.at(0), sharing, seconds, step.images).run();
  }
  std::optional<StrategyOptions> planned(const PlanChoice&) const override {
    if (name == "zero3") return {};  // fsdp under the name of the paper
    return StrategyOptions{.name = name};
  }

 private:
  /// Parameters are resharded between uses; gradients are cut as soon as they are complete.
  bool is_full() const { return sharding_ == Sharding::kFullShard; }
  bool is_cut() const { return sharding_ != Sharding::kZero1; }

  const Sharding sharding_;
};

/// fsdp inside of groups, each of which holds a copy.
class HsdpKind : public ShardedKind {
 public:
  HsdpKind() : ShardedKind(Sharding::kFullShard) {}

  Sharing share(const StrategyOptions& options, int devices) const override {
    const int shard = options.shard_size > 0 ? options.shard_size : largest_proper_divisor(devices);
    return with_bytes(options, {.shard = shard, .replicas = devices / shard});
  }
  std::string sent_formula() const override {
    return "3 (F-1)/F 4 P + 2 (R-1)/R 4 P/F, less the last units; of weights 2 P twice in 16 "
           "bits";
  }
  /// One group that all ranks share is fsdp.
  std::optional<StrategyOptions> planned(const PlanChoice& choice) const override {
    const int asked = choice.asked.shard_size;
    const int shard = asked > 0 ? asked : std::min(choice.devices, choice.devices_per_node);
    if (choice.devices % shard != 0 || (asked == 0 && shard == choice.devices)) return {};
    return StrategyOptions{.name = name, .shard_size = shard};
  }
};
}  // namespace

Sharing with_bytes(const StrategyOptions& options, Sharing sharing) {
  const auto bytes = [](const char* setting, const std::string& dtype) {
    return static_cast<int>(itemsize(narrow_dtype(setting, dtype)));
  };
  sharing.whole_bytes = bytes("param-dtype", options.param_dtype);
  sharing.gradient_bytes = bytes("reduce-dtype", options.reduce_dtype);
  sharing.product_bytes = static_cast<int>(itemsize(products_travel_in(options)));
  return sharing;
}

std::unique_ptr<Strategy> make_sharded(const std::string& name, const FsdpOptions& options,
                                       const std::string& wrap) {
  return std::make_unique<Sharded>(name, options, wrap);
}

namespace kinds {

std::unique_ptr<StrategyKind> fsdp() { return std::make_unique<ShardedKind>(Sharding::kFullShard); }
std::unique_ptr<StrategyKind> zero1() { return std::make_unique<ShardedKind>(Sharding::kZero1); }
std::unique_ptr<StrategyKind> zero2() { return std::make_unique<ShardedKind>(Sharding::kZero2); }
std::unique_ptr<StrategyKind> zero3() { return fsdp(); }
std::unique_ptr<StrategyKind> hsdp() { return std::make_unique<HsdpKind>(); }

}  // namespace kinds
}  // namespace weft::dist
