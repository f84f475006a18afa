#include <fmt/format.h>

#include <optional>
#include <unordered_set>

#include "dist/parallel_head.h"
#include "dist/strategies.h"
#include "dist/tensor_parallel.h"

namespace weft::dist {
namespace {

class TensorParallelStrategy : public Strategy {
 public:
  TensorParallelStrategy(const StrategyOptions& options, CommunicatorPtr tensor,
                         std::unique_ptr<Strategy> inner)
      : options_(options), tensor_(std::move(tensor)), inner_(std::move(inner)) {}

  int data_size() const override { return inner_->data_size(); }
  int data_rank() const override { return inner_->data_rank(); }
  bool counts() const override { return tensor_->rank() == 0; }

  void wrap(nn::Module& module, const ModelStructure& structure) override {
    cuts_.emplace(module, tensor_);
    for (const auto& [name, child] : module.named_modules()) {
      if (auto* attention = dynamic_cast<nn::MultiheadAttention*>(child)) cuts_->cut(*attention);
    }
    for (const auto& [first, second] : structure.mlps) cuts_->cut(*first, *second);
    WEFT_CHECK(cuts_->has_cuts(),
               "{}: the model has neither attention nor an MLP that could be cut over ranks",
               options_.name);
    if (options_.parallel_head) {
      WEFT_CHECK(structure.head, "parallel-head: the model's structure names no head");
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
  Tensor forward(nn::Module& module, const Tensor& x) override {
    return inner_->forward(module, x);
  }
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                       const ops::CrossEntropyOptions& options) override {
    if (classes_ == 0) return inner_->cross_entropy(logits, labels, options);
    return parallel_cross_entropy(logits, labels, classes_, tensor_, options);
  }
  Tensor predicted(const Tensor& logits) override {
    return classes_ == 0 ? inner_->predicted(logits) : parallel_argmax(logits, classes_, tensor_);
  }
  std::shared_ptr<void> no_sync() override { return inner_->no_sync(); }
  /// Parameters that are whole on every rank of the tensor group count once.
  ExactSum squares(const Tensors& parameters) override {
    Tensors cut, whole;
    for (const Tensor& p : parameters) (cut_tensors_.contains(p.id()) ? cut : whole).push_back(p);
    ExactSum sum = inner_->squares(cut);
    const ExactSum once = inner_->squares(whole);
    if (tensor_->rank() == 0) sum.add(once);
    sum.all_reduce(*tensor_);
    return sum;
  }
  void after_step() override { inner_->after_step(); }
  int64_t padded_elements() const override { return inner_->padded_elements(); }

  NamedTensors model_state(nn::Module& module) override {
    return put_together(inner_->model_state(module), [](const std::string& name) { return name; });
  }
  optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer) override {
    optim::OptimizerState state = inner_->optimizer_state(optimizer);
    state.tensors = put_together(state.tensors, parameter_of);
    return state;
  }
  void load_model_state(nn::Module& module, const NamedTensors& state) override {
    inner_->load_model_state(module,
                             cut_apart(state, [](const std::string& name) { return name; }));
  }
  void load_optimizer_state(optim::Optimizer& optimizer,
                            const optim::OptimizerState& state) override {
    inner_->load_optimizer_state(optimizer, {cut_apart(state.tensors, parameter_of), state.groups});
  }
  std::string describe(int64_t parameters) const override {
    return fmt::format(
        "{}: layers cut over {} ranks{}{}, {} of the activations per layer; of P / {} and what is "
        "whole: {}",
        options_.name, tensor_->size(), options_.parallel_head ? ", the head too" : "",
        options_.sequence_parallel ? ", tokens dealt out between them" : "",
        options_.sequence_parallel ? "6 all-gathers and 4 reduce-scatters" : "4 all-reduces",
        tensor_->size(), inner_->describe(parameters / tensor_->size()));
  }

 private:
  using Rename = std::string (*)(const std::string&);

  /// Of an optimizer's tensor; none of its counts of steps, which are not cut.
  static std::string parameter_of(const std::string& name) {
    const size_t dot = name.rfind('.');
    return dot == std::string::npos || name.substr(dot) == ".step" ? "" : name.substr(0, dot);
  }

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
  std::optional<TensorParallel> cuts_;
  std::unordered_set<const void*> cut_tensors_;  // the optimizer's
};

}  // namespace

std::unique_ptr<Strategy> make_tensor_parallel(const StrategyOptions& options,
                                               CommunicatorPtr tensor,
                                               std::unique_ptr<Strategy> inner) {
  return std::make_unique<TensorParallelStrategy>(options, std::move(tensor), std::move(inner));
}

}  // namespace weft::dist
