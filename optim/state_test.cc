#include <catch2/catch.hpp>

#include "autograd/ops.h"
#include "optim/adam.h"
#include "optim/optimizer_state.h"
#include "optim/sgd.h"

namespace weft::optim {
namespace {

/// A parameter and an optimizer on it, stepped with gradients that depend on the step.
template <class Opt>
struct Run {
  Tensor weight = Tensor::from(std::vector<float>{1, -2, 3}, {3}).set_requires_grad(true);
  Tensor idle = Tensor::from(std::vector<float>{1}, {1}).set_requires_grad(true);
  Opt optimizer;

  template <class O>
  explicit Run(const O& options)
      : optimizer(NamedTensors{{"fc.weight", weight}, {"idle", idle}}, options) {}

  void steps(int first, int last) {
    for (int i = first; i < last; ++i) {
      weight.set_grad(Tensor::from(std::vector<float>{0.1f * i, 0.7f - i, 0.3f}, {3}));
      optimizer.step();
    }
  }
};

template <class Opt, class O>
void check_resumes_bit_for_bit(const O& options) {
  Run<Opt> whole(options), first(options), second(options);
  whole.steps(0, 7);
  first.steps(0, 3);
  const OptimizerState state = first.optimizer.state_dict();
  const std::vector<double> saved = state.tensors[0].second.to_vector();
  // Through text, as a checkpoint does.
  second.optimizer.load_state_dict({state.tensors, nlohmann::json::parse(state.groups.dump())});
  {
    const NoGrad guard;
    ops::copy_(second.weight, first.weight);
  }
  second.steps(3, 7);
  CHECK(second.weight.to_vector() == whole.weight.to_vector());
  const OptimizerState a = whole.optimizer.state_dict(), b = second.optimizer.state_dict();
  CHECK(a.groups == b.groups);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    CHECK(a.tensors[i].first == b.tensors[i].first);
    CHECK(a.tensors[i].second.to_vector() == b.tensors[i].second.to_vector());
  }
  // The loaded state is a copy: later steps did not touch the source.
  CHECK(state.tensors[0].second.to_vector() == saved);
}

TEST_CASE("a run resumed from a state is the run that was never interrupted") {
  check_resumes_bit_for_bit<AdamW>(AdamWOptions{.lr = 0.1});
  check_resumes_bit_for_bit<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.1});
  check_resumes_bit_for_bit<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9});
  check_resumes_bit_for_bit<SGD>(SgdOptions{.lr = 0.1});
}

TEST_CASE("states name their tensors and carry the options") {
  Run<AdamW> run(AdamWOptions{.lr = 0.1});
  run.steps(0, 2);
  run.optimizer.set_lr(0.05);
  const OptimizerState state = run.optimizer.state_dict();
  REQUIRE(state.tensors.size() == 3);
  CHECK(state.tensors[0].first == "fc.weight.exp_avg");
  CHECK(state.tensors[1].first == "fc.weight.exp_avg_sq");
  CHECK(state.tensors[2].first == "fc.weight.step");
  CHECK(state.tensors[2].second.dtype() == DType::i64);
  CHECK(state.tensors[2].second.item() == 2);
  Run<AdamW> other(AdamWOptions{.lr = 0.1});
  other.optimizer.load_state_dict(state);
  CHECK(other.optimizer.lr() == 0.05);
}

TEST_CASE("a state that does not fit is refused and changes nothing") {
  Run<AdamW> run(AdamWOptions{});
  run.steps(0, 1);
  const OptimizerState good = run.optimizer.state_dict();
  const auto load = [&](const OptimizerState& state) { run.optimizer.load_state_dict(state); };

  Run<SGD> sgd(SgdOptions{.momentum = 0.5});
  sgd.steps(0, 1);
  CHECK_THROWS_WITH(load(sgd.optimizer.state_dict()), "AdamW: the state is that of SGD");

  OptimizerState state = good;
  state.groups["groups"][0]["parameters"][1] = "other";
  CHECK_THROWS_WITH(load(state),
                    "AdamW: parameter 1 of group 0 is \"idle\", in the state it is \"other\"");
  state = good;
  state.groups["groups"][0]["options"].erase("eps");
  CHECK_THROWS_WITH(load(state), Catch::Contains("AdamW: malformed state"));
  state = good;
  state.tensors.erase(state.tensors.begin());
  CHECK_THROWS_WITH(load(state), "AdamW: the state lacks \"fc.weight.exp_avg\"");
  state = good;
  state.tensors[1].second = Tensor::zeros({4});
  CHECK_THROWS_WITH(load(state),
                    "AdamW: \"fc.weight.exp_avg_sq\" in the state is f32 [4] on cpu, expected "
                    "shape [3]");
  state = good;
  state.tensors.emplace_back("extra.exp_avg", Tensor::zeros({1}));
  CHECK_THROWS_WITH(load(state), "AdamW: unexpected \"extra.exp_avg\" in the state");
  state = good;
  state.groups["groups"].push_back(state.groups["groups"][0]);
  CHECK_THROWS_WITH(load(state), "AdamW: expected 1 parameter groups, the state has 2");
  CHECK(run.optimizer.state_dict().groups == good.groups);
}

}  // namespace
}  // namespace weft::optim
