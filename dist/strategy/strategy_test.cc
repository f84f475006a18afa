// Every strategy against one rank, and what cannot be.
#include "dist/strategy/strategy.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "dist/comm/in_process.h"
#include "dist/model_parallel/pipeline.h"
#include "dist/strategy/aliases.h"
#include "dist/strategy/strategy_kind.h"
#include "dist/strategy/testing/oracle_training.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

MakeStrategy by_options(const StrategyOptions& options) {
  return [options](const CommunicatorPtr& world) { return make_strategy(options, world); };
}

/// dp has its ranks inside.
OracleResult train_dp(const OracleSetting& setting, int devices) {
  return train_oracle(setting, [&](const CommunicatorPtr&) {
    return make_strategy({.name = "dp"}, nullptr, devices);
  });
}

void check_close(const OracleResult& a, const OracleResult& b) {
  CHECK(difference(a.parameters, b.parameters) < 1e-10);
  CHECK(difference(a.optimizer, b.optimizer) < 1e-10);
  for (size_t i = 0; i < b.losses.size(); ++i) {
    CHECK(std::abs(a.losses[i] - b.losses[i]) < 1e-10);
    CHECK(std::abs(a.norms[i] - b.norms[i]) < 1e-10);
  }
}

}  // namespace

TEST_CASE("dp equals one rank: uneven batches, accumulation, checkpointed activations, clipping") {
  for (bool is_transformer : {false, true}) {
    const OracleResult one = train_oracle_alone({.is_transformer = is_transformer});
    for (int devices : {1, 2, 3, 4, 8}) {
      INFO(devices);
      check_close(train_dp({.is_transformer = is_transformer}, devices), one);
    }
  }
  const OracleResult one = train_oracle_alone({.rows = 33});
  check_close(train_dp({.accumulate = 3, .checkpoints = true}, 3), one);
}

TEST_CASE("trap: micro-batches that replicas take together draw numbers of their own") {
  struct Dropping : nn::Module {
    Dropping() : a(parameter("a", Tensor::full({1}, 1))) {}
    Tensor forward(const Tensor& x) override { return ops::dropout(x * a, 0.5); }
    Tensor a;
  } model;
  ModelStructure structure;
  structure.replica = [] { return std::make_shared<Dropping>(); };
  const auto dp = make_strategy({.name = "dp"}, nullptr, 2);
  dp->wrap(model, structure);
  manual_seed(1);
  std::set<std::vector<double>> outputs;
  const auto at = [&](int64_t) {
    return MicroBatch{Tensor::full({64}, 1), [&](const Tensor& y) {
                        outputs.insert(y.to_vector());
                        return ops::sum(y);
                      }};
  };
  dp->run(model, {.count = 4, .at = at});
  CHECK(outputs.size() == 4);
  CHECK(generator().stream == 0);
  CHECK(generator().offset == 32);  // two of 64 numbers, one behind the other
}

TEST_CASE("tp equals one rank at 1, 2, 3, 4 and 8 ranks") {
  for (int ranks : {1, 2, 3, 4, 8}) {
    INFO(ranks);
    check_against_one_rank({.is_transformer = true}, by_options({.name = "tp"}), ranks);
  }
  check_against_one_rank({.is_transformer = true, .accumulate = 3, .checkpoints = true},
                         by_options({.name = "tp"}), 2);
}

TEST_CASE("tp inside ddp and inside fsdp equals one rank: every mesh of 4, 6 and 8 ranks") {
  for (const std::string name : {"tp", "fsdp+tp"}) {
    for (const auto& [ranks, tensor] : {std::pair(4, 2), {4, 1}, {6, 3}, {8, 2}, {8, 4}, {2, 2}}) {
      INFO(name << " " << ranks << " / " << tensor);
      check_against_one_rank({.is_transformer = true, .steps = 3},
                             by_options({.name = name, .tensor_parallel = tensor}), ranks);
    }
  }
  check_against_one_rank({.is_transformer = true, .accumulate = 2, .checkpoints = true},
                         by_options({.name = "fsdp+tp"}), 4);
}

