#include "dist/data_parallel/fsdp.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <optional>

#include "autograd/autocast.h"
#include "autograd/checkpoint.h"
#include "autograd/fused.h"
#include "core/allocator.h"
#include "dist/comm/in_process.h"
#include "dist/data_parallel/ddp.h"
#include "dist/strategy/strategies.h"
#include "dist/strategy/testing/oracle_training.h"
#include "nn/meta.h"
#include "optim/clip.h"
#include "optim/optimizer_state.h"

using namespace weft;
using namespace weft::dist;

namespace {

CommunicatorPtr borrowed(Communicator& c) {
  return {&c, [](Communicator*) {}};
}

/// The shard and replicate groups of a rank: neighbours shard.
std::pair<CommunicatorPtr, CommunicatorPtr> groups_of(Communicator& c, int replicas) {
  if (replicas == 1) return {borrowed(c), nullptr};
  const int shard = c.size() / replicas;
  std::vector<int> row, column;
  for (int i = 0; i < shard; ++i) row.push_back(c.rank() / shard * shard + i);
  for (int i = 0; i < replicas; ++i) column.push_back(c.rank() % shard + i * shard);
  return {c.group(row, "shard"), c.group(column, "replicate")};
}

MakeStrategy fsdp(Sharding sharding, int replicas = 1, bool prefetches = true) {
  return [=](const CommunicatorPtr& world) {
    const auto [shard, replicate] = groups_of(*world, replicas);
    return make_sharded(
        "fsdp",
        {.shard = shard, .replicate = replicate, .sharding = sharding, .prefetches = prefetches});
  };
}

}  // namespace

TEST_CASE("every sharding on N ranks equals one rank: tied weights, odd sizes, zero-size shards") {
  for (Sharding sharding :
       {Sharding::kFullShard, Sharding::kShardGradOp, Sharding::kZero2, Sharding::kZero1}) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      INFO(static_cast<int>(sharding) << " on " << ranks);
      check_against_one_rank({}, fsdp(sharding), ranks);
    }
  }
}

TEST_CASE("trap: hybrid shardings equal one rank at every shape of the mesh, (n, 1) too") {
  for (int replicas : {2, 4}) {
    INFO(replicas);
    check_against_one_rank({}, fsdp(Sharding::kFullShard, replicas), 4);
    check_against_one_rank({}, fsdp(Sharding::kZero2, replicas), 4);
  }
  check_against_one_rank({}, fsdp(Sharding::kFullShard, 3), 6);
}

TEST_CASE("one unit, no prefetch, accumulation, checkpointed activations") {
  check_against_one_rank({.units = {}}, fsdp(Sharding::kFullShard), 3);
  check_against_one_rank({}, fsdp(Sharding::kFullShard, 1, false), 2);
  check_against_one_rank({.accumulate = 3}, fsdp(Sharding::kFullShard), 3);
  check_against_one_rank({.accumulate = 2}, fsdp(Sharding::kZero1), 2);
  check_against_one_rank({.checkpoints = true}, fsdp(Sharding::kFullShard), 3);
  check_against_one_rank({.accumulate = 2, .checkpoints = true}, fsdp(Sharding::kShardGradOp), 2);
  check_against_one_rank({.accumulate = 2, .checkpoints = true}, fsdp(Sharding::kZero1), 3);
  check_against_one_rank({.accumulate = 2, .checkpoints = true}, fsdp(Sharding::kZero2), 3);
  check_against_one_rank({.accumulate = 2, .checkpoints = true}, fsdp(Sharding::kFullShard, 2), 4);
}

TEST_CASE("frozen parameters stay as they are under every sharding") {
  const OracleSetting setting{.frozen = {"fc1.weight", "norm.bias", "tied.weight"}};
  for (Sharding sharding : {Sharding::kFullShard, Sharding::kZero1}) {
    check_against_one_rank(setting, fsdp(sharding), 3);
  }
}

TEST_CASE("offloaded to the CPU, with accumulation, everything is as it was") {
  const MakeStrategy make = [](const CommunicatorPtr& world) {
    return make_sharded("fsdp", {.shard = world, .cpu_offload = true});
  };
  check_against_one_rank({.accumulate = 3}, make, 3);
}

TEST_CASE("built on the meta device, the ranks of a host need one copy of the weights, not N") {
  static constexpr int kLayers = 16, kRanks = 4;
  static constexpr int64_t kWidth = 128, kUnit = (kWidth + 1) * kWidth * 4,
                           kModel = kLayers * kUnit;
  const auto make = [] {
    manual_seed(6);
    auto model = std::make_unique<nn::Sequential>();
    for (int i = 0; i < kLayers; ++i) model->append<nn::Linear>(kWidth, kWidth);
    return model;
  };
  const NamedTensors expected = make()->state_dict();
  const auto peak_of = [&](bool on_meta) {
    CachingAllocator& host = allocator(Device{});
    const size_t before = host.stats().live;
    size_t peak = 0;
    run_ranks(kRanks, [&](Communicator& c) {
      std::optional<nn::MetaScope> meta;
      if (on_meta && c.rank() != 0) meta.emplace();
      const auto model = make();
      const uint64_t offset = generator().offset;
      meta.reset();
      make();
      WEFT_CHECK(generator().offset == offset, "the generator stands at {}, not at {}", offset,
                 generator().offset);
      c.barrier().wait();
      if (c.rank() == 0) host.reset_peak();
      c.barrier().wait();
      FullySharded fsdp(*model, {.shard = borrowed(c)}, wrap_modules<nn::Linear>());
      c.barrier().wait();
      if (c.rank() == 0) peak = host.stats().peak_live - before;
      c.barrier().wait();
      WEFT_CHECK(same_bits(fsdp.full_state_dict(true), expected), "rank {} has other weights",
                 c.rank());
    });
    return static_cast<double>(peak) / static_cast<double>(kModel);
  };
  // The first rank's copy turns into the parts of all, unit by unit; each rank holds a unit twice
  // while it is dealt out: 4 * 2 / 16 of the model.
  CHECK(peak_of(true) < 1.6);
  CHECK(peak_of(false) > kRanks);
}

