#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>

#include "autograd/random.h"
#include "autograd/replay.h"
#include "core/scoped_value.h"
#include "dist/comm/device_mesh.h"
#include "dist/model_parallel/parallel_head.h"
#include "dist/model_parallel/tensor_parallel.h"
#include "dist/strategy/strategies.h"
#include "optim/optimizer_state.h"

namespace weft::dist {
namespace {

/// A forward that fails between cut layers leaves the random stream there, which is each rank's
/// own: what follows would be dropped by other numbers on every rank. It leaves tokens dealt out,
/// too.
struct KeepsStream {
  const ScopedValue<uint64_t> stream{generator().stream, generator().stream};
  const ScopedValue<std::map<const void*, int64_t>> numbers{replayed_numbers(), replayed_numbers()};
};

class TensorParallelStrategy : public Strategy {
 public:
  TensorParallelStrategy(const StrategyOptions& options, CommunicatorPtr tensor,
                         std::unique_ptr<Strategy> inner)
      : options_(options), tensor_(std::move(tensor)), inner_(std::move(inner)) {}

  int data_size() const override { return inner_->data_size(); }
  int data_rank() const override { return inner_->data_rank(); }
  bool counts() const override { return tensor_->rank() == 0; }

  void wrap(nn::Module& module, const ModelStructure& structure) override {
    cuts_ = std::make_shared<TensorParallel>(module, tensor_);
    const CutLayers layers = cut_layers_of(module, structure);
    WEFT_CHECK(!layers.empty(),
               "{}: the model has neither attention nor an MLP that could be cut over ranks: its "
               "structure() names pairs of linear layers as mlps",
               options_.name);
    for (nn::MultiheadAttention* attention : layers.attentions) cuts_->cut(*attention);
    for (const nn::ParallelLinears& linears : layers.linears) cuts_->cut(linears);
    if (options_.parallel_head) {
      WEFT_CHECK(structure.head,
                 "parallel-head: the model's structure names no head; one that is tied to an "
                 "embedding stays whole with it");
      classes_ = structure.head->weight.size(0);
      cuts_->cut_head(*structure.head);
    }
    if (options_.sequence_parallel) cuts_->deal_out(structure.tokens);
    inner_->wrap(module, structure);
  }
  optim::ParameterGroups groups(const optim::ParameterGroups& whole) override {
    const optim::ParameterGroups mine = inner_->groups(whole);
    for (const optim::ParameterGroup& group : mine) {
      for (const auto& [name, tensor] : group.parameters) {
        if (cuts_->cut_of(name)) cut_tensors_.insert(tensor.id());
      }
    }
    return mine;
  }
  bool cuts_parameters() const override { return tensor_->size() > 1 || inner_->cuts_parameters(); }
  Tensor forward(nn::Module& module, const Tensor& x) override {
    const KeepsStream guard;
    const ScopedValue check(recomputed_check(), check_recomputed());
    const Tensor y = inner_->forward(module, x);
    cuts_->check_outside({y});
    return y;
  }
  bool calls_functions() const override { return inner_->calls_functions(); }
  Tensors call(nn::Module& module, const std::function<Tensors()>& function) override {
    const KeepsStream guard;
    const ScopedValue check(recomputed_check(), check_recomputed());
    Tensors results = inner_->call(module, function);
    cuts_->check_outside(results);
    return results;
  }
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                       const ops::CrossEntropyOptions& options) override {
    if (classes_ == 0) return inner_->cross_entropy(logits, labels, options);
    return parallel_cross_entropy(logits, labels, classes_, tensor_, options);
  }
  Tensor predicted(const Tensor& logits) override {
    return classes_ == 0 ? inner_->predicted(logits) : parallel_argmax(logits, classes_, tensor_);
  }
  void share_buffers(nn::Module& module) override { inner_->share_buffers(module); }
  std::shared_ptr<void> no_sync() override { return inner_->no_sync(); }
  void drop_local_gradients(const Tensors& parameters) override {
    inner_->drop_local_gradients(parameters);
  }
  void scale_local_gradients(const Tensors& parameters, double factor) override {
    inner_->scale_local_gradients(parameters, factor);
  }
  /// Parameters that are whole on every rank of the tensor group count once.
  ExactSum squares(const Tensors& parameters) override {
    Tensors cut, whole;
    for (const Tensor& p : parameters) (cut_tensors_.contains(p.id()) ? cut : whole).push_back(p);
    ExactSum sum = inner_->squares(cut);
    const ExactSum once = inner_->squares(whole);
    if (tensor_->rank() == 0) sum.add(once);
    all_reduce(sum, *tensor_);
    return sum;
  }
  void keep_changes() override { inner_->keep_changes(); }
  void after_step() override { inner_->after_step(); }
  int64_t padded_elements() const override { return inner_->padded_elements(); }