TEST_CASE("tp on dealt-out tokens and classes equals one rank, alone, inside ddp and inside fsdp") {
  // Four tokens and five classes: on three ranks neither is divided, on eight some have no token.
  for (int ranks : {1, 2, 3, 4, 8}) {
    INFO(ranks);
    check_against_one_rank(
        {.is_transformer = true, .loss = {.label_smoothing = 0.1}},
        by_options({.name = "tp", .sequence_parallel = true, .parallel_head = ranks <= 4}), ranks);
  }
  for (const std::string name : {"tp", "fsdp+tp"}) {
    for (const auto& [ranks, tensor] : {std::pair(4, 2), {6, 3}, {8, 4}}) {
      INFO(name << " " << ranks << " / " << tensor);
      check_against_one_rank({.is_transformer = true, .accumulate = 2, .checkpoints = true},
                             by_options({.name = name,
                                         .tensor_parallel = tensor,
                                         .sequence_parallel = true,
                                         .parallel_head = true}),
                             ranks);
    }
  }
  check_against_one_rank({.is_transformer = true},
                         by_options({.name = "tp", .sequence_parallel = true}), 2);
  check_against_one_rank({.is_transformer = true},
                         by_options({.name = "tp", .parallel_head = true}), 3);
}

TEST_CASE("f32 gradients of the first step lie within the bound of their summation") {
  for (int ranks : {1, 2, 3, 4}) {
    for (const std::string name : {"ddp", "fsdp", "zero1", "zero2", "hsdp", "tp", "pipeline"}) {
      INFO(name << " " << ranks);
      check_first_gradients(by_options({.name = name}), ranks, true);
    }
    INFO(ranks);
    check_first_gradients(
        [ranks](const CommunicatorPtr&) { return make_strategy({.name = "dp"}, nullptr, ranks); },
        1, true);
    check_first_gradients(
        by_options({.name = "tp", .sequence_parallel = true, .parallel_head = true}), ranks, true);
    if (ranks % 2 == 0) {
      check_first_gradients(
          by_options({.name = "fsdp+tp", .sequence_parallel = true, .parallel_head = true}), ranks,
          true);
    }
    for (const std::string name : {"fsdp", "zero2"}) {
      check_first_gradients(by_options({.name = name}), ranks, false);
    }
  }
}

TEST_CASE("fp16 with loss scaling on dealt-out tokens: ranks skip together, and follow one rank") {
  const auto make =
      by_options({.name = "fsdp+tp", .sequence_parallel = true, .parallel_head = true});
  OracleSetting setting{.dtype = DType::f32,
                        .autocast = DType::f16,
                        .is_transformer = true,
                        .rows = 22,
                        .loss_scale = 1 << 24,
                        .steps = 6};
  // At this scale gradients overflow; where partial sums begin to is a matter of the cut.
  const std::vector<OracleResult> high = train_oracle_ranks(setting, make, 4);
  for (const OracleResult& result : high) {
    CHECK(result.scales == high[0].scales);
    CHECK(result.scales.back() < result.scales.front());
  }
  // At this one they do not. f16 has 11 bits, and its sums are cut differently.
  setting.loss_scale = 1024;
  const OracleResult one = train_oracle_alone(setting);
  for (const OracleResult& result : train_oracle_ranks(setting, make, 4)) {
    CHECK(result.scales == one.scales);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      CHECK(result.losses[i] == Approx(one.losses[i]).epsilon(0.01));
    }
  }
}

TEST_CASE("pipelines of 1, 2, 3, 4 and 8 stages equal one rank, under both schedules") {
  for (Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      INFO(name(schedule) << " " << ranks);
      check_against_one_rank({.is_transformer = true},
                             by_options({.name = "pipeline", .schedule = schedule}), ranks);
    }
  }
  check_against_one_rank({.is_transformer = true, .accumulate = 3, .checkpoints = true},
                         by_options({.name = "pipeline", .micro_batches = 5}), 2);
  // Two and three pipelines side by side.
  check_against_one_rank({.is_transformer = true, .accumulate = 2},
                         by_options({.name = "pipeline", .pipeline_stages = 2}), 4);
  check_against_one_rank({.is_transformer = true},
                         by_options({.name = "pipeline", .pipeline_stages = 2}), 6);
}