TEST_CASE("FSDP has the bits of DDP") {
  // Sums follow one tree whatever is sharded; only the clipping norm is formed differently.
  std::vector<NamedTensors> results;
  for (int strategy = 0; strategy < 3; ++strategy) {
    run_ranks(4, [&](Communicator& c) {
      const auto model = make_oracle_model(DType::f32);
      std::unique_ptr<DistributedDataParallel> ddp;
      std::unique_ptr<FullySharded> fsdp;
      optim::ParameterGroups groups(model->named_parameters());
      if (strategy == 0) {
        ddp = std::make_unique<DistributedDataParallel>(*model, borrowed(c));
      } else {
        fsdp = std::make_unique<FullySharded>(
            *model,
            FsdpOptions{.shard = borrowed(c),
                        .sharding = strategy == 1 ? Sharding::kFullShard : Sharding::kZero2},
            wrap_modules<nn::Linear>());
        groups = fsdp->shard(groups);
      }
      optim::AdamW optimizer(groups, {.lr = 0.01});
      for (int step = 0; step < 3; ++step) {
        const OracleShare share = share_of(oracle_batch(step, 8, DType::f32), 4, c.rank());
        optimizer.zero_grad();
        const Tensor logits = ddp ? (*ddp)(share.batch.x) : (*model)(share.batch.x);
        backward(ops::cross_entropy(logits, share.batch.labels));
        optimizer.step();
        if (fsdp) fsdp->after_step();
      }
      if (c.rank() == 0) results.push_back(ddp ? cloned(model->state_dict()) : NamedTensors());
      if (fsdp) {
        NamedTensors state = fsdp->full_state_dict();
        if (c.rank() == 0) results.back() = state;
      }
    });
  }
  REQUIRE(results.size() == 3);
  for (int other : {1, 2}) {
    for (size_t i = 0; i < results[0].size(); ++i) {
      CHECK(std::memcmp(results[0][i].second.raw(), results[other][i].second.raw(),
                        results[0][i].second.nbytes()) == 0);
    }
  }
}

TEST_CASE("trap: clipping uses the global norm over shards") {
  run_ranks(4, [](Communicator& c) {
    const auto model = make_oracle_model(DType::f32);
    const OracleBatch batch = oracle_batch(0, 8, DType::f32);
    backward(ops::cross_entropy((*model)(batch.x), batch.labels));
    const double expected = optim::grad_norm(model->parameters());
    model->zero_grad();
    FullySharded fsdp(*model, {.shard = borrowed(c)}, wrap_modules<nn::Linear>());
    backward(ops::cross_entropy((*model)(batch.x), batch.labels));
    const double norm = fsdp.grad_norm();
    WEFT_CHECK(std::abs(norm - expected) < 1e-6 * expected, "norm {}, expected {}", norm, expected);
  });
}

TEST_CASE("mixed precision: parameters, reductions and buffers each in a dtype of its own") {
  struct Scaled : nn::Module {
    Scaled()
        : fc(add<nn::Linear>("fc", 3, 2)), scale(buffer("scale", Tensor::full({2}, 1 + 0x1p-10))) {}
    Tensor forward(const Tensor& x) override { return fc(x) * scale; }
    nn::Linear& fc;
    Tensor scale;
  };
  run_ranks(2, [](Communicator& c) {
    manual_seed(1);
    Scaled model;
    FullySharded fsdp(model, {.shard = borrowed(c),
                              .param_dtype = DType::bf16,
                              .reduce_dtype = DType::f16,
                              .buffer_dtype = DType::bf16});
    // bf16 has 8 bits: the buffer is 1.
    WEFT_CHECK(model.scale.dtype() == DType::bf16 && model.scale.to_vector()[0] == 1,
               "the buffer is {}", model.scale);
    const Tensor y = model(Tensor::full({4, 3}, 1, DType::bf16));
    WEFT_CHECK(y.dtype() == DType::bf16, "the output is {}", y);
    const int64_t before = fsdp.bytes_sent();
    backward(ops::sum(y));
    // Two ranks, 8 elements of 2 bytes: half of them leave; backward unshards nothing again.
    WEFT_CHECK(fsdp.bytes_sent() - before == 8, "{} bytes", fsdp.bytes_sent() - before);
    for (const auto& [name, slice] : fsdp.named_parameters()) {
      if (slice.numel() == 0) continue;
      WEFT_CHECK(slice.dtype() == DType::f32 && slice.grad().dtype() == DType::f32, "{}: {}, {}",
                 name, slice, slice.grad());
      WEFT_CHECK(slice.grad().to_vector()[0] == 4, "{} has the gradient {}", name, slice.grad());
    }
  });
}

