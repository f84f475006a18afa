#include "dist/data_parallel/ddp.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/view.h"
#include "dist/comm/agreement.h"
#include "dist/comm/device/on_device.h"
#include "dist/data_parallel/pass_watch.h"
#include "dist/data_parallel/summed_gradients.h"
#include "nn/meta.h"

namespace weft::dist {

void verify_same_tensors(Communicator& group, const NamedTensors& tensors, std::string_view what) {
  std::string mine;
  for (const auto& [name, tensor] : tensors) {
    mine += fmt::format("{} {} {}\n", name, tensor.dtype(), tensor.shape());
  }
  verify_same_lines(group, mine, fmt::format("{}: the ranks hold different models", what));
}

CommunicationHook compress_gradients(DType narrow) {
  WEFT_CHECK(narrow == DType::f16 || narrow == DType::bf16,
             "compress_gradients: expected f16 or bf16, got {}", narrow);
  return [narrow](Communicator& group, const GradientBucket& bucket) {
    const DType dtype = bucket.flat.dtype();
    WEFT_CHECK(itemsize(dtype) >= 4 || dtype == narrow,
               "compress_gradients: expected gradients of f32 or {}, got {}", narrow, dtype);
    const NoGrad guard;
    const Tensor sent = ops::cast(bucket.flat, narrow);
    const Work work = group.all_reduce(sent, bucket.op);
    return [work, sent, flat = bucket.flat] {
      const NoGrad guard;
      work.wait();
      Tensor target = flat;
      ops::copy_(target, sent);
    };
  };
}

class DistributedDataParallel::Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(nn::Module& module, CommunicatorPtr group, const DdpOptions& options)
      : module_(module), group_(std::move(group)), options_(options) {
    WEFT_CHECK(options.average == ReduceOp::kMean || options.average == ReduceOp::kSum,
               "ddp: gradients are averaged or summed, not reduced by {}", name(options.average));
    WEFT_CHECK(options.bucket_bytes > 0 && options.first_bucket_bytes > 0,
               "ddp: bucket sizes must be positive, got {} and {}", options.bucket_bytes,
               options.first_bucket_bytes);
    nn::materialize(module);
    const NamedTensors state = module.state_dict();
    verify_same_tensors(*group_, state, "ddp");
    broadcast_all(*group_, state, 0);
    for (const auto& [name, parameter] : module.named_parameters()) {
      parameters_.push_back(
          {.name = name, .tensor = parameter, .is_trained = parameter.requires_grad()});
      sums_.watch(parameter);
    }
    order_.resize(parameters_.size());
    std::iota(order_.rbegin(), order_.rend(), 0);
    build_buckets();
    reset();
  }