TEST_CASE("with a deterministic reduction dp, ddp, fsdp, zero and pipelines have one rank's bits") {
  for (DType autocast : {DType::f32, DType::bf16}) {
    const OracleSetting setting{.dtype = DType::f32,
                                .autocast = autocast,
                                .is_transformer = true,
                                .rows = 22,
                                .dropout = 0.2,
                                .deterministic = 8,
                                .steps = 3};
    const OracleResult one = train_oracle_alone(setting);
    const auto check = [&](const std::string& name, int ranks, const OracleResult& result) {
      INFO(name << " on " << ranks);
      CHECK(same_bits(result.parameters, one.parameters));
      CHECK(result.norms == one.norms);
    };
    for (int ranks : {1, 2, 4, 8}) {
      check("dp", ranks, train_dp(setting, ranks));
      for (const std::string name : {"ddp", "fsdp", "zero1", "zero2", "zero3", "hsdp"}) {
        check(name, ranks, train_oracle_ranks(setting, by_options({.name = name}), ranks)[0]);
      }
      for (Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
        check("pipeline", ranks,
              train_oracle_ranks(setting, by_options({.name = "pipeline", .schedule = schedule}),
                                 ranks)[0]);
      }
      if (ranks < 4) continue;
      check("pipelines side by side", ranks,
            train_oracle_ranks(setting, by_options({.name = "pipeline", .pipeline_stages = 2}),
                               ranks)[0]);
    }
  }
}

TEST_CASE("fp16 with loss scaling: skipped steps, scales and bits are those of one rank") {
  const OracleSetting setting{.dtype = DType::f32,
                              .autocast = DType::f16,
                              .is_transformer = true,
                              .rows = 22,
                              .deterministic = 8,
                              .loss_scale = 1 << 24,
                              .steps = 6};
  const OracleResult one = train_oracle_alone(setting);
  // At first gradients overflow and the scale falls; later it grows again.
  CHECK(one.scales.front() > *std::min_element(one.scales.begin(), one.scales.end()));
  const auto check = [&](const std::string& name, const OracleResult& result) {
    INFO(name);
    CHECK(result.scales == one.scales);
    CHECK(same_bits(result.parameters, one.parameters));
  };
  check("dp", train_dp(setting, 4));
  for (const std::string name : {"ddp", "fsdp", "zero1", "zero2", "hsdp", "pipeline"}) {
    for (int ranks : {2, 8}) {
      check(name, train_oracle_ranks(setting, by_options({.name = name}), ranks)[0]);
    }
  }
}

TEST_CASE("stages that are wholly frozen train as one rank does, in fp16 too") {
  // On eight ranks each segment is a stage: the first, one in the middle and the last are frozen.
  for (const std::vector<std::string>& frozen :
       {std::vector<std::string>{"embed.weight", "embed.bias"},
        {"block1.ln_2.weight", "block1.ln_2.bias", "block1.fc1.weight", "block1.fc1.bias",
         "block1.fc2.weight", "block1.fc2.bias"},
        {"head.weight", "head.bias"}}) {
    INFO(frozen[0]);
    const OracleSetting setting{.dtype = DType::f32,
                                .autocast = DType::f16,
                                .is_transformer = true,
                                .rows = 22,
                                .deterministic = 8,
                                .loss_scale = 1 << 24,
                                .frozen = frozen};
    const OracleResult one = train_oracle_alone(setting);
    const OracleResult many = train_oracle_ranks(setting, by_options({.name = "pipeline"}), 8)[0];
    CHECK(one.scales.front() > one.scales.back());
    CHECK(many.scales == one.scales);
    CHECK(same_bits(many.parameters, one.parameters));
  }
}