namespace {

/// What three steps leave under an Autocast, and the bytes that left each rank, summed over ranks.
struct Trained {
  NamedTensors weights;
  optim::OptimizerState optimizer;
  int64_t gathered = 0, unshardings = 0;
  std::vector<std::pair<std::string, int64_t>> units;
};

/// `rows`, a parameter that is added, a layer norm, and weights of products; parts of odd sizes.
struct Net : nn::Module {
  Net()
      : rows(parameter("rows", Tensor::full({3, 5}, 0.3))),
        first(add<nn::Linear>("first", 5, 9)),
        norm(add<nn::LayerNorm>("norm", 9)),
        second(add<nn::Linear>("second", 9, 7, false)) {}
  Tensor forward(const Tensor& x) override { return second(norm(first(x + rows))); }
  Tensor rows;
  nn::Linear& first;
  nn::LayerNorm& norm;
  nn::Linear& second;
};

Trained train_narrow(const FsdpOptions& given, int ranks, int replicas, DType autocast) {
  Trained result;
  std::vector<int64_t> gathered(ranks);
  run_ranks(ranks, [&](Communicator& c) {
    manual_seed(5);
    Net net;
    FsdpOptions options = given;
    std::tie(options.shard, options.replicate) = groups_of(c, replicas);
    FullySharded fsdp(net, options, wrap_modules<nn::Linear>());
    optim::AdamW optimizer(fsdp.shard(optim::ParameterGroups(net.named_parameters())),
                           {.lr = 0.01});
    const Autocast mode(autocast);  // whose casts of weights must not outlive a step
    for (int step = 0; step < 3; ++step) {
      generator() = {.seed = 9, .stream = static_cast<uint64_t>(100 * step + c.rank())};
      const Tensor x = ops::randn({3, 5});
      optimizer.zero_grad();
      backward(ops::sum(ops::square(net(x))));
      optimizer.step();
      fsdp.after_step();
    }
    const NamedTensors weights = fsdp.full_state_dict();
    const optim::OptimizerState state = fsdp.full_optimizer_state(optimizer.state_dict());
    if (c.rank() == 0) {
      result.weights = cloned(weights);
      result.optimizer = {cloned(state.tensors), state.groups};
      result.units = fsdp.units();
    }
    // A forward alone unshards, and reduces nothing.
    const NoGrad guard;
    const int64_t before = fsdp.bytes_sent(), unshardings = fsdp.unshardings();
    net(Tensor::full({3, 5}, 1));
    fsdp.after_step();
    gathered[c.rank()] = fsdp.bytes_sent() - before;
    if (c.rank() == 0) result.unshardings = fsdp.unshardings() - unshardings;
  });
  for (int64_t bytes : gathered) result.gathered += bytes;
  return result;
}

}  // namespace

TEST_CASE("weights of products travel in the products' dtype, and nothing changes but the bytes") {
  for (DType narrow : {DType::bf16, DType::f16}) {
    for (Sharding sharding :
         {Sharding::kFullShard, Sharding::kShardGradOp, Sharding::kZero2, Sharding::kZero1}) {
      for (const auto& [ranks, replicas] : {std::pair(1, 1), {2, 1}, {3, 1}, {4, 2}, {8, 1}}) {
        for (bool prefetches : {true, false}) {
          FsdpOptions options{.sharding = sharding, .prefetches = prefetches};
          const Trained wide = train_narrow(options, ranks, replicas, narrow);
          options.product_dtype = narrow;
          const Trained mine = train_narrow(options, ranks, replicas, narrow);
          INFO(name(narrow) << ", sharding " << static_cast<int>(sharding) << ", " << ranks);
          CHECK(same_bits(mine.weights, wide.weights));
          CHECK(same_bits(mine.optimizer.tensors, wide.optimizer.tensors));
          CHECK(mine.units == wide.units);
          REQUIRE(mine.unshardings == wide.unshardings);
          // Two bytes of each element of the layers' weights, 45 and 63, but for a gap of two bytes
          // behind an odd number of them.
          const int others = ranks / replicas - 1;
          CHECK(wide.gathered - mine.gathered == replicas * others * ((2 * 45 - 2) + (2 * 63 - 2)));
        }
      }
    }
  }
}

TEST_CASE("a model of weights alone gathers half the bytes") {
  run_ranks(4, [](Communicator& c) {
    for (bool is_narrow : {false, true}) {
      nn::Sequential model;
      for (int i = 0; i < 3; ++i) model.append<nn::Linear>(8, 8, false);
      FullySharded fsdp(
          model, {.shard = borrowed(c), .product_dtype = is_narrow ? DType::bf16 : DType::f32},
          wrap_modules<nn::Linear>());
      const NoGrad guard;
      const int64_t before = fsdp.bytes_sent();
      model(Tensor::full({1, 8}, 1));
      const int64_t sent = fsdp.bytes_sent() - before;
      WEFT_CHECK(sent == 3 * 3 * (64 / 4) * (is_narrow ? 2 : 4), "{} bytes", sent);
      // Whole weights are f32, and their gradients: only their values are those of products.
      WEFT_CHECK(model.parameters()[0].dtype() == DType::f32, "{}", model.parameters()[0]);
    }
  });
}

