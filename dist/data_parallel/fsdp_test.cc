#include "dist/data_parallel/fsdp.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/allocator.h"
#include "dist/comm/in_process.h"
#include "dist/data_parallel/ddp.h"
#include "dist/strategy/strategies.h"
#include "dist/strategy/testing/oracle_training.h"
#include "nn/meta.h"
#include "optim/clip.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

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

TEST_CASE("sharded states are read at another world size") {
  std::vector<FullySharded::Part> parts(3);
  NamedTensors expected;
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
    parts[c.rank()] = fsdp.sharded_state_dict();
    const auto state = fsdp.full_optimizer_state(optimizer.state_dict());
    const auto full = fsdp.full_state_dict();
    if (c.rank() == 0) {
      optimizer_state = state;
      expected = full;
    }
  });
  const NamedTensors whole = FullySharded::assemble(parts);
  CHECK(difference(whole, expected) == 0);
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
  parts.pop_back();
  CHECK_THROWS_WITH(FullySharded::assemble(parts), Contains("elements are there"));
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