  bool keeps_whole_state() const override { return false; }
  NamedTensors model_state(nn::Module& module) override {
    return put_together(inner_->model_state(module), [](const std::string& name) { return name; });
  }
  optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer) override {
    optim::OptimizerState state = inner_->optimizer_state(optimizer);
    state.tensors = put_together(state.tensors, optim::parameter_of);
    return state;
  }
  void load_model_state(nn::Module& module, const NamedTensors& state) override {
    inner_->load_model_state(module,
                             cut_apart(state, [](const std::string& name) { return name; }));
  }
  void load_optimizer_state(optim::Optimizer& optimizer,
                            const optim::OptimizerState& state) override {
    inner_->load_optimizer_state(optimizer,
                                 {cut_apart(state.tensors, optim::parameter_of), state.groups});
  }
  LocalTensors local_state(nn::Module& module) override {
    LocalTensors all = inner_->local_state(module);
    std::unordered_set<std::string> buffers;
    for (const auto& [name, buffer] : module.named_buffers()) buffers.insert(name);
    for (auto& [name, tensor, placement] : all) {
      if (const Cut* cut = cuts_->cut_of(name)) {
        placement.part = {*cut, tensor_->size(), tensor_->rank()};
        placement.whole[static_cast<int>(cut->dim)] = cut->length;
      } else if (buffers.contains(name)) {
        if (tensor_->rank() != 0) placement.copies = 0;  // the first rank's, as among copies
      } else if (placement.copies > 0) {
        placement.copy = placement.copy * tensor_->size() + tensor_->rank();
        placement.copies *= tensor_->size();
      }
    }
    return all;
  }
  std::string describe(int64_t parameters, int64_t state_tensors) const override {
    return fmt::format(
        "{}: layers cut over {} ranks{}{}, {} of the activations per layer; of P / {} and what is "
        "whole: {}",
        options_.name, tensor_->size(), options_.parallel_head ? ", the head too" : "",
        options_.sequence_parallel ? ", tokens dealt out between them" : "",
        options_.sequence_parallel ? "6 all-gathers and 4 reduce-scatters" : "4 all-reduces",
        tensor_->size(), inner_->describe(parameters / tensor_->size(), state_tensors));
  }

 private:
  /// Of the checkpoints of a forward, whose backward may outlive this.
  std::function<void(const Tensor&)> check_recomputed() const {
    return [cuts = cuts_](const Tensor& result) { cuts->check_recomputed(result); };
  }

  using Rename = std::string (*)(const std::string&);

  /// Whole tensors, on the first rank; elsewhere nothing.
  NamedTensors put_together(const NamedTensors& mine, Rename parameter) {
    if (inner_->data_rank() != 0) return {};
    NamedTensors whole;
    for (const auto& [name, tensor] : mine) {
      const Cut* cut = cuts_->cut_of(parameter(name));
      const Tensor t = cut ? whole_of(tensor, *cut, *tensor_) : tensor;
      if (tensor_->rank() == 0) whole.emplace_back(name, t);
    }
    return whole;
  }
  NamedTensors cut_apart(const NamedTensors& whole, Rename parameter) {
    NamedTensors mine;
    for (const auto& [name, tensor] : whole) {
      const Cut* cut = cuts_->cut_of(parameter(name));
      mine.emplace_back(name, cut ? part_of(tensor, *cut, *tensor_) : tensor);
    }
    return mine;
  }

  const StrategyOptions options_;
  const CommunicatorPtr tensor_;
  const std::unique_ptr<Strategy> inner_;
  int64_t classes_ = 0;  // of a parallel head
  std::shared_ptr<TensorParallel> cuts_;
  std::unordered_set<const void*> cut_tensors_;  // the optimizer's
};

/// Bytes: an all_reduce of an activation of B images forward and backward for each attention and
/// each MLP, in the products' dtype. On dealt-out tokens for each of them three all_gathers and two
/// reduce_scatters, one of either where dealing out begins and ends, in f32, and an all_reduce of
/// the norms' and the row-parallel biases' gradients. A parallel head: an all_reduce of its input's
/// gradient and of three numbers an image, or a token.
int64_t bytes_of_cut_layers(const ModelLayout& layout, const Sharing& sharing,
                            const StepShape& step) {
  const int n = sharing.tensor, r = sharing.tensor_index(step.rank);
  if (n == 1) return 0;
  const int64_t images = step.images;
  int64_t narrow = 0, wide = 0;  // elements
  if (sharing.deals_out_tokens) {
    const int64_t part = images * (padded(layout.tokens, n) / n) * layout.width;
    // Forward gathers and scatters sums; backward of these, and of the input of the first again.
    narrow += 5 * layout.cut_layers * part * (n - 1);
    wide += 2 * part * (n - 1);
    for (int64_t elements : layout.summed) wide += sent_by_all_reduce(elements, n, r);
  } else {
    narrow +=
        2 * layout.cut_layers * sent_by_all_reduce(images * layout.tokens * layout.width, n, r);
  }
  if (sharing.cuts_head) {
    const int64_t rows = images * layout.head_rows;
    narrow += sent_by_all_reduce(rows * layout.head_width, n, r);
    wide += sent_by_all_reduce(rows, n, r) + sent_by_all_reduce(2 * rows, n, r);
  }
  return sharing.product_bytes * narrow + kElementBytes * wide;
}