TEST_CASE("gradients that travel in 16 bits are within their bound of the sum") {
  // A layer of no bias on one row has the row for its gradient.
  static constexpr int64_t kWidth = 301;
  for (const auto& [narrow, u] : {std::pair(DType::bf16, 0x1p-8), {DType::f16, 0x1p-11}}) {
    for (int replicas : {1, 2}) {
      std::vector<double> bytes;
      for (DType travels : {DType::f32, narrow}) {
        run_ranks(4, [&, u = u](Communicator& c) {
          const auto [shard, replicate] = groups_of(c, replicas);
          nn::Linear model(kWidth, 1, false);
          FullySharded fsdp(model, {.shard = shard,
                                    .replicate = replicate,
                                    .average = ReduceOp::kSum,
                                    .reduce_dtype = travels});
          std::vector<Tensor> rows;
          for (int r = 0; r < c.size(); ++r) {
            generator() = {.seed = 4, .stream = static_cast<uint64_t>(r)};
            rows.push_back(ops::randn({1, kWidth}));
          }
          model(rows[0]);
          const int64_t before = fsdp.bytes_sent();
          backward(ops::sum(model(rows[c.rank()])));
          if (c.rank() == 0) bytes.push_back(static_cast<double>(fsdp.bytes_sent() - before));
          std::vector<double> sum(kWidth), magnitude(kWidth);
          for (const Tensor& row : rows) {
            const std::vector<double> g = row.to_vector();
            for (int64_t i = 0; i < kWidth; ++i) sum[i] += g[i], magnitude[i] += std::abs(g[i]);
          }
          const auto slice = fsdp.named_parameters()[0].second;
          const std::vector<double> got = slice.grad().to_vector();
          const int64_t first = shard->rank() * ((kWidth + shard->size() - 1) / shard->size());
          bool is_rounded = false;
          for (size_t i = 0; i < got.size(); ++i) {
            const double all = magnitude[first + i];
            // And the sum of four in f32.
            double bound = 3 * 0x1p-24 * all;
            if (travels != DType::f32) {
              bound += (replicas == 1 ? 2 * u + u * u : 3 * u + 3 * u * u + u * u * u) * all;
            }
            const double error = std::abs(got[i] - sum[first + i]);
            WEFT_CHECK(error <= bound, "element {}: off by {}, expected {} at most", first + i,
                       error, bound);
            is_rounded = is_rounded || error > 4 * 0x1p-24 * all;
          }
          WEFT_CHECK(is_rounded == (travels != DType::f32), "{} travelled in another dtype",
                     travels);
        });
      }
      CHECK(bytes[1] == Approx(bytes[0] / 2));
    }
  }
}

TEST_CASE("trap: accumulation happens in the dtype of the reduction") {
  // 300 gradients of 1 add up to 300 in f32; in bf16, which has 8 bits, they would stop at 256.
  run_ranks(2, [](Communicator& c) {
    nn::Linear model(1, 1, false);
    model.weight.data<float>()[0] = 1;
    FullySharded fsdp(model, {.shard = borrowed(c),
                              .average = ReduceOp::kSum,
                              .param_dtype = DType::bf16,
                              .reduce_dtype = DType::f32});
    WEFT_CHECK(model.weight.dtype() == DType::bf16, "the whole parameter is {}", model.weight);
    const Tensor x = Tensor::full({1, 1}, 1, DType::bf16);
    for (int i = 0; i < 300; ++i) {
      const std::shared_ptr<void> local = i < 299 ? fsdp.no_sync() : nullptr;
      backward(ops::sum(model(x)));
    }
    double sum = 0;
    for (const auto& [name, slice] : fsdp.named_parameters()) {
      WEFT_CHECK(slice.dtype() == DType::f32, "the slice is {}", slice);
      for (double g : slice.grad().to_vector()) sum += g;
    }
    // One of the two ranks keeps the only element.
    const Tensor total = Tensor::full({1}, sum, DType::f64);
    c.all_reduce(total).wait();
    WEFT_CHECK(total.item() == 600, "the gradient is {}", total.item());
  });
}

namespace {

/// One unit. On [x] each element of `one` has the gradient x, of `ten` 10 x; `none` has none.
struct OneAndTen : nn::Module {
  OneAndTen()
      : one(parameter("one", Tensor::full({5}, 1))),
        none(parameter("none", Tensor::full({2}, 1))),
        ten(parameter("ten", Tensor::full({4}, 1))) {}
  Tensor forward(const Tensor& x) override { return x * (ops::sum(one) + ops::sum(ten) * 10.0); }
  Tensor one, none, ten;
};

/// Such a model on a rank, in passes of which the rank's x is its number, from 1 on: of four ranks
/// the sum is 10.
struct OnRank {
  OnRank(Communicator& c, FsdpOptions options, int replicas) : rank(c.rank()) {
    std::tie(options.shard, options.replicate) = groups_of(c, replicas);
    options.average = ReduceOp::kSum;
    fsdp = std::make_unique<FullySharded>(model, options);
    for (const auto& [name, slice] : fsdp->named_parameters()) slices.push_back(slice);
  }
  void pass() { backward(ops::sum(model(Tensor::full({1}, 1 + rank)))); }
  void pass_alone() {
    const std::shared_ptr<void> local = fsdp->no_sync();
    pass();
  }
  /// The elements' gradients, and 0 of `none`.
  void expect(double one, double ten) const {
    const double expected[] = {one, 0, ten};
    for (size_t i = 0; i < slices.size(); ++i) {
      const Tensor gradient = slices[i].grad();
      WEFT_CHECK(gradient.defined(), "parameter {} has no gradient", i);
      for (double g : gradient.to_vector()) {
        WEFT_CHECK(g == expected[i], "parameter {}: {}, expected {}", i, g, expected[i]);
      }
    }
    const double norm = std::sqrt(5 * one * one + 4 * ten * ten);
    WEFT_CHECK(std::abs(fsdp->grad_norm() - norm) < 1e-12 * norm, "norm {}, expected {}",
               fsdp->grad_norm(), norm);
  }