TEST_CASE("1F1B keeps fewer micro-batches than GPipe, and other stages' parameters no memory") {
  for (Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    run_ranks(4, [&](Communicator& c) {
      const auto model = make_oracle<OracleTransformer>(DType::f32);
      Pipeline pipeline(*model, model->segments(),
                        {.stages = {&c, [](Communicator*) {}}, .schedule = schedule});
      const OracleBatch batch = oracle_batch(0, 8, DType::f32);
      const auto at = [&](int64_t i) {
        const OracleBatch part = rows_of(batch, i, 1);
        return MicroBatch{
            part.x, [part](const Tensor& y) { return ops::cross_entropy(y, part.labels) * 0.125; }};
      };
      pipeline.run({.count = 8, .at = at});
      const int64_t expected = schedule == Schedule::kGpipe ? 8 : 4 - c.rank();
      WEFT_CHECK(pipeline.peak_in_flight() == expected, "stage {} kept {} micro-batches", c.rank(),
                 pipeline.peak_in_flight());
      // The largest stage is the smallest possible: two of the eight segments on each.
      WEFT_CHECK(!pipeline.segment_names().empty(), "stage {} is empty", c.rank());
      for (const auto& [name, p] : model->named_parameters()) {
        WEFT_CHECK(p.storage()->is_resident() == pipeline.owns(name), "{} on stage {}", name,
                   c.rank());
        WEFT_CHECK(p.grad().defined() == pipeline.owns(name), "the gradient of {}", name);
      }
      if (c.rank() != 3) return;
      try {
        model->embed.weight.raw();
        WEFT_FAIL("another stage's parameter could be touched");
      } catch (const Error& error) {
        WEFT_CHECK(std::string(error.what()) == "pipeline: \"embed.weight\" belongs to stage 0",
                   "{}", error.what());
      }
    });
  }
}

TEST_CASE("a plain loop through a pipeline has the gradients of one rank") {
  const OracleBatch batch = oracle_batch(0, 7, DType::f64);
  const auto whole = make_oracle<OracleTransformer>(DType::f64);
  backward(ops::cross_entropy((*whole)(batch.x), batch.labels));
  run_ranks(3, [&](Communicator& c) {
    const auto model = make_oracle<OracleTransformer>(DType::f64);
    Pipeline pipeline(*model, model->segments(),
                      {.stages = {&c, [](Communicator*) {}}, .micro_batches = 3});
    for (int pass = 0; pass < 2; ++pass) {
      const Tensor logits = pipeline(batch.x);
      backward(ops::cross_entropy(logits, batch.labels));
    }
    const NamedTensors ours = model->named_parameters(), theirs = whole->named_parameters();
    for (size_t i = 0; i < ours.size(); ++i) {
      if (!pipeline.owns(ours[i].first)) continue;
      const double d =
          difference({{"g", ours[i].second.grad()}}, {{"g", theirs[i].second.grad() * 2.0}});
      WEFT_CHECK(d < 1e-12, "{} differs by {}", ours[i].first, d);
    }
  });
}

TEST_CASE("grad() through a pipeline gives every stage the gradients that it asks for") {
  const OracleBatch batch = oracle_batch(0, 7, DType::f64);
  // Of every second parameter and of the input, with a hook that has to run once.
  const auto asked = [&](OracleTransformer& model, const std::function<Tensor(const Tensor&)>& f) {
    const Tensor x = ops::clone(batch.x).set_requires_grad(true);
    Tensors inputs = {x};
    const Tensors parameters = model.parameters();
    for (size_t i = 0; i < parameters.size(); i += 2) inputs.push_back(parameters[i]);
    register_hook(inputs[1], [](const Tensor& gradient) { return gradient * 3.0; });
    NamedTensors result;
    const Tensor loss = ops::cross_entropy(f(x), batch.labels);
    for (const Tensor& gradient : grad({loss}, inputs)) {
      result.emplace_back(std::to_string(result.size()), gradient);
    }
    for (const Tensor& p : parameters) WEFT_CHECK(!p.grad().defined(), "grad() has set {}", p);
    return result;
  };
  const auto whole = make_oracle<OracleTransformer>(DType::f64);
  const NamedTensors expected = asked(*whole, [&](const Tensor& x) { return (*whole)(x); });
  for (const bool recomputes : {false, true}) {
    run_ranks(3, [&](Communicator& c) {
      const auto model = make_oracle<OracleTransformer>(DType::f64);
      model->checkpoints = recomputes;
      Pipeline pipeline(*model, model->segments(),
                        {.stages = {&c, [](Communicator*) {}}, .micro_batches = 3});
      const double d = difference(asked(*model, pipeline), expected);
      WEFT_CHECK(d < 1e-12, "stage {}: a gradient differs by {}", c.rank(), d);
    });
  }
}