  /// Apart from the constructor, which has no shared pointer to give.
  void register_hooks() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      register_parameter_hook(parameters_[i].tensor,
                              while_alive(weak_from_this(), &Reducer::on_ready, i));
    }
  }

  Tensors forward(const std::function<Tensors()>& function) {
    if (is_joining_) announce(true);
    if (options_.broadcast_buffers && synchronizes() && module_.is_training()) {
      recover();
      broadcast_all(*group_, module_.named_buffers(), is_joining_ ? first_active_ : 0);
    }
    Tensors outputs = function();
    if (!synchronizes()) return outputs;
    register_output_hook(outputs, while_alive(weak_from_this(), &Reducer::begin));
    return outputs;
  }

  void broadcast_buffers() {
    recover();
    broadcast_all(*group_, module_.named_buffers(), 0);
  }

  void synchronize() {
    WEFT_CHECK(!watch_.is_under_way(), "ddp: synchronize() inside a backward");
    const auto attempt = watch_.attempt([this] { restore(); });
    prepare();
    set_apart();
    finish(false);
    attempt->is_over = true;
  }

  void finish_join() {
    while (true) {
      announce(false);
      if (last_announced_ < 0) break;
      last_worked_ = last_announced_;
      if (!announced_sync_) continue;
      recover();
      if (options_.broadcast_buffers && module_.is_training()) {
        broadcast_all(*group_, module_.named_buffers(), first_active_);
      }
      shadow_reduction();
    }
    is_joining_ = false;
    broadcast_all(*group_, module_.unrouted_state(), last_worked_);
  }

  std::vector<std::vector<std::string>> bucket_names() const {
    std::vector<std::vector<std::string>> result;
    for (const Bucket& bucket : buckets_) {
      result.emplace_back();
      for (int i : bucket.parameters) result.back().push_back(parameters_[i].name);
    }
    return result;
  }
  int64_t bucket_bytes() const {
    int64_t bytes = 0;
    for (const Bucket& bucket : buckets_) bytes += static_cast<int64_t>(bucket.flat.nbytes());
    return bytes;
  }

  nn::Module& module_;
  const CommunicatorPtr group_;
  const DdpOptions options_;
  int local_depth_ = 0;  // of no_sync()
  bool is_joining_ = false;

 private:
  struct Bucket {
    std::vector<int> parameters;  // their places in parameters_
    Tensor flat;
    int waits_for = 0;  // parameters without gradient so far
    bool is_launched = false;
    std::function<void()> complete;
  };
  struct Parameter {
    std::string name;
    Tensor tensor;
    bool is_trained = true;  // in the latest backward: it may be frozen, and trained again
    int bucket = -1;         // none as long as it was not
    Tensor view = {};        // of the bucket's flat tensor, in the parameter's shape
    int expected = 1;        // contributions per backward, on this rank
    bool is_used = true;     // on any rank

    /// Of the backward at hand.
    struct Arrived {
      int contributions = 0;
      bool is_in_bucket = false;
      Tensor late;           // what came when the bucket had left, or without one
      bool is_late = false;  // on any rank, where they ask each other
      Tensor first;          // the tensor that came, to be handed out again
      Tensor before;         // the gradient that there was, and is again if the pass fails
      bool any() const { return is_in_bucket || late.defined(); }
    };
    Arrived arrived = {};
  };

  bool synchronizes() const { return local_depth_ == 0; }
  bool sums() const { return options_.average == ReduceOp::kSum; }

  /// For the parameters that are trained, or were, in the order of order_.
  void build_buckets() {
    const MemoryScope scope(MemoryKind::kBuckets);
    buckets_.clear();
    std::vector<int64_t> sizes;  // elements
    // A bucket is filled per dtype and closed when it has reached its size.
    std::map<DType, int> open;
    for (int i : order_) {
      const Parameter& p = parameters_[i];
      if (!p.is_trained && p.bucket < 0) continue;
      WEFT_CHECK(p.tensor.is_contiguous(), "ddp: parameter \"{}\" is not contiguous", p.name);
      const DType dtype = p.tensor.dtype();
      const auto [place, is_new] = open.try_emplace(dtype, static_cast<int>(buckets_.size()));
      const int index = place->second;
      if (is_new) {
        buckets_.emplace_back();
        sizes.push_back(0);
      }
      buckets_[index].parameters.push_back(i);
      sizes[index] += p.tensor.numel();
      const int64_t limit = index == 0 ? options_.first_bucket_bytes : options_.bucket_bytes;
      if (sizes[index] * static_cast<int64_t>(itemsize(dtype)) >= limit) open.erase(place);
    }
    for (size_t b = 0; b < buckets_.size(); ++b) {
      Bucket& bucket = buckets_[b];
      // Equal parts for all ranks.
      const int64_t padded = (sizes[b] + group_->size() - 1) / group_->size() * group_->size();
      const Tensor& first = parameters_[bucket.parameters[0]].tensor;
      bucket.flat = buffer_for(*group_, padded, first.dtype(), first.device(), BufferLife::kStays);
      ops::zero_(bucket.flat);
      int64_t offset = 0;
      for (int i : bucket.parameters) {
        Parameter& p = parameters_[i];
        const int64_t n = p.tensor.numel();
        p.bucket = static_cast<int>(b);
        p.view = view::reshape(view::narrow(bucket.flat, 0, offset, n), p.tensor.shape());
        offset += n;
      }
    }
  }

  void reset() {
    next_bucket_ = 0;
    is_apart_ = false;
    for (Parameter& p : parameters_) p.arrived = {};
    arrivals_.clear();
    for (Bucket& bucket : buckets_) {
      bucket.is_launched = false;
      bucket.complete = nullptr;
      bucket.waits_for = 0;
      for (int i : bucket.parameters) {
        bucket.waits_for += parameters_[i].is_trained && parameters_[i].expected > 0;
      }
    }
  }

  /// Something of this backward concerns the reduction: it is to be finished when that is over.
  void begin() {
    if (!synchronizes() || watch_.is_under_way()) return;
    watch_.begin(while_alive(weak_from_this(), &Reducer::finish, true),
                 while_alive(weak_from_this(), &Reducer::restore));
    prepare();
    set_apart();
  }

  /// Takes away what has added up, so that the pass does not change it.
  void set_apart() {
    const NoGrad guard;
    // A mean of what is the mean already does not change it.
    if (sums()) sums_.set_apart("ddp", options_.gradient_as_bucket_view);
    for (Parameter& p : parameters_) {
      Tensor& before = p.arrived.before = p.tensor.grad();
      p.tensor.set_grad({});
      const bool is_bucket =
          before.defined() && p.bucket >= 0 && before.storage() == p.view.storage();
      if (is_bucket) before = ops::clone(before);
    }
    is_apart_ = true;
  }

  /// The pass has failed: the gradients are those from before.
  void restore() {
    if (!std::exchange(is_apart_, false)) return;
    for (Parameter& p : parameters_) p.tensor.set_grad(p.arrived.before);
    sums_.restore();
  }

  /// Before a reduction.
  void prepare() {
    recover();
    bool has_new = false, has_changed = false;
    for (Parameter& p : parameters_) {
      const bool was_trained = std::exchange(p.is_trained, p.tensor.requires_grad());
      has_changed = has_changed || p.is_trained != was_trained;
      if (!p.is_trained || was_trained) continue;
      p.expected = std::max(p.expected, 1);
      p.is_used = true;
      has_new = has_new || p.bucket < 0;
      if (has_new || options_.static_graph) is_rebuilt_ = false;
    }
    if (has_new) build_buckets();
    if (has_changed) reset();
  }

  /// Drops what a pass that failed has left.
  void recover() {
    if (!watch_.recover("ddp", {group_.get()})) return;
    for (Bucket& bucket : buckets_) {
      if (bucket.complete) bucket.complete();
    }
    reset();
  }

  void on_ready(size_t i) {
    // Without forward() this is the pass's beginning, and the gradient is there already.
    if (!watch_.is_under_way()) sums_.note_local(i);
    if (!synchronizes()) return;
    begin();
    Parameter& p = parameters_[i];
    ++p.arrived.contributions;
    arrivals_.push_back(static_cast<int>(i));
    take_gradient(p);
    // A parameter used in several recomputed segments is ready when its last contribution is in.
    if (!p.is_trained || p.arrived.contributions != p.expected) return;
    --buckets_[p.bucket].waits_for;
    while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].waits_for <= 0) launch();
  }

  /// Moves the parameter's gradient, and first what there was before, into its bucket.
  void take_gradient(Parameter& p) {
    const NoGrad guard;
    const Tensor before = p.arrived.any() ? Tensor() : p.arrived.before;
    const Tensor gradient = p.tensor.grad();
    p.tensor.set_grad({});
    if (before.defined()) take(p, before);
    if (gradient.defined()) take(p, gradient);
  }
  void take(Parameter& p, const Tensor& gradient) {
    const bool is_fixed = options_.static_graph && is_rebuilt_ && p.is_trained;
    WEFT_CHECK(!is_fixed || p.is_used,
               "ddp: \"{}\" has a gradient on rank {}, and had none on any rank in the first "
               "iteration; expected the same parameters in all of them, which static_graph says; "
               "find_unused_parameters allows others",
               p.name, group_->rank());
    Parameter::Arrived& arrived = p.arrived;
    if (p.bucket < 0 || buckets_[p.bucket].is_launched) {
      // The bucket left without it, or it has none: reduced apart, in the end.
      if (arrived.late.defined()) {
        ops::add_(arrived.late, gradient);
      } else {
        arrived.late = ops::clone(gradient);
      }
    } else if (arrived.is_in_bucket) {
      ops::add_(p.view, gradient);
    } else {
      if (gradient.storage() != p.view.storage()) ops::copy_(p.view, gradient);
      arrived.is_in_bucket = true;
      if (!options_.gradient_as_bucket_view) arrived.first = gradient;
    }
  }

  void launch() {
    Bucket& bucket = buckets_[next_bucket_];
    const NoGrad guard;
    for (int i : bucket.parameters) {
      Parameter& p = parameters_[i];
      if (!p.arrived.is_in_bucket) ops::zero_(p.view);
    }
    bucket.is_launched = true;
    const GradientBucket handed = {static_cast<int>(next_bucket_), bucket.flat, options_.average};
    if (options_.hook) {
      bucket.complete = options_.hook(*group_, handed);
    } else {
      const Work work = group_->all_reduce(bucket.flat, options_.average);
      bucket.complete = [work] { work.wait(); };
    }
    ++next_bucket_;
  }

  void finish(bool after_backward) {
    // What was gathered before and did not change in this backward counts too.
    for (Parameter& p : parameters_) {
      if (!p.arrived.is_in_bucket) take_gradient(p);
    }
    if (after_backward) check_unused();
    reduce_buckets();
    reduce_late();
    hand_out();
    if (!is_rebuilt_) rebuild();
    reset();
  }

  void check_unused() {
    // With a static graph the first iteration shows what is used.
    if (options_.find_unused_parameters || options_.static_graph) return;
    std::vector<std::string> unused;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& p = parameters_[i];
      if (p.is_trained && !p.arrived.is_in_bucket && !sums_.is_apart(i)) unused.push_back(p.name);
    }
    WEFT_CHECK(unused.empty(),
               "ddp: no gradient reached {} parameters on rank {}: {}; find_unused_parameters "
               "allows that",
               unused.size(), group_->rank(), fmt::join(unused, ", "));
  }

  /// Says of each parameter whether it has a gradient on any rank, and whether one came late there.
  void find_used() {
    const bool finds = options_.static_graph ? !is_rebuilt_ : options_.find_unused_parameters;
    // Once a rank knows how many contributions to wait for, none is late in an iteration like the
    // first.
    const bool asks = finds || !is_rebuilt_;
    std::vector<std::string> late;
    for (const Parameter& p : parameters_) {
      if (p.arrived.late.defined()) late.push_back(p.name);
    }
    if (!asks && late.empty()) return;
    constexpr int32_t kUsed = 1, kLate = 2;
    std::vector<int32_t> found;
    for (const Parameter& p : parameters_) {
      found.push_back(p.arrived.late.defined() ? kLate : p.arrived.any() ? kUsed : 0);
    }
    const auto n = std::ssize(found);
    if (asks) {
      const Tensor map = Tensor::from(found, {n});
      group_->all_reduce(map, ReduceOp::kMax).wait();
      std::copy_n(map.data<int32_t>(), n, found.data());
    } else {
      ask_unasked(found, late);
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (finds) parameters_[i].is_used = found[i] != 0;
      parameters_[i].arrived.is_late = found[i] == kLate;
    }
  }

  /// The largest of all ranks' numbers, in an iteration in which they would ask each other nothing.
  /// A rank that has nothing late goes on to a collective of another kind, as gradients do not
  /// travel so: that is an Error of both.
  void ask_unasked(std::vector<int32_t>& found, const std::vector<std::string>& late) {
    std::vector<int32_t> mine;
    for (int r = 0; r < group_->size(); ++r) mine.insert(mine.end(), found.begin(), found.end());
    const Tensor theirs = Tensor::empty({std::ssize(mine)}, DType::i32);
    try {
      group_->all_to_all(theirs, Tensor::from(mine, {std::ssize(mine)})).wait();
    } catch (const Error& error) {
      WEFT_FAIL(
          "ddp: gradients of {} parameters came on rank {} when their buckets had left: {}; "
          "expected some on every rank or on none, since the ranks do not ask each other; "
          "find_unused_parameters allows that: {}",
          late.size(), group_->rank(), fmt::join(late, ", "), error.what());
    }
    const int32_t* const all = theirs.data<int32_t>();
    for (size_t i = 0; i < mine.size(); ++i) {
      int32_t& largest = found[i % found.size()];
      largest = std::max(largest, all[i]);
    }
  }

  /// Also with ranks where nothing of the parameter came late.
  void reduce_late() {
    const NoGrad guard;
    for (Parameter& p : parameters_) {
      Tensor& late = p.arrived.late;
      if (!late.defined() && p.arrived.is_late) late = ops::zeros_like(p.tensor);
      if (!late.defined()) continue;
      group_->all_reduce(late, options_.average).wait();
      if (p.bucket >= 0) ops::add_(p.view, late);
    }
  }

  void hand_out() {
    const NoGrad guard;
    for (Parameter& p : parameters_) {
      Tensor sum;
      if (p.bucket < 0) {
        sum = p.arrived.late;
      } else if (p.is_used && (p.is_trained || p.arrived.any())) {
        sum = p.view;
        if (!options_.gradient_as_bucket_view) {
          const Tensor& first = p.arrived.first;
          sum = first.defined() ? first : ops::zeros_like(p.tensor);
          ops::copy_(sum, p.view);
        }
      }
      // Where nobody has a gradient it stays what it was.
      if (sum.defined()) p.tensor.set_grad(sum);
    }
    if (sums()) sums_.complete();
  }

  /// The order in which gradients arrived on the first active rank becomes that of the buckets. How
  /// many to wait for is each rank's own: graphs may differ.
  void rebuild() {
    is_rebuilt_ = true;
    const auto n = static_cast<int64_t>(parameters_.size());
    const Tensor plan = Tensor::zeros({2, n}, DType::i64);  // order, number of contributions
    int64_t* order = plan.data<int64_t>();
    // By last contribution, and behind them those without one; collected from the back.
    std::vector<int64_t> backwards;
    for (int64_t i = 0; i < n; ++i) {
      if (parameters_[i].arrived.contributions == 0) backwards.push_back(i);
    }
    std::vector<bool> placed(n, false);
    for (auto i = arrivals_.rbegin(); i != arrivals_.rend(); ++i) {
      if (!placed[*i]) backwards.push_back(*i);
      placed[*i] = true;
    }
    std::ranges::reverse_copy(backwards, order);
    for (int64_t i = 0; i < n; ++i) {
      const int contributions = parameters_[i].arrived.contributions;
      order[n + i] = options_.static_graph ? contributions : std::max(contributions, 1);
    }
    const std::vector<int64_t> own(order + n, order + 2 * n);
    group_->broadcast(plan, is_joining_ ? first_active_ : 0).wait();
    // A rank that had no pass goes by the first's.
    const int64_t* const counts = arrivals_.empty() ? order + n : own.data();
    for (int64_t i = 0; i < n; ++i) parameters_[i].expected = static_cast<int>(counts[i]);
    // With views the old buckets live on in the gradients until those are dropped.
    order_.assign(order, order + n);
    build_buckets();
  }

  /// In a join: every rank says whether it works on a batch, and whether that is synchronised.
  void announce(bool is_active) {
    const Tensor mine =
        Tensor::from(std::vector<int32_t>{is_active, is_active && synchronizes()}, {2});
    const Tensor all = Tensor::empty({group_->size(), 2}, DType::i32);
    group_->all_gather(all, mine).wait();
    first_active_ = last_announced_ = -1;
    announced_sync_ = false;
    for (int r = 0; r < group_->size(); ++r) {
      if (all.data<int32_t>()[2 * r] == 0) continue;
      if (first_active_ < 0) first_active_ = r;
      last_announced_ = r;
      announced_sync_ = announced_sync_ || all.data<int32_t>()[2 * r + 1] != 0;
    }
    if (is_active) last_worked_ = last_announced_;
  }

  /// The collectives of a backward of the others.
  void shadow_reduction() {
    prepare();
    reduce_buckets();
    reduce_late();
    if (!is_rebuilt_) rebuild();
    reset();
  }
  void reduce_buckets() {
    while (next_bucket_ < buckets_.size()) launch();
    find_used();
    for (Bucket& bucket : buckets_) bucket.complete();
  }

  std::vector<Parameter> parameters_;
  std::vector<int> order_;  // of these in the buckets
  std::vector<Bucket> buckets_;
  bool is_rebuilt_ = false;

  // Of the backward at hand.
  PassWatch watch_;
  bool is_apart_ = false;  // what the gradients were before
  SummedGradients sums_;
  size_t next_bucket_ = 0;
  std::vector<int> arrivals_;  // parameters, once for each contribution

  // Of a join.
  int first_active_ = 0, last_announced_ = 0, last_worked_ = 0;
  bool announced_sync_ = true;
};