  const int rank;
  OneAndTen model;
  std::unique_ptr<FullySharded> fsdp;
  Tensors slices;  // of one, none and ten
};

void on_shardings(const std::function<void(OnRank&)>& body) {
  for (const Sharding sharding :
       {Sharding::kFullShard, Sharding::kShardGradOp, Sharding::kZero2, Sharding::kZero1}) {
    for (const auto& [replicas, is_offloaded] : {std::pair(1, false), {2, false}, {1, true}}) {
      INFO("sharding " << static_cast<int>(sharding) << ", replicas " << replicas);
      run_ranks(4, [&, replicas = replicas, is_offloaded = is_offloaded](Communicator& c) {
        OnRank on_rank(c, {.sharding = sharding, .offload_optimizer = is_offloaded}, replicas);
        body(on_rank);
      });
    }
  }
}

}  // namespace

TEST_CASE("trap: gradients of one unit are dropped and added to one by one") {
  on_shardings([](OnRank& r) {
    r.pass();
    r.expect(10, 100);
    r.slices[0].set_grad({});  // as an optimizer of this parameter alone does
    WEFT_CHECK(std::abs(r.fsdp->grad_norm() - 200) < 1e-9, "norm {}", r.fsdp->grad_norm());
    r.pass();
    r.expect(10, 200);
    r.pass();
    r.expect(20, 300);
    r.slices[2].set_grad({});
    r.pass();
    r.expect(30, 100);
    r.slices[0].set_grad({});
    r.slices[2].set_grad({});
    r.pass();
    r.expect(10, 100);
    // What is set in a gradient's place is added to.
    for (size_t i : {0, 2}) {
      const Tensor gradient = ops::clone(r.slices[i].grad());
      r.slices[i].set_grad(gradient * 3.0);
    }
    r.pass();
    r.expect(40, 400);
    for (const Tensor& slice : r.slices) slice.set_grad({});
    r.pass();
    r.expect(10, 100);
  });
}

TEST_CASE("trap: gradients that no_sync() has collected are dropped one by one") {
  on_shardings([](OnRank& r) {
    r.pass_alone();
    r.fsdp->drop_local_gradients({r.model.one});
    r.pass();
    r.expect(10, 200);
    // With sums at the slices: these stay, or go, by themselves.
    r.pass_alone();
    r.slices[2].set_grad({});
    r.fsdp->drop_local_gradients({r.model.ten, r.model.none});
    r.pass();
    r.expect(30, 100);
    r.pass_alone();
    r.fsdp->scale_local_gradients({r.model.ten}, 4);
    r.pass();
    r.expect(50, 600);
    // Memory goes with the last of them.
    r.pass_alone();
    WEFT_CHECK(r.fsdp->memory().accumulated > 0, "nothing was collected");
    r.fsdp->drop_local_gradients({r.model.ten});
    WEFT_CHECK(r.fsdp->memory().accumulated > 0, "what was collected of others is gone");
    r.fsdp->drop_local_gradients({r.model.one});
    WEFT_CHECK(r.fsdp->memory().accumulated == 0, "{} bytes", r.fsdp->memory().accumulated);
    r.fsdp->synchronize();
    r.expect(50, 600);
  });
}

namespace {

/// Equal blocks, each a unit; what a block has besides its layer may be unused.
struct Blocks : nn::Module {
  struct Block : nn::Module {
    Block() : layer(add<nn::Linear>("layer", 4, 4)), extra(add<nn::Linear>("extra", 4, 4)) {}
    Tensor forward(const Tensor& x) override {
      if (is_skipped) return x;
      const Tensor y = ops::tanh(layer(x)) + x;
      return uses_extra ? y + extra(x) : y;
    }
    nn::Linear &layer, &extra;
    bool uses_extra = true, is_skipped = false;
  };
  static constexpr int kBlocks = 6;

  Blocks() : head(add<nn::Linear>("head", 4, 3)) {
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(&add<Block>("block" + std::to_string(i)));
    to(DType::f64);
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (int first = 0; first < kBlocks; first += 3) {
      const auto three = [this, first](const Tensors& in) {
        Tensor y = in[0];
        for (int i = first; i < first + 3; ++i) y = (*blocks[i])(y);
        return y;
      };
      y = checkpoints ? checkpoint(three, {y}) : three({y});
    }
    return head(y);
  }
  nn::Linear& head;
  std::vector<Block*> blocks;
  bool checkpoints = false;
};

}  // namespace