TEST_CASE("dropout inside cut layers differs from rank to rank, behind them it is the same") {
  run_ranks(2, [](Communicator& c) {
    manual_seed(1);
    class Mlp : public nn::Module {
     public:
      Mlp() : fc1(add<nn::Linear>("fc1", 4, 8)), fc2(add<nn::Linear>("fc2", 8, 4)) {}
      Tensor forward(const Tensor& x) override {
        inside = ops::dropout(fc1.forward_gelu(x), 0.5);
        WEFT_CHECK(!fails, "no memory");
        return ops::dropout(fc2(inside), 0.5);
      }
      nn::Linear &fc1, &fc2;
      Tensor inside;
      bool fails = false;
    } mlp;
    ModelStructure structure;
    structure.mlps = {{&mlp.fc1, &mlp.fc2}};
    const auto tp = make_strategy({.name = "tp"}, {&c, [](Communicator*) {}});
    tp->wrap(mlp, structure);
    const Tensor in = Tensor::full({64, 4}, 1);
    const auto zeros = [](const Tensor& x) {
      return ops::cast(ops::eq(x, Tensor::scalar(0)), DType::f32);
    };
    const auto differs = [&](const Tensor& x) {
      const Tensor largest = zeros(x), smallest = zeros(x);
      c.all_reduce(largest, ReduceOp::kMax).wait();
      c.all_reduce(smallest, ReduceOp::kMin).wait();
      return ops::sum(largest - smallest).item() > 0;
    };
    // Also behind a forward that has failed between the two.
    for (const bool has_failed : {false, true}) {
      mlp.fails = has_failed;
      if (has_failed) expect_error([&] { tp->forward(mlp, in); }, "no memory");
      mlp.fails = false;
      const Tensor y = tp->forward(mlp, in);
      WEFT_CHECK(differs(mlp.inside), "the ranks dropped the same hidden features");
      WEFT_CHECK(!differs(y), "the ranks dropped other outputs");
    }
  });
}

TEST_CASE("strategies by the names of others") {
  struct Case {
    std::string theirs, ours;
    bool StrategyOptions::*implied = nullptr;
  };
  using O = StrategyOptions;
  std::vector<Case> cases = {{"NO", "single"},
                             {"single_device", "single"},
                             {"MULTI_GPU", "ddp"},
                             {"MULTI_CPU", "ddp"},
                             {"NO_SHARD", "ddp"},
                             {"FSDP", "fsdp"},
                             {"fsdp_cpu_offload", "fsdp", &O::cpu_offload},
                             {"FULL_SHARD", "fsdp"},
                             {"SHARD_GRAD_OP", "fsdp", &O::shard_grad_op},
                             {"HYBRID_SHARD", "hsdp"},
                             {"HYBRID_SHARD_ZERO2", "hsdp", &O::shard_grad_op},
                             {"MEGATRON_LM", "tp"},
                             {"DEEPSPEED", "zero2"},
                             {"deepspeed_stage_1", "zero1"},
                             {"deepspeed_stage_1_offload", "zero1", &O::offload_optimizer},
                             {"deepspeed_stage_2", "zero2"},
                             {"deepspeed_stage_2_offload", "zero2", &O::offload_optimizer},
                             {"deepspeed_stage_3", "zero3"},
                             {"deepspeed_stage_3_offload", "zero3", &O::cpu_offload},
                             {"zero_0", "ddp"},
                             {"zero_1", "zero1"},
                             {"zero_2", "zero2"},
                             {"Zero-3", "zero3"},
                             {"auto", "auto"}};
  for (const std::string start : {"ddp", "ddp_spawn", "ddp_fork", "ddp_notebook"}) {
    cases.push_back({start, "ddp"});
    cases.push_back({start + "_find_unused_parameters_true", "ddp", &O::find_unused});
    cases.push_back({start + "_find_unused_parameters_false", "ddp"});
  }
  for (const auto& [theirs, ours, implied] : cases) {
    INFO(theirs);
    const StrategyOptions found = named_here({.name = theirs});
    CHECK(found.name == ours);
    for (bool O::*setting :
         {&O::cpu_offload, &O::offload_optimizer, &O::shard_grad_op, &O::find_unused}) {
      CHECK(found.*setting == (setting == implied));
    }
    // What it implies is a setting of the strategy.
    CHECK_NOTHROW(sharing_of(found, ours == "single" ? 1 : 4));
  }
  CHECK_THROWS_WITH(named_here({.name = "deepspeed_stage_3_offload_nvme"}),
                    Contains("there is no offloading to NVMe; expected deepspeed_stage_3_offload"));
  CHECK_THROWS_WITH(named_here({.name = "deepspeed_stage_2_ofload"}),
                    Contains("did you mean \"deepspeed_stage_2_offload\"?"));
}

