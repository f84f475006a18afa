#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "dist/comm/exact_sum.h"
#include "dist/comm/in_process.h"
#include "dist/comm/tree_accumulator.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/strategy/testing/oracle.h"
#include "optim/clip.h"

using namespace weft;
using namespace weft::dist;

namespace {

CommunicatorPtr borrowed(Communicator& c) {
  return {&c, [](Communicator*) {}};
}

/// The oracle's model with dropout, which is where ranks would differ first.
class Dropping : public OracleModel {
 public:
  Tensor forward(const Tensor& x) override { return OracleModel::forward(ops::dropout(x, 0.3)); }
};

/// Three steps of 8 micro-batches each on any number of ranks. Each micro-batch's
/// random numbers are its own; gradients are added in one tree over the 8.
NamedTensors train(Communicator& c, int strategy) {
  constexpr int kMicroBatches = 8;
  constexpr int64_t kRows = 22;  // seven of 3, one of 1
  manual_seed(3);
  Dropping model;
  std::unique_ptr<DistributedDataParallel> ddp;
  std::unique_ptr<FullySharded> fsdp;
  optim::ParameterGroups groups(model.named_parameters());
  if (strategy == 0) {
    ddp = std::make_unique<DistributedDataParallel>(
        model, borrowed(c),
        DdpOptions{.average = ReduceOp::kSum, .gradient_as_bucket_view = c.size() == 2});
  } else {
    FsdpOptions options{.shard = borrowed(c), .average = ReduceOp::kSum};
    if (strategy == 2) options.sharding = Sharding::kZero1;
    if (strategy == 3 && c.size() >= 4) {
      const int base = c.rank() / 2 * 2;
      std::vector<int> column;
      for (int r = c.rank() % 2; r < c.size(); r += 2) column.push_back(r);
      options.shard = c.group({base, base + 1}, "shard");
      options.replicate = c.group(column, "replicate");
    }
    fsdp = std::make_unique<FullySharded>(model, options, wrap_modules<nn::Linear>());
    groups = fsdp->shard(groups);
  }
  optim::AdamW optimizer(groups, {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    const OracleBatch whole = oracle_batch(step, kRows, DType::f32);
    optimizer.zero_grad();
    TreeAccumulator tree;
    for (int i = 0; i < kMicroBatches / c.size(); ++i) {
      const int micro = i * c.size() + c.rank();
      const OracleShare share = share_of(whole, kMicroBatches, micro);
      generator() = {.seed = 1, .stream = static_cast<uint64_t>(step * kMicroBatches + micro)};
      const Tensor logits = ddp ? (*ddp)(share.batch.x) : model(share.batch.x);
      backward(ops::cross_entropy(logits, share.batch.labels) * share.weight);
      tree.push(take_gradients(optimizer.parameters()));
    }
    set_gradients(optimizer.parameters(), tree.finish());
    std::vector<Tensor> gradients;
    for (const Tensor& p : optimizer.parameters()) gradients.push_back(p.grad());
    const double norm = exact_norm(gradients, fsdp && strategy != 3 ? &c : nullptr);
    // In the hybrid case the norm over the shard group alone, which the engine knows.
    optimizer.step(strategy == 3 ? 0.5 : optim::clip_coefficient(norm, 0.1));
    if (fsdp) fsdp->after_step();
  }
  return fsdp ? fsdp->full_state_dict(true) : cloned(model.state_dict());
}

}  // namespace

TEST_CASE("deterministic reduction: the same bits on 1, 2, 4 and 8 ranks, whatever the strategy") {
  for (const std::vector<int>& alike : {std::vector<int>{0, 1, 2}, std::vector<int>{3}}) {
    NamedTensors first;
    for (int strategy : alike) {
      for (int ranks : {1, 2, 4, 8}) {
        std::vector<NamedTensors> results(ranks);
        run_ranks(ranks, [&](Communicator& c) { results[c.rank()] = train(c, strategy); });
        if (first.empty()) first = results[0];
        for (const NamedTensors& result : results) {
          bool same = true;
          for (size_t i = 0; i < first.size(); ++i) {
            same = same && std::memcmp(first[i].second.raw(), result[i].second.raw(),
                                       first[i].second.nbytes()) == 0;
          }
          INFO("strategy " << strategy << " on " << ranks);
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("trap: a gradient norm does not depend on where shards begin") {
  std::vector<float> values(10007);
  Philox random(1);
  for (float& x : values) x = static_cast<float>(random.normal());
  const Tensor all = Tensor::from(values, {10007});
  const double expected = exact_norm({all}, nullptr);
  for (int ranks : {2, 3, 8}) {
    run_ranks(ranks, [&](Communicator& c) {
      const auto counts = split_evenly(10007, ranks);
      int64_t begin = 0;
      for (int r = 0; r < c.rank(); ++r) begin += counts[r];
      const Tensor part = Tensor::from(
          std::vector<float>(values.begin() + begin, values.begin() + begin + counts[c.rank()]),
          {counts[c.rank()]});
      const double norm = exact_norm({part}, &c);
      WEFT_CHECK(norm == expected, "{} on {} ranks, {} on one", norm, ranks, expected);
    });
  }
  // Close to what the kernel says, which rounds in f64.
  Tensor p = Tensor::zeros({10007}).set_requires_grad(true);
  p.set_grad(all);
  CHECK(optim::grad_norm({p}) == Approx(expected).epsilon(1e-14));
  // A program may give gradients any strides.
  const Tensor rows = Tensor::from(std::vector<float>{1, 2, 4, 6, 8, 10}, {2, 3});
  CHECK(exact_norm({ops::transpose(rows, 0, 1)}, nullptr) == exact_norm({rows}, nullptr));
  CHECK(exact_norm({ops::expand(Tensor::full({1}, 3), {4})}, nullptr) == 6);
}