TEST_CASE("trap: units of which ranks reach different parameters are summed each by itself") {
  // Which blocks of this rank use all they have, in this step.
  const auto choose = [](Blocks& model, int number, int rank, int step) {
    const int kind = number % 4;
    model.checkpoints = number >= 4;
    for (int i = 0; i < Blocks::kBlocks; ++i) {
      model.blocks[i]->uses_extra = kind == 0   ? i != Blocks::kBlocks - 1 || rank == 0
                                    : kind == 1 ? rank == 0
                                                : (i + rank + step) % 3 != 0;
      model.blocks[i]->is_skipped = kind == 3 && (i + step) % 4 == 0;  // by all ranks
    }
  };
  const auto rows = [](int rank, int step) {
    return oracle_batch(10 * step + rank, 2, DType::f64).x;
  };
  for (const int kind : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (const auto& [ranks, replicas] : {std::pair(2, 1), {4, 2}, {3, 1}}) {
      manual_seed(1);
      Blocks one;
      optim::SGD optimizer(one.named_parameters(), {.lr = 0.1});
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        for (int rank = 0; rank < ranks; ++rank) {
          choose(one, kind, rank, step);
          const Tensor x = ops::narrow(rows(rank, step), 1, 0, 4);
          backward(ops::sum(ops::square(one(x))) * (1.0 / ranks));
        }
        optimizer.step();
      }
      for (const Sharding sharding :
           {Sharding::kFullShard, Sharding::kShardGradOp, Sharding::kZero2, Sharding::kZero1}) {
        INFO("kind " << kind << ", sharding " << static_cast<int>(sharding) << ", ranks " << ranks);
        run_ranks(ranks,
                  [&, replicas = replicas](Communicator& c) {
                    manual_seed(1);
                    Blocks model;
                    const auto [shard, replicate] = groups_of(c, replicas);
                    FullySharded fsdp(
                        model, {.shard = shard, .replicate = replicate, .sharding = sharding},
                        wrap_modules<Blocks::Block>());
                    optim::SGD optimizer(fsdp.named_parameters(), {.lr = 0.1});
                    for (int step = 0; step < 4; ++step) {
                      optimizer.zero_grad();
                      choose(model, kind, c.rank(), step);
                      const Tensor x = ops::narrow(rows(c.rank(), step), 1, 0, 4);
                      backward(ops::sum(ops::square(model(x))));
                      optimizer.step();
                      fsdp.after_step();
                    }
                    const double d = difference(fsdp.full_state_dict(true), one.state_dict());
                    WEFT_CHECK(d < 1e-12, "the weights differ by {}", d);
                  },
                  {.host = {.timeout_seconds = 5}});
      }
    }
  }
}

TEST_CASE("a rank none of whose parameters a loss reaches takes part in the sums") {
  struct Gated : nn::Module {
    Gated() : fc(add<nn::Linear>("fc", 4, 4)) {}
    Tensor forward(const Tensor& x) override { return is_open ? fc(x) : x * 2.0; }
    nn::Linear& fc;
    bool is_open = true;
  };
  for (const Sharding sharding : {Sharding::kZero2, Sharding::kZero1}) {
    run_ranks(2,
              [&](Communicator& c) {
                manual_seed(1);
                Gated model;
                FullySharded fsdp(model, {.shard = borrowed(c), .sharding = sharding});
                const optim::SGD optimizer(fsdp.named_parameters(), {.lr = 0.1});
                const Tensor x = Tensor::full({6, 4}, 1).set_requires_grad(true);
                for (int pass = 0; pass < 2; ++pass) {
                  model.is_open = c.rank() == pass;
                  const Tensor y = model(x);
                  fsdp.follow({y});
                  backward(ops::sum(y));
                  // Of a weight each column's gradient is the sum of the rows, and a bias' is six.
                  WEFT_CHECK(fsdp.grad_norm() == std::sqrt(20 * 9.0), "the norm is {}",
                             fsdp.grad_norm());
                  model.zero_grad();
                  for (const Tensor& slice : optimizer.parameters()) slice.set_grad({});
                }
              },
              {.host = {.timeout_seconds = 5}});
  }
}

namespace {

/// Units whose parameters are read by one operation: the model's own with each block's, and three.
struct Across : nn::Module {
  struct Block : nn::Module {
    Block(const Tensor& shared, double value)
        : shared(shared), delta(parameter("delta", Tensor::full({64}, value))) {}
    Tensor forward(const Tensor& x) override {
      return x * (is_second ? shared + delta : delta + shared);
    }
    const Tensor shared;
    Tensor delta;
    bool is_second = false;  // delta, of the operands: the compiler chooses which is found first
  };
  explicit Across(bool is_second) : shared(parameter("shared", Tensor::full({64}, 0.5))) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(&add<Block>("block" + std::to_string(i), shared, i));
      blocks.back()->is_second = is_second;
    }
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (Block* const block : blocks) y = (*block)(y);
    return ops::fused([](const Tensors& in) { return in[0] * in[1] + in[2] * in[3]; },
                      {y, blocks[0]->delta, shared, blocks[1]->delta});
  }
  Tensor shared;
  std::vector<Block*> blocks;
};

}  // namespace