TEST_CASE("ddp says what its gradients travel in, and how many bytes they are") {
  run_ranks(2, [](Communicator& c) {
    const auto described = [&](const char* narrow) {
      const StrategyOptions options{.name = "ddp", .compress_dtype = narrow};
      return make_strategy(options, {&c, [](Communicator*) {}})->describe(1'000'000, 2);
    };
    const auto expect = [&](const char* narrow, const std::string& text) {
      const std::string found = described(narrow);
      WEFT_CHECK(found.ends_with(text), "\"{}\" does not end in \"{}\"", found, text);
    };
    expect("", " 4.0 MB sent by each in a step");
    expect("bf16", " 2.0 MB sent by each in a step, in bf16");
    expect("fp16", " 2.0 MB sent by each in a step, in f16");
  });
}

TEST_CASE("strategies that cannot be are errors that say what was expected") {
  const auto refuse = [](const StrategyOptions& options, int devices, const std::string& text) {
    CHECK_THROWS_WITH(sharing_of(options, devices), Contains(text));
  };
  refuse({.name = "tp", .tensor_parallel = 3}, 4, "tensor-parallel 3 does not divide 4 devices");
  refuse({.name = "ddp", .tensor_parallel = 2}, 4,
         "tensor-parallel is a setting of tp and fsdp+tp, not of ddp");
  refuse({.name = "fsdp+tp"}, 3, "fsdp+tp: 3 devices are no mesh of 2 that share a layer");
  refuse({.name = "pipeline", .pipeline_stages = 3}, 4,
         "pipeline-stages 3 does not divide 4 devices");
  refuse({.name = "fsdp", .pipeline_stages = 2}, 4,
         "pipeline-stages is a setting of pipeline, not of fsdp");
  refuse({.name = "dp", .micro_batches = 2}, 4, "micro-batches is a setting of pipeline");
  for (const auto& kind : strategies()) {
    const StrategyOptions gpipe{.name = kind->name, .schedule = Schedule::kGpipe};
    CHECK(own_settings(kind->name, gpipe).schedule ==
          (kind->name == "pipeline" ? Schedule::kGpipe : Schedule::kUsual));
    if (kind->name == "pipeline") continue;
    refuse(gpipe, 1, "pipeline-schedule is a setting of pipeline, not of " + kind->name);
  }
  refuse({.schedule = Schedule::kGpipe}, 2,
         "pipeline-schedule is a setting of pipeline, not of ddp");
  refuse({.name = "zero2", .cpu_offload = true}, 4,
         "cpu-offload is a setting of fsdp, zero3, hsdp and fsdp+tp, not of zero2");
  refuse({.name = "ddp", .offload_optimizer = true}, 4,
         "offload-optimizer is a setting of fsdp, zero1, zero2, zero3 and hsdp, not of ddp");
  refuse({.name = "fsdp", .cpu_offload = true, .offload_optimizer = true}, 4, "leave out one");
  refuse({.name = "fsdp", .bucket_mb = 5}, 4, "bucket-mb is a setting of ddp, not of fsdp");
  refuse({.name = "ddp", .static_graph = true, .find_unused = true}, 4,
         "find-unused: under static-graph");
  refuse({.name = "zero1", .resident_units = 3}, 4,
         "resident-units is a setting of fsdp, zero3 and hsdp, not of zero1");
  refuse({.name = "fsdp", .wrap = "Block,"}, 4, "wrap: an empty name of a class in \"Block,\"");
  for (const std::string wrap : {"-5", "0", "12x", "99999999999999999999"}) {
    refuse({.name = "fsdp", .wrap = wrap}, 4,
           "wrap: expected a positive number of parameters or names of classes, got \"" + wrap);
  }
  refuse({.name = "fsdp", .buffer_dtype = "int8"}, 4,
         "buffer-dtype: expected bf16, fp16 or fp32, got \"int8\"");
  refuse({.name = "ddp", .sequence_parallel = true}, 4,
         "sequence-parallel is a setting of tp and fsdp+tp, not of ddp");
  refuse({.name = "fsdp", .parallel_head = true}, 4,
         "parallel-head is a setting of tp and fsdp+tp, not of fsdp");
  refuse({.name = "zero4"}, 4, "unknown strategy \"zero4\"; expected single, dp, ddp");
  CHECK_THROWS_WITH(find_strategy("pipline"), Contains("; did you mean \"pipeline\"?"));
  CHECK_THROWS_WITH(parse_schedule("zb-h1"), Catch::EndsWith("is not one of gpipe, 1f1b"));
  CHECK_THROWS_WITH(parse_schedule("gpip"), Contains("did you mean \"gpipe\"?"));

  const auto fails = [](const StrategyOptions& options, int ranks, bool is_transformer,
                        const std::string& text) {
    CHECK_THROWS_WITH(
        train_oracle_ranks({.is_transformer = is_transformer}, by_options(options), ranks),
        Contains(text));
  };
  fails({.name = "tp"}, 5, true, "5 ranks do not divide 24 heads");
  fails({.name = "tp"}, 2, false, "the model has neither attention nor an MLP");
  fails({.name = "tp", .parallel_head = true}, 8, true, "parallel head: 8 ranks for 5 classes");
  fails({.name = "pipeline"}, 2, false, "2 stages cannot be made of 0 segments");
  fails({.name = "pipeline"}, 9, true, "9 stages cannot be made of 8 segments");
  nn::Linear linear(2, 2);
  CHECK_THROWS_WITH(make_strategy({.name = "dp"}, nullptr, 2)->wrap(linear, {}),
                    Contains("how another of its kind is made"));
}

TEST_CASE("pipelines refuse chains that do not cover a model, and weights tied across segments") {
  const auto fails = [](std::vector<std::string> first, bool is_tied, const std::string& text) {
    CHECK_THROWS_WITH(run_ranks(2,
                                [&](Communicator& c) {
                                  nn::Sequential model;
                                  auto& a = model.append<nn::Linear>(3, 3);
                                  auto& b = model.append<nn::Linear>(3, 3);
                                  if (is_tied) b.weight.set_data(a.weight);
                                  const auto identity = [](const Tensor& x) { return x; };
                                  Pipeline pipeline(
                                      model, {{"a", identity, first}, {"b", identity, {"1"}}},
                                      {.stages = {&c, [](Communicator*) {}}});
                                }),
                      Contains(text));
  };
  fails({"0.weight"}, false, "\"0.bias\" belongs to 0 segments, expected one");
  fails({"0", "1.bias"}, false, "\"1.bias\" belongs to 2 segments, expected one");
  fails({"0"}, true, "\"1.weight\" is tied to a tensor of another segment");
}