/// tp and fsdp+tp: data parallelism outside, of ranks that hold the same parts of the layers, of
/// whose P_t parameters 1/T of those that are cut.
class TensorParallelKind : public StrategyKind {
 public:
  explicit TensorParallelKind(bool is_sharded) : is_sharded_(is_sharded) {}

  Sharing share(const StrategyOptions& options, int devices) const override {
    const int tensor = options.tensor_parallel > 0 ? options.tensor_parallel
                       : is_sharded_               ? std::min(devices, 2)
                                                   : devices;
    WEFT_CHECK(devices % tensor == 0,
               "{}: {} devices are no mesh of {} that share a layer; set tensor-parallel", name,
               devices, tensor);
    Sharing sharing = with_bytes(options, {.tensor = tensor,
                                           .deals_out_tokens = options.sequence_parallel,
                                           .cuts_head = options.parallel_head});
    (is_sharded_ ? sharing.shard : sharing.replicas) = devices / tensor;
    return sharing;
  }
  std::unique_ptr<Strategy> make(const StrategyOptions& options, const Sharing& sharing,
                                 CommunicatorPtr world) const override {
    // Neighbours share layers: they talk most.
    const DeviceMesh mesh(world, {{"data", sharing.data_devices()}, {"tensor", sharing.tensor}});
    StrategyOptions own = options;
    own.name = name;
    return std::make_unique<TensorParallelStrategy>(
        own, mesh.shared_group("tensor"),
        outside(sharing).make(options, sharing, mesh.shared_group("data")));
  }
  bool fixes_order() const override { return false; }

  StateBytes state_bytes(const ModelLayout& layout, const Sharing& sharing) const override {
    return outside(sharing).state_bytes(layout, sharing);
  }
  int64_t sent_bytes(const ModelLayout& layout, const Sharing& sharing,
                     const StepShape& step) const override {
    return bytes_of_cut_layers(layout, sharing, step) +
           outside(sharing).sent_bytes(layout, sharing, step);
  }
  std::string state_formula() const override {
    return is_sharded_
               ? "as fsdp, of P_t = P/T of cut layers and what is whole: 16 P_t/F, three units "
                 "unsharded and three units' gradients"
               : "16 P_t, P_t = P/T of cut layers and what is whole; among copies one gradient "
                 "more";
  }
  std::string sent_formula() const override {
    return std::string(
               "2 (T-1)/T a forward and backward of each attention and MLP, a = 4 B tokens width, "
               "half in 16 bits; dealt out, five times (T-1)/T a") +
           (is_sharded_ ? "; 3 (F-1)/F 4 P_t, less the last units"
                        : "; among copies 2 (R-1)/R 4 P_t");
  }
  Timeline timeline(const std::vector<RankWork>& ranks, const Sharing& sharing,
                    const GroupSeconds& seconds, const StepShape& step) const override {
    return outside(sharing).timeline(ranks, sharing, seconds, step);
  }
  /// Where all devices share the layers nothing is left to be sharded.
  std::optional<StrategyOptions> planned(const PlanChoice& choice) const override {
    const bool is_possible = choice.tensor > 1 && choice.devices % choice.tensor == 0;
    if (!is_possible || (is_sharded_ && choice.devices == choice.tensor)) return {};
    return StrategyOptions{.name = name,
                           .tensor_parallel = choice.tensor,
                           .sequence_parallel = choice.asked.sequence_parallel};
  }

 private:
  /// What goes on among ranks that hold the same parts.
  const StrategyKind& outside(const Sharing& sharing) const {
    return find_strategy(is_sharded_ ? "fsdp" : sharing.replicas > 1 ? "ddp" : "single");
  }

  const bool is_sharded_;
};

}  // namespace

std::unique_ptr<StrategyKind> kinds::tp() { return std::make_unique<TensorParallelKind>(false); }
std::unique_ptr<StrategyKind> kinds::fsdp_tp() {
  return std::make_unique<TensorParallelKind>(true);
}

}  // namespace weft::dist