TEST_CASE("an operation that reads several units finds each of them until it is over") {
  const auto step = [](nn::Module& model, optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    backward(ops::sum(model(Tensor::full({64}, 1))));
    optimizer.step();
  };
  for (bool is_second : {false, true}) {
    Across one(is_second);
    optim::SGD alone(one.named_parameters(), {.lr = 0x1p-9});
    for (int i = 0; i < 2; ++i) step(one, alone);
    for (bool prefetches : {false, true}) {
      run_ranks(2, [&](Communicator& c) {
        Across model(is_second);
        FullySharded fsdp(model, {.shard = borrowed(c), .prefetches = prefetches},
                          wrap_modules<Across::Block>());
        optim::SGD optimizer(fsdp.named_parameters(), {.lr = 0x1p-9});
        for (int i = 0; i < 2; ++i) {
          step(model, optimizer);
          fsdp.after_step();
        }
        const NamedTensors weights = fsdp.full_state_dict(true);
        WEFT_CHECK(same_bits(weights, one.state_dict()), "the weights differ by {}",
                   difference(weights, one.state_dict()));
      });
    }
  }
}

TEST_CASE("trap: zero-size shards") {
  // 6 elements on 4 ranks: parts of 2, the last one padding alone.
  run_ranks(4, [](Communicator& c) {
    nn::Linear model(6, 1, false);
    FullySharded fsdp(model, {.shard = borrowed(c)});
    const auto slices = fsdp.named_parameters();
    WEFT_CHECK(slices[0].second.numel() == (c.rank() < 3 ? 2 : 0), "rank {} keeps {}", c.rank(),
               slices[0].second);
    optim::AdamW optimizer(fsdp.named_parameters(), {.lr = 0.1});
    backward(ops::sum(model(Tensor::full({2, 6}, 1))));
    optimizer.step();
    fsdp.after_step();
    const auto state = fsdp.full_optimizer_state(optimizer.state_dict(), true);
    for (const auto& [name, tensor] : state.tensors) {
      WEFT_CHECK(name == "weight.step" || tensor.shape() == (Shape{1, 6}), "{} is {}", name,
                 tensor);
    }
  });
}

TEST_CASE("memory: a rank keeps its part, and unshards two units and the next") {
  run_ranks(4, [](Communicator& c) {
    manual_seed(1);
    nn::Sequential model;
    for (int i = 0; i < 6; ++i) model.append<nn::Linear>(64, 64, false);
    FullySharded fsdp(model, {.shard = borrowed(c)}, wrap_modules<nn::Linear>());
    constexpr int64_t kUnit = 64 * 64 * 4;
    const Tensor x = Tensor::full({2, 64}, 1);
    for (int step = 0; step < 2; ++step) {
      fsdp.reset_peak_memory();
      backward(ops::sum(model(x)));
      const auto memory = fsdp.memory();
      WEFT_CHECK(memory.parameters == 6 * kUnit / 4 && memory.gradients == 6 * kUnit / 4,
                 "parts of {} and {} bytes", memory.parameters, memory.gradients);
      WEFT_CHECK(memory.unsharded == 0, "{} bytes stayed unsharded", memory.unsharded);
      const int64_t units = step == 0 ? 2 : 3;  // the first iteration shows what comes next
      WEFT_CHECK(memory.peak_unsharded == units * kUnit, "step {}: {} bytes at peak", step,
                 memory.peak_unsharded);
    }
  });
}

TEST_CASE("bytes sent are those of the formula") {
  // (N - 1) parts for each unsharding and each reduction of a unit of N parts. Backward finds the
  // last two units of the forward at hand, and does not ask for the first: nobody needs dx.
  run_ranks(4, [](Communicator& c) {
    nn::Sequential model;
    for (int i = 0; i < 5; ++i) model.append<nn::Linear>(8, 8, false);
    FullySharded fsdp(model, {.shard = borrowed(c)}, wrap_modules<nn::Linear>());
    const Tensor x = Tensor::full({2, 8}, 1);
    backward(ops::sum(model(x)));
    const int64_t unshardings = fsdp.unshardings(), sent = fsdp.bytes_sent();
    backward(ops::sum(model(x)));
    WEFT_CHECK(fsdp.unshardings() - unshardings == 5 + 2, "{} unshardings",
               fsdp.unshardings() - unshardings);
    constexpr int64_t kPart = 8 * 8 * 4 / 4;
    WEFT_CHECK(fsdp.bytes_sent() - sent == (5 + 2 + 5) * 3 * kPart, "{} bytes",
               fsdp.bytes_sent() - sent);
  });
}

