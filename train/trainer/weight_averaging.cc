#include "train/trainer/weight_averaging.h"

#include <set>
#include <unordered_map>

#include "autograd/ops.h"
#include "autograd/resting.h"
#include "optim/optimizer_state.h"
#include "train/trainer/trainer.h"

namespace weft::train {
namespace {

/// The optimizer's parameters without those that this rank has no part in: a pipeline's of other
/// stages.
NamedTensors kept_of(Trainer& trainer, nn::Module& model) {
  std::set<std::string> elsewhere;
  for (const auto& [name, parameter] : model.named_parameters()) elsewhere.insert(name);
  for (const dist::LocalTensor& mine : trainer.fabric().strategy().local_state(model)) {
    elsewhere.erase(mine.name);
  }
  NamedTensors kept;
  for (const optim::ParameterGroup& group : trainer.optimizer().groups()) {
    for (const auto& entry : group.parameters) {
      if (!elsewhere.contains(entry.first)) kept.push_back(entry);
    }
  }
  return kept;
}

Tensors copies_of(const NamedTensors& tensors) {
  const NoGrad guard;
  Tensors copies;
  for (const auto& [name, x] : tensors) {
    copies.push_back(ops::clone(detach(x)));
    let_go(x);
  }
  return copies;
}

/// Copies in which averages are formed.
Tensors wide_copies_of(const NamedTensors& tensors) {
  Tensors copies = copies_of(tensors);
  for (Tensor& x : copies) x = ops::cast(x, x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  return copies;
}

constexpr const char* kAverage = "average";
constexpr const char* kWeight = "weight";

/// Averages and weights as an optimizer's state: strategies know how to put together and to share
/// out what ranks keep of one, in a dtype that need not be the weights'.
class AveragesState : public optim::Optimizer {
 public:
  AveragesState(const NamedTensors& weights, const Tensors& averages)
      : Optimizer("EmaWeightAveraging", {}) {
    NamedTensors parameters;
    for (size_t i = 0; i < weights.size(); ++i) {
      parameters.emplace_back(weights[i].first, averages[i]);
    }
    add_groups({{.parameters = parameters}});
  }

 protected:
  void check(const optim::ParameterGroup&) const override {}
  std::vector<std::string> state_names(const optim::ParameterGroup&) const override {
    return {kAverage, kWeight};
  }
  void update(const optim::ParameterGroup&, const Batch&, double) override {
    WEFT_FAIL("EmaWeightAveraging: expected no step of the state that it saves");
  }
};

}  // namespace

EmaWeightAveraging::EmaWeightAveraging(EmaOptions options) : options_(options) {
  WEFT_CHECK(options.decay >= 0 && options.decay < 1, "decay: expected a number in [0, 1), got {}",
             options.decay);
  WEFT_CHECK(options.update_every_n_steps > 0,
             "update_every_n_steps: expected a positive number, got {}",
             options.update_every_n_steps);
}

void EmaWeightAveraging::on_fit_start(Trainer& trainer, TrainingModule& module) {
  WEFT_CHECK(trainer.optimizers() == 1 && module.models().size() == 1,
             "EmaWeightAveraging: of one model with one optimizer, got {} and {}",
             module.models().size(), trainer.optimizers());
  weights_ = kept_of(trainer, module.model());
  averages_.clear();
  aside_.clear();
  has_begun_ = is_in_place_ = has_ended_ = false;
}

void EmaWeightAveraging::on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor&,
                                            const Batch&, int64_t) {
  const int64_t since = trainer.global_step() - options_.update_starting_at_step;
  if (!trainer.has_stepped() || since < 0 || since % options_.update_every_n_steps != 0) return;
  trainer.fabric().strategy().keep_changes();
  if (!has_begun_) {
    averages_ = wide_copies_of(weights_);
    has_begun_ = true;
    return;
  }
  const NoGrad guard;
  for (size_t i = 0; i < weights_.size(); ++i) {
    Tensor& average = averages_[i];
    const Tensor& kept = weights_[i].second;
    const Tensor weight = ops::cast(detach(kept), average.dtype());
    average = average * options_.decay + weight * (1 - options_.decay);
    let_go(kept);
  }
}

void EmaWeightAveraging::set_weights(Trainer& trainer, const Tensors& values) {
  const NoGrad guard;
  for (size_t i = 0; i < weights_.size(); ++i) {
    Tensor& weight = weights_[i].second;
    ops::copy_(weight, ops::cast(values[i], weight.dtype()));
    rest(weight);  // what is measured is rounded as after a step, from the first batch on
  }
  // As after a step: what was gathered of the weights is not theirs any more.
  trainer.fabric().strategy().after_step();
}

void EmaWeightAveraging::put_in_place(Trainer& trainer) {
  if (!has_begun_ || is_in_place_) return;
  is_in_place_ = true;
  trainer.fabric().strategy().keep_changes();
  aside_ = copies_of(weights_);
  set_weights(trainer, averages_);
}

void EmaWeightAveraging::put_back(Trainer& trainer) {
  if (!is_in_place_ || has_ended_) return;
  set_weights(trainer, aside_);
  aside_.clear();
  is_in_place_ = false;
}

void EmaWeightAveraging::on_validation_start(Trainer& trainer, TrainingModule&) {
  put_in_place(trainer);
}

void EmaWeightAveraging::on_validation_end(Trainer& trainer, TrainingModule&) { put_back(trainer); }

void EmaWeightAveraging::on_exception(Trainer& trainer, TrainingModule&, const std::exception&) {
  put_back(trainer);
}

void EmaWeightAveraging::on_train_end(Trainer& trainer, TrainingModule&) {
  put_in_place(trainer);
  has_ended_ = true;
}

void EmaWeightAveraging::on_save_start(Trainer& trainer, TrainingModule&) { put_in_place(trainer); }

void EmaWeightAveraging::on_save_end(Trainer& trainer, TrainingModule&) { put_back(trainer); }

NamedTensors EmaWeightAveraging::tensors(Trainer& trainer, TrainingModule&) {
  if (!has_begun_) return {};
  AveragesState state(weights_, averages_);
  optim::OptimizerState mine = state.state_dict();
  for (size_t i = 0; i < weights_.size(); ++i) {
    const std::string prefix = weights_[i].first + ".";
    mine.tensors.emplace_back(prefix + kAverage, averages_[i]);
    mine.tensors.emplace_back(prefix + kWeight, aside_[i]);
    mine.tensors.emplace_back(prefix + "step", Tensor::zeros({}, DType::i64));
  }
  state.load_state_dict(mine);
  return trainer.fabric().strategy().optimizer_state(state).tensors;
}

void EmaWeightAveraging::load_tensors(Trainer& trainer, TrainingModule&,
                                      const NamedTensors& whole) {
  has_begun_ = !whole.empty();
  if (!has_begun_) return;
  averages_ = wide_copies_of(weights_);
  AveragesState state(weights_, averages_);
  trainer.fabric().strategy().load_optimizer_state(state, {whole, state.state_dict().groups});
  const NamedTensors mine = state.state_dict().tensors;
  const std::unordered_map<std::string, Tensor> by_name(mine.begin(), mine.end());
  Tensors weights;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const std::string& name = weights_[i].first;
    const auto average = by_name.find(name + "." + kAverage);
    WEFT_CHECK(average != by_name.end(), "EmaWeightAveraging: expected an average of \"{}\"", name);
    averages_[i] = average->second;
    weights.push_back(by_name.at(name + "." + kWeight));
  }
  set_weights(trainer, weights);
}

}  // namespace weft::train