DistributedDataParallel::DistributedDataParallel(nn::Module& module, CommunicatorPtr group,
                                                 const DdpOptions& options)
    : reducer_(std::make_shared<Reducer>(module, std::move(group), options)) {
  reducer_->register_hooks();
}

Tensor DistributedDataParallel::operator()(const Tensor& x) {
  return forward([&] { return reducer_->module_.unrouted(x); });
}

Tensor DistributedDataParallel::forward(const std::function<Tensor()>& function) {
  return reducer_->forward([&] { return Tensors{function()}; })[0];
}

Tensors DistributedDataParallel::forward(const std::function<Tensors()>& function) {
  return reducer_->forward(function);
}

void DistributedDataParallel::broadcast_buffers() { reducer_->broadcast_buffers(); }

void DistributedDataParallel::synchronize() { reducer_->synchronize(); }

std::shared_ptr<void> DistributedDataParallel::no_sync() {
  ++reducer_->local_depth_;
  return {nullptr, [reducer = reducer_](void*) { --reducer->local_depth_; }};
}

DistributedDataParallel::Join::Join(DistributedDataParallel& ddp) : ddp_(ddp) {
  WEFT_CHECK(!ddp.reducer_->is_joining_, "ddp: a Join is under way already");
  ddp.reducer_->is_joining_ = true;
}
DistributedDataParallel::Join::~Join() { ddp_.reducer_->is_joining_ = false; }
void DistributedDataParallel::Join::finish() { ddp_.reducer_->finish_join(); }

std::vector<std::vector<std::string>> DistributedDataParallel::buckets() const {
  return reducer_->bucket_names();
}
int64_t DistributedDataParallel::bucket_bytes() const { return reducer_->bucket_bytes(); }

}  // namespace weft::dist