TEST_CASE("states are read at another world size") {
  NamedTensors whole;
  optim::OptimizerState optimizer_state;
  const auto step = [](nn::Module& model, optim::Optimizer& optimizer, int number) {
    const OracleBatch batch = oracle_batch(number, 6, DType::f64);
    optimizer.zero_grad();
    backward(ops::cross_entropy(model(batch.x), batch.labels));
    optimizer.step();
  };
  run_ranks(3, [&](Communicator& c) {
    const auto model = make_oracle_model(DType::f64);
    FullySharded fsdp(*model, {.shard = borrowed(c)}, wrap_modules<nn::Linear>());
    optim::AdamW optimizer(fsdp.named_parameters(), {.lr = 0.01});
    step(*model, optimizer, 0);
    fsdp.after_step();
    const auto state = fsdp.full_optimizer_state(optimizer.state_dict());
    const auto full = fsdp.full_state_dict();
    if (c.rank() == 0) {
      optimizer_state = state;
      whole = full;
    }
  });
  // One more step, on one rank and on two that continue from the three.
  const auto one = make_oracle_model(DType::f64, 50);
  one->load_state_dict(whole);
  optim::AdamW optimizer(one->named_parameters(), {.lr = 0.01});
  optimizer.load_state_dict(optimizer_state);
  step(*one, optimizer, 1);
  run_ranks(2, [&](Communicator& c) {
    const auto model = make_oracle_model(DType::f64, 60);
    FullySharded fsdp(*model, {.shard = borrowed(c), .sharding = Sharding::kZero2});
    optim::AdamW optimizer(fsdp.named_parameters(), {.lr = 0.01});
    fsdp.load_full_state_dict(whole);
    optimizer.load_state_dict(fsdp.shard_optimizer_state(optimizer_state));
    step(*model, optimizer, 1);
    fsdp.after_step();
    const double d = difference(fsdp.full_state_dict(true), one->state_dict());
    WEFT_CHECK(d < 1e-12, "after resharding the parameters differ by {}", d);
  });
}

TEST_CASE("FSDP refuses what it cannot shard") {
  run_ranks(1, [](Communicator& c) {
    nn::Sequential mixed;
    mixed.append<nn::Linear>(2, 2).to(DType::f64);
    mixed.append<nn::Linear>(2, 2);
    expect_error([&] { FullySharded(mixed, {.shard = borrowed(c)}); }, "a unit has one dtype");
    nn::Linear model(2, 2);
    expect_error([&] { FullySharded(model, {}); }, "a group of ranks to shard over is needed");
    {
      FullySharded fsdp(model, {.shard = borrowed(c)});
      expect_error([&] { fsdp.load_full_state_dict({}); }, "the state lacks \"weight\"");
    }
    expect_error([&] { model(Tensor::zeros({1, 2})); }, "after its FullySharded is gone");
  });
}

TEST_CASE("parameters that are changed in place where that would be lost are an Error, once") {
  run_ranks(2, [](Communicator& c) {
    const OracleBatch batch = oracle_batch(0, 4, DType::f32);
    const auto error_of = [](const std::function<void()>& function) -> std::string {
      try {
        function();
      } catch (const Error& error) {
        return error.what();
      }
      return {};
    };
    const auto expect = [](const std::string& got, const std::string& expected) {
      WEFT_CHECK(expected.empty() ? got.empty() : got.find(expected) != std::string::npos,
                 "expected \"{}\", got \"{}\"", expected, got);
    };
    const auto change = [](nn::Module& model) {
      const NoGrad guard;
      for (Tensor& p : model.parameters()) ops::mul_(p, ops::full({}, 0.5, p.dtype()));
    };
    for (Sharding sharding : {Sharding::kFullShard, Sharding::kZero2}) {
      for (const bool is_product : {false, true}) {
        const auto model = make_oracle_model(DType::f32);
        FsdpOptions options{.shard = borrowed(c), .sharding = sharding};
        (is_product ? options.product_dtype : options.param_dtype) = DType::bf16;
        FullySharded fsdp(*model, options, wrap_modules<nn::Linear>());
        const NamedTensors before = fsdp.full_state_dict(true);
        const Autocast precision(DType::bf16);
        expect(error_of([&] { change(*model), (*model)(batch.x), fsdp.after_step(); }),
               "were changed in place where they are rounded to bf16");
        while (!error_of([&] { fsdp.after_step(); }).empty()) {  // a unit each
        }
        // Units without a product are there in all digits, and keep the change.
        const bool is_as_before = same_bits(fsdp.full_state_dict(true), before);
        WEFT_CHECK(is_as_before != is_product, "the weights are {}", is_as_before ? "old" : "new");
        error_of([&] { change(*model); });
        fsdp.load_full_state_dict(before);  // has its own
        WEFT_CHECK(same_bits(fsdp.full_state_dict(true), before), "there are other weights");
      }
    }
    // Parts that an optimizer has changed meanwhile.
    const auto model = make_oracle_model(DType::f32);
    FullySharded fsdp(*model, {.shard = borrowed(c)});
    change(*model);
    for (auto& [name, slice] : fsdp.named_parameters()) {
      const NoGrad guard;
      ops::mul_(slice, ops::full({}, 3, slice.dtype()));
    }
    expect(error_of([&] { fsdp.after_step(); }), "call keep_changes() ahead of the step");
    fsdp.after_step();
  });
}

TEST_CASE("units are chosen by size") {
  run_ranks(1, [](Communicator& c) {
    nn::Sequential model;
    model.append<nn::Linear>(10, 10);
    auto& inner = model.append<nn::Sequential>();
    inner.append<nn::Linear>(20, 20);
    inner.append<nn::Linear>(3, 3);
    FullySharded fsdp(model, {.shard = borrowed(c)}, wrap_by_size(100));
    std::vector<std::string> names;
    for (const auto& [name, elements] : fsdp.units()) names.push_back(name);
    WEFT_CHECK(names == (std::vector<std::string>{"root", "0", "1.0"}), "{} units, the first {}",
               names.size(), names[0]);
  });
}
