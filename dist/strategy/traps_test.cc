// What sharded training gets wrong first: a test for each, named after it. Those beside the unit
// that they concern are listed, with these, in docs/sharding.md.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <optional>
#include <regex>
#include <sstream>

#include "autograd/checkpoint.h"
#include "dist/comm/in_process.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/model_parallel/tensor_parallel.h"
#include "dist/strategy/strategies.h"
#include "dist/strategy/testing/oracle_training.h"
#include "optim/clip.h"
#include "optim/grad_scaler.h"

using namespace weft;
using namespace weft::dist;

namespace {

CommunicatorPtr borrowed(Communicator& c) {
  return {&c, [](Communicator*) {}};
}

/// out.weight is in.weight, in a unit of its own.
class Tied : public nn::Module {
 public:
  explicit Tied(int64_t width)
      : in(add<nn::Linear>("in", width, width)), out(add<Out>("out", in)) {}
  Tensor forward(const Tensor& x) override { return out(ops::gelu(in(x))); }

  struct Out : nn::Module {
    explicit Out(nn::Linear& in) : weight(parameter("weight", in.weight)) {
      bias = parameter("bias", Tensor::zeros({weight.size(0)}));
    }
    Tensor forward(const Tensor& x) override { return ops::linear(x, weight, bias); }
    Tensor weight, bias;
  };
  nn::Linear& in;
  Out& out;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  WEFT_CHECK(file, "cannot read {}", path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("every trap in docs/sharding.md names a test that is there") {
  const std::string page = text_of("docs/sharding.md");
  const std::regex row("\\| [^|\\n]+ \\| `([a-z_/.]+)`: \"([^\"\\n]+)\" \\|");
  int64_t rows = 0;
  for (std::sregex_iterator i(page.begin(), page.end(), row), end; i != end; ++i, ++rows) {
    INFO((*i)[0].str());
    // A long name may stand in lines of its own.
    std::string source = text_of((*i)[1].str());
    source = std::regex_replace(source, std::regex("\"\\s*\n\\s*\""), "");
    source = std::regex_replace(source, std::regex("TEST_CASE\\(\\s+"), "TEST_CASE(");
    CHECK(source.find("TEST_CASE(\"" + (*i)[2].str() + "\")") != std::string::npos);
  }
  CHECK(rows >= 22);
}

TEST_CASE(
    "trap: replicated parameters are counted once in the norm, under tensor parallelism too") {
  const auto whole = make_oracle<OracleTransformer>(DType::f64);
  const OracleBatch batch = oracle_batch(0, 6, DType::f64);
  backward(ops::cross_entropy((*whole)(batch.x), batch.labels));
  const double expected = optim::grad_norm(whole->parameters());
  for (const StrategyOptions& options :
       {StrategyOptions{.name = "tp"}, {.name = "tp", .tensor_parallel = 2}, {.name = "fsdp+tp"}}) {
    run_ranks(4, [&](Communicator& c) {
      const auto model = make_oracle<OracleTransformer>(DType::f64);
      const auto strategy = make_strategy(options, borrowed(c));
      ModelStructure structure(wrap_modules<nn::Linear>());
      structure.mlps = model->mlps();
      strategy->wrap(*model, structure);
      const optim::ParameterGroups groups =
          strategy->groups(optim::ParameterGroups(model->named_parameters()));
      const OracleShare share = share_of(batch, strategy->data_size(), strategy->data_rank());
      backward(ops::cross_entropy(strategy->forward(*model, share.batch.x), share.batch.labels) *
               share.weight);
      Tensors parameters;
      for (const auto& [name, tensor] : groups[0].parameters) parameters.push_back(tensor);
      const double norm = strategy->grad_norm(parameters);
      WEFT_CHECK(std::abs(norm - expected) < 1e-12 * expected, "{}: norm {}, expected {}",
                 options.name, norm, expected);
    });
  }
}

TEST_CASE("trap: found_inf is shared before anyone skips a step") {
  // Only the last rank's shard of the weight gets an infinite gradient. Were the others to step,
  // they would go on with other parameters, scales and collectives.
  run_ranks(3, [](Communicator& c) {
    nn::Linear model(1, 6, false);
    FullySharded fsdp(model, {.shard = borrowed(c), .average = ReduceOp::kSum});
    optim::SGD optimizer(fsdp.named_parameters(), {.lr = 0.1});
    optim::GradScaler scaler({.init_scale = 1024});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      Tensor weights = Tensor::full({1, 6}, 1);
      if (step == 0) weights.data<float>()[5] = INFINITY;
      const NamedTensors before = cloned(fsdp.named_parameters());
      backward(scaler.scale(ops::sum(model(Tensor::full({1, 1}, 1)) * weights)));
      scaler.unscale(optimizer);
      const double mine = scaler.found_inf(optimizer);
      WEFT_CHECK((mine != 0) == (step == 0 && c.rank() == 2), "rank {} found {}", c.rank(), mine);
      const Tensor found = Tensor::scalar(mine);
      c.all_reduce(found, ReduceOp::kMax).wait();
      scaler.set_found_inf(optimizer, found.item() != 0);
      const bool is_taken = scaler.step(optimizer);
      WEFT_CHECK(is_taken == (step == 1), "rank {} took step {}: {}", c.rank(), step, is_taken);
      WEFT_CHECK(same_bits(before, fsdp.named_parameters()) != is_taken, "rank {}", c.rank());
      scaler.update();
      WEFT_CHECK(scaler.get_scale() == 512, "rank {}: scale {}", c.rank(), scaler.get_scale());
      fsdp.after_step();
    }
  });
}

TEST_CASE("trap: no_sync under FSDP keeps full gradients") {
  // That is its price: accumulation without communication needs the memory of whole gradients.
  run_ranks(2, [](Communicator& c) {
    nn::Sequential model;
    for (int i = 0; i < 3; ++i) model.append<nn::Linear>(8, 8, false);
    FullySharded fsdp(model, {.shard = borrowed(c)}, wrap_modules<nn::Linear>());
    const auto run = [&] { backward(ops::sum(model(Tensor::full({2, 8}, 1)))); };
    const int64_t whole = 3 * 64 * 4;
    {
      const auto local = fsdp.no_sync();
      for (int i = 0; i < 2; ++i) {
        const int64_t before = fsdp.bytes_sent(), unshardings = fsdp.unshardings();
        run();
        WEFT_CHECK(fsdp.memory().accumulated == whole, "{} bytes", fsdp.memory().accumulated);
        WEFT_CHECK(fsdp.memory().gradients == 0, "{} bytes", fsdp.memory().gradients);
        // Parameters were unsharded, of three units of 256 bytes one half each; nothing else left.
        WEFT_CHECK(fsdp.bytes_sent() - before == (fsdp.unshardings() - unshardings) * 128,
                   "{} bytes", fsdp.bytes_sent() - before);
      }
    }
    run();
    WEFT_CHECK(fsdp.memory().accumulated == 0, "{} bytes", fsdp.memory().accumulated);
    WEFT_CHECK(fsdp.memory().gradients == whole / 2, "{} bytes", fsdp.memory().gradients);
  });
}

TEST_CASE("trap: activation checkpointing replays the RNG and leaves the later RNG unchanged") {
  // On every rank, whose streams differ, also through FSDP's unsharding.
  run_ranks(2, [](Communicator& c) {
    std::vector<std::vector<double>> gradients, later;
    for (bool checkpoints : {false, true}) {
      manual_seed(4);
      nn::Linear model(6, 6);
      FullySharded fsdp(model, {.shard = borrowed(c)});
      generator() = {.seed = 5, .stream = static_cast<uint64_t>(c.rank())};
      const auto layer = [&](const Tensors& in) {
        return ops::dropout(model(ops::dropout(in[0], 0.4)), 0.4);
      };
      const Tensor x = Tensor::full({5, 6}, 1);
      backward(ops::sum(checkpoints ? checkpoint(layer, {x}) : layer({x})));
      std::vector<double> all;
      for (const auto& [name, slice] : fsdp.named_parameters()) {
        for (double g : slice.grad().to_vector()) all.push_back(g);
      }
      gradients.push_back(all);
      const NoGrad guard;
      later.push_back(ops::rand({8}).to_vector());
    }
    WEFT_CHECK(gradients[0] == gradients[1], "rank {}: other masks in the second run", c.rank());
    WEFT_CHECK(later[0] == later[1], "rank {}: the generator stands elsewhere", c.rank());
  });
}

TEST_CASE("trap: tied weights across FSDP units, with shards of different sizes") {
  // Both uses of the weight lie in units of their own; 3 and 4 ranks do not divide 49 + 7.
  const Tensor x = oracle_batch(0, 12, DType::f64).x;
  const auto step = [&](nn::Module& model, const optim::ParameterGroups& groups, double weight,
                        const Tensor& rows, const std::function<void()>& after) {
    optim::AdamW optimizer(groups, {.lr = 0.01});
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      const Tensor y = model(rows);
      backward(ops::mean(y * y) * weight);
      optimizer.step();
      after();
    }
  };
  manual_seed(2);
  Tied whole(7);
  whole.to(DType::f64);
  step(whole, whole.named_parameters(), 1, x, [] {});
  for (int ranks : {2, 3, 4}) {
    for (Sharding sharding : {Sharding::kFullShard, Sharding::kShardGradOp, Sharding::kZero1}) {
      run_ranks(ranks, [&](Communicator& c) {
        manual_seed(2);
        Tied model(7);
        model.to(DType::f64);
        FullySharded fsdp(model,
                          {.shard = borrowed(c), .sharding = sharding, .average = ReduceOp::kSum},
                          wrap_modules<nn::Linear, Tied::Out>());
        WEFT_CHECK(fsdp.units().size() == 2, "{} units", fsdp.units().size());
        const int64_t rows = 12 / ranks;
        const Tensor mine = ops::contiguous(ops::narrow(x, 0, c.rank() * rows, rows));
        step(model, fsdp.shard(optim::ParameterGroups(model.named_parameters())), 1.0 / ranks, mine,
             [&] { fsdp.after_step(); });
        const double d = difference(fsdp.full_state_dict(true), whole.state_dict());
        WEFT_CHECK(d < 1e-12, "{} ranks differ by {}", ranks, d);
      });
    }
  }
}

TEST_CASE("trap: padding with more than one bucket") {
  // Every bucket is padded to a multiple of 3 ranks: 5, 8, 4, 121 ... elements are not.
  const DdpOptions options{
      .bucket_bytes = 200, .first_bucket_bytes = 16, .gradient_as_bucket_view = true};
  check_against_one_rank(
      {}, [&](const CommunicatorPtr& world) { return make_ddp(world, options); }, 3);
  run_ranks(3, [&](Communicator& c) {
    const auto model = make_oracle_model(DType::f64);
    const DistributedDataParallel ddp(*model, borrowed(c), options);
    WEFT_CHECK(ddp.buckets().size() >= 4, "{} buckets", ddp.buckets().size());
    const int64_t padding =
        ddp.bucket_bytes() - model->num_parameters() * static_cast<int64_t>(sizeof(double));
    WEFT_CHECK(padding > static_cast<int64_t>(sizeof(double)), "{} bytes of padding", padding);
  });
}

TEST_CASE("trap: with sequence parallelism layer norm's gradients need a sum over the ranks") {
  nn::LayerNorm whole(6);
  whole.to(DType::f64);
  manual_seed(8);
  Tensor x;
  {
    const NoGrad guard;
    x = ops::randn({2, 4, 6}, DType::f64);
  }
  const auto loss = [](const Tensor& y) { return ops::sum(ops::gelu(y)); };
  backward(loss(whole(x)));
  run_ranks(2, [&](Communicator& c) {
    nn::Sequential net;
    net.append<nn::Identity>();
    auto& norm = net.append<nn::LayerNorm>(6);
    net.append<nn::Identity>();
    net.to(DType::f64);
    norm.load_state_dict(whole.state_dict());
    TensorParallel parallel(net, borrowed(c));
    parallel.deal_out({.begin = &net[0], .end = &net[2], .between = {&norm}});
    backward(loss(net(x)));
    const double d = difference({{"weight", norm.weight.grad()}, {"bias", norm.bias.grad()}},
                                {{"weight", whole.weight.grad()}, {"bias", whole.bias.grad()}});
    WEFT_CHECK(d < 1e-13, "the gradients differ by {}", d);
  });
}

TEST_CASE("trap: two communicators issued in different orders deadlock") {
  // Each has a thread of its own, so here they do not.
  run_ranks(2, [](Communicator& c) {
    const CommunicatorPtr a = c.group({0, 1}, "a"), b = c.group({0, 1}, "b");
    const Tensor x = Tensor::full({4}, 1), y = Tensor::full({4}, 2);
    const Work first = c.rank() == 0 ? a->all_reduce(x) : b->all_reduce(y);
    const Work second = c.rank() == 0 ? b->all_reduce(y) : a->all_reduce(x);
    first.wait();
    second.wait();
    WEFT_CHECK(x.to_vector()[3] == 2 && y.to_vector()[3] == 4, "{} and {}", x.to_vector()[3],
               y.to_vector()[3]);
  });
}

TEST_CASE("trap: offload and accumulation must add, not overwrite") {
  run_ranks(2, [](Communicator& c) {
    nn::Linear model(4, 1, false);
    FullySharded fsdp(model,
                      {.shard = borrowed(c), .average = ReduceOp::kSum, .cpu_offload = true});
    const auto run = [&](double value) { backward(ops::sum(model(Tensor::full({1, 4}, value)))); };
    const auto expect = [&](double expected) {
      for (const auto& [name, slice] : fsdp.named_parameters()) {
        WEFT_CHECK(slice.device() == Device{} && slice.grad().device() == Device{}, "{}, {}", slice,
                   slice.grad());
        for (double g : slice.grad().to_vector()) {
          WEFT_CHECK(g == expected, "gradient {}, expected {}", g, expected);
        }
      }
    };
    // Under no_sync, with it, and once more on top without zero_grad.
    {
      const auto local = fsdp.no_sync();
      run(1);
    }
    run(2);
    expect(6);
    run(10);
    expect(26);
    optim::AdamW optimizer(fsdp.named_parameters(), {.lr = 0.1});
    optimizer.step();
    fsdp.after_step();
    for (const auto& [name, tensor] : optimizer.state_dict().tensors) {
      WEFT_CHECK(tensor.device() == Device{}, "{} is {}", name, tensor);
    }
    optimizer.zero_grad();
    run(3);
    expect(6);
  });
}
