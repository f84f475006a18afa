// What sharded training gets wrong first: a test for each, named after it. Those beside the unit
// that they concern are listed, with these, in docs/sharding.md.
#include <catch2/catch.hpp>
#include <chrono>
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
#include "optim/optimizer_state.h"

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

/// A rank under a strategy, which trains a transformer on its share of batches; without a world: on
/// one device.
struct OnRank {
  OnRank(const StrategyOptions& options, const CommunicatorPtr& world, bool is_frozen)
      : strategy(make_strategy(options, world)) {
    if (is_frozen) model->blocks[0]->requires_grad_(false);
    ModelStructure structure(wrap_modules<nn::Linear>());
    structure.mlps = model->mlps();
    structure.tokens = model->tokens();
    structure.segments = model->segments();
    strategy->wrap(*model, structure);
    optimizer.emplace(strategy->groups(optim::ParameterGroups(model->named_parameters())),
                      optim::SgdOptions{.lr = 0.1, .momentum = 0.9});
  }
  OracleShare share(int batch, int64_t rows = 12) const {
    return share_of(oracle_batch(batch, rows, DType::f64), strategy->data_size(),
                    strategy->data_rank());
  }
  Tensor loss(int batch) {
    const OracleShare mine = share(batch);
    return ops::cross_entropy(strategy->forward(*model, mine.batch.x), mine.batch.labels) *
           mine.weight;
  }
  void zero_grad() {
    optimizer->zero_grad();
    strategy->drop_local_gradients(model->parameters());
  }
  void step() {
    optimizer->step();
    strategy->after_step();
    zero_grad();
  }

  const std::unique_ptr<OracleTransformer> model = make_oracle<OracleTransformer>(DType::f64);
  const std::unique_ptr<Strategy> strategy;
  std::optional<optim::SGD> optimizer;
};

/// Strategies of four ranks, some with copies of what is shared out.
std::vector<StrategyOptions> on_four_ranks() {
  return {{.name = "ddp"},
          {.name = "ddp", .static_graph = true},
          {.name = "fsdp"},
          {.name = "fsdp", .shard_grad_op = true},
          {.name = "zero1"},
          {.name = "zero2"},
          {.name = "hsdp", .shard_size = 2},
          {.name = "tp"},
          {.name = "tp", .tensor_parallel = 2, .sequence_parallel = true},
          {.name = "fsdp+tp"},
          {.name = "pipeline"},
          {.name = "pipeline", .pipeline_stages = 2, .micro_batches = 3}};
}

/// A rank of which one recv, in a group, fails before it begins.
class FailingRecv : public Communicator {
 public:
  /// The `*recvs`-th from now on; 0: none.
  FailingRecv(CommunicatorPtr inner, std::shared_ptr<int> recvs)
      : Communicator(inner->name(), inner->rank(), inner->size(), inner->shared_recorder()),
        inner_(std::move(inner)),
        recvs_(std::move(recvs)) {}
  CommunicatorPtr group(const std::vector<int>& ranks, const std::string& name) override {
    return std::make_shared<FailingRecv>(inner_->group(ranks, name), recvs_);
  }
  void leave(const std::string& reason) override { inner_->leave(reason); }
  Traffic traffic() const override { return inner_->traffic(); }
  Traffic family_traffic() const override { return inner_->family_traffic(); }

 protected:
  Work start(Operation operation) override {
    const bool counts = operation.collective == Collective::kRecv && *recvs_ > 0;
    WEFT_CHECK(!counts || --*recvs_ > 0, "no memory");
    return inner_->begin(std::move(operation));
  }

 private:
  const CommunicatorPtr inner_;
  const std::shared_ptr<int> recvs_;
};

/// Requires that a program leaves the weights that it leaves on one device. The first block may be
/// frozen when the strategy takes the model over.
void check_as_on_one_device(const std::vector<StrategyOptions>& strategies,
                            const std::function<void(OnRank&)>& program, bool is_frozen = false) {
  OnRank one({.name = "single"}, nullptr, is_frozen);
  program(one);
  for (const StrategyOptions& options : strategies) {
    INFO(options.name << ", static graph " << options.static_graph);
    double worst = 0;
    run_ranks(4, [&](Communicator& c) {
      OnRank mine(options, borrowed(c), is_frozen);
      program(mine);
      const NamedTensors state = mine.strategy->model_state(*mine.model);
      if (c.rank() == 0) worst = difference(state, one.model->state_dict());
    });
    CHECK(worst < 1e-12);
  }
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
  struct Region {
    int begin, end;
    std::vector<int> between;
  };
  const auto train = [&](Communicator& c, const Region& region) {
    nn::Sequential net;
    net.append<nn::Identity>();
    auto& norm = net.append<nn::LayerNorm>(6);
    net.append<nn::Identity>();
    net.to(DType::f64);
    norm.load_state_dict(whole.state_dict());
    TensorParallel parallel(net, borrowed(c));
    std::vector<nn::Module*> between;
    for (const int i : region.between) between.push_back(&net[i]);
    parallel.deal_out({.begin = &net[region.begin], .end = &net[region.end], .between = between});
    const Tensor y = net(x);
    parallel.check_outside({y});
    if (!region.between.empty()) {  // else it deals out or puts together, wherever called
      for (const Tensor& other : {norm(y), net(norm(x))}) {
        expect_error([&] { parallel.check_outside({other}); }, "is used outside of the dealt-out");
      }
    }
    backward(loss(y));
    const double d = difference({{"weight", norm.weight.grad()}, {"bias", norm.bias.grad()}},
                                {{"weight", whole.weight.grad()}, {"bias", whole.bias.grad()}});
    WEFT_CHECK(d < 1e-13, "the gradients differ by {}", d);
  };
  // Also one that two blocks share, and one that stands where tokens are dealt out or put together.
  for (const Region& region :
       {Region{0, 2, {1}}, Region{0, 2, {1, 1}}, Region{1, 2, {}}, Region{0, 1, {}}}) {
    run_ranks(2, [&](Communicator& c) { train(c, region); });
  }
}

TEST_CASE("what a checkpoint hides is looked over when it is computed again") {
  class Net : public nn::Module {
   public:
    Net()
        : begin(add<nn::Identity>("begin")),
          norm(add<nn::LayerNorm>("norm", 6)),
          fc1(add<nn::Linear>("fc1", 6, 8)),
          fc2(add<nn::Linear>("fc2", 8, 6)),
          end(add<nn::Identity>("end")) {}
    Tensor forward(const Tensor& x) override {
      const auto normalized = [this](const Tensors& in) { return norm(in[0]); };
      const Tensor y = begin(is_wrong ? checkpoint(normalized, {x}) : x);
      return end(fc2(ops::gelu(fc1(checkpoint(normalized, {y})))));
    }
    nn::Identity& begin;
    nn::LayerNorm& norm;
    nn::Linear &fc1, &fc2;
    nn::Identity& end;
    bool is_wrong = false;
  };
  run_ranks(2, [](Communicator& c) {
    Net net;
    const auto strategy = make_strategy({.name = "tp", .sequence_parallel = true}, borrowed(c));
    ModelStructure structure;
    structure.mlps = {{&net.fc1, &net.fc2}};
    structure.tokens = {.begin = &net.begin, .end = &net.end, .between = {&net.norm}};
    strategy->wrap(net, structure);
    const Tensor x = Tensor::full({2, 4, 6}, 1);
    backward(ops::sum(strategy->forward(net, x)));
    net.is_wrong = true;
    const Tensor y = strategy->forward(net, x);
    expect_error([&] { backward(ops::sum(y)); }, "is used outside of the dealt-out");
  });
}

TEST_CASE("the ends of dealt-out tokens that are passed by are missed") {
  run_ranks(2, [](Communicator& c) {
    OracleTransformer net;
    TensorParallel parallel(net, borrowed(c));
    for (const auto& [first, second] : net.mlps()) parallel.cut(*first, *second);
    parallel.deal_out(net.tokens());
    const Tensor x = Tensor::full({2, net.kTokens, net.kWidth}, 1);
    const auto think = [&](const Tensor& tokens) { return net.blocks[0]->think(tokens); };
    parallel.check_outside({net.end(think(net.begin(x)))});
    expect_error([&] { think(net.begin.forward(x)); },
                 "input has 4 tokens, expected 0 of 0 that were dealt out to 2 ranks: that begins "
                 "where weft::nn::Identity is called");
    expect_error([&] { net.end(net.begin.forward(x)); },
                 "weft::nn::Identity's result has 4 tokens");
    const Tensor y = net.end.forward(think(net.begin(x)));
    expect_error([&] { parallel.check_outside({y}); }, "4 tokens are dealt out yet");
  });
}

TEST_CASE("a parameter of no part that works on dealt-out tokens is refused there") {
  run_ranks(2, [](Communicator& c) {
    nn::Sequential net;
    net.append<nn::Identity>();
    net.append<nn::LayerNorm>(6);
    net.append<nn::Identity>();
    const Tensor shift = net.append<nn::Linear>(6, 6).bias;
    TensorParallel parallel(net, borrowed(c));
    parallel.deal_out({.begin = &net[0], .end = &net[2], .between = {&net[1]}});
    const Tensor x = Tensor::full({2, 4, 6}, 1);
    parallel.check_outside({net[2](net[1](net[0](x + shift))) + shift});
    const Tensor y = net[2](net[1](net[0](x)) + shift);
    expect_error([&] { parallel.check_outside({y}); }, "\"3.bias\" is used on dealt-out tokens");
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

TEST_CASE("trap: a backward pass that fails on every rank and is caught leaves nothing behind") {
  std::vector<StrategyOptions> all = on_four_ranks();
  // Of a pipeline's stages one alone has the parameter.
  std::erase_if(all, [](const StrategyOptions& options) { return options.name == "pipeline"; });
  for (const bool is_local : {false, true}) {
    check_as_on_one_device(all, [&](OnRank& r) {
      for (int step = 0; step < 3; ++step) {
        if (step > 0) {
          const Tensor loss = r.loss(7);
          const std::shared_ptr<void> local = is_local ? r.strategy->no_sync() : nullptr;
          fail_at(r.model->blocks[1]->fc1.weight);
          expect_error([&] { backward(loss); }, "no memory");
          r.zero_grad();
        }
        backward(r.loss(step));
        r.step();
      }
    });
  }
}

TEST_CASE("trap: a backward pass that fails on every rank and is caught changes no gradient") {
  std::vector<StrategyOptions> all = on_four_ranks();
  std::erase_if(all, [](const StrategyOptions& options) {
    return options.name.find("tp") != std::string::npos || options.name == "pipeline";
  });
  check_as_on_one_device(all, [&](OnRank& r) {
    const auto fail = [&] {
      const Tensor loss = r.loss(7);
      if (r.strategy->data_size() == 1) return;  // which has added what was complete
      fail_at(r.model->blocks[1]->fc1.weight);
      expect_error([&] { backward(loss); }, "no memory");
    };
    for (int step = 0; step < 3; ++step) {
      {
        const std::shared_ptr<void> local = r.strategy->no_sync();
        backward(r.loss(3 * step));
      }
      fail();  // on top of what has added up on each rank
      fail();
      backward(r.loss(3 * step + 1));
      fail();  // on top of the sums of all
      r.step();
    }
  });
}

TEST_CASE("trap: a pass on top of gradients that are summed already adds its own sum to them") {
  check_as_on_one_device(on_four_ranks(), [](OnRank& r) {
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < 3; ++i) backward(r.loss(3 * step + i));
      r.step();
    }
  });
}

TEST_CASE(
    "trap: a micro-batch that fails on every rank leaves nothing between a pipeline's stages") {
  const std::vector<StrategyOptions> all = {{.name = "pipeline"},
                                            {.name = "pipeline", .schedule = Schedule::kGpipe},
                                            {.name = "pipeline", .pipeline_stages = 2},
                                            {.name = "ddp"},
                                            {.name = "fsdp"}};
  for (const int bad : {0, 2, 3}) {
    check_as_on_one_device(all, [&](OnRank& r) {
      for (int step = 0; step < 3; ++step) {
        const auto at = [&](int64_t i) {
          WEFT_CHECK(step != 1 || i != bad, "no such file");
          // Of sizes of their own.
          const OracleShare mine = r.share(10 * step + static_cast<int>(i), i % 2 == 0 ? 12 : 8);
          return MicroBatch{mine.batch.x, [mine](const Tensor& logits) {
                              return ops::cross_entropy(logits, mine.batch.labels) * mine.weight;
                            }};
        };
        const auto run = [&] { r.strategy->run(*r.model, {.count = 4, .at = at}); };
        if (step == 1) {
          expect_error(run, "no such file");
          r.zero_grad();
        } else {
          run();
          r.step();
        }
      }
    });
  }
}

TEST_CASE("trap: a stage that fails between an activation's header and the activation") {
  const auto train = [](OnRank& r, const std::function<void(int step)>& before) {
    for (int step = 0; step < 3; ++step) {
      before(step);
      const auto at = [&](int64_t i) {
        WEFT_CHECK(step != 1 || i == 0, "no memory");  // so that the first stage fails, too
        const OracleShare mine = r.share(10 * step + static_cast<int>(i));
        return MicroBatch{mine.batch.x, [mine](const Tensor& logits) {
                            return ops::cross_entropy(logits, mine.batch.labels) * mine.weight;
                          }};
      };
      const auto run = [&] { r.strategy->run(*r.model, {.count = 2, .at = at}); };
      if (step == 1) {
        expect_error(run, "no memory");
        r.zero_grad();
      } else {
        run();
        r.step();
      }
    }
  };
  OnRank one({.name = "single"}, nullptr, false);
  train(one, [](int) {});
  for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    INFO(name(schedule));
    double worst = 0;
    int second_stages = 0;  // that have come through
    const auto fit = [&](Communicator& c, bool fails_again) {
      const auto recvs = std::make_shared<int>(0);
      OnRank mine({.name = "pipeline", .schedule = schedule},
                  std::make_shared<FailingRecv>(borrowed(c), recvs), false);
      train(mine, [&](int step) {
        if (c.rank() == 0) return;
        if (step == 1) *recvs = 2;
        if (step != 2 || !fails_again) return;
        *recvs = 1;  // of the activation that the failed run has left
        expect_error([&] { mine.strategy->run(*mine.model, {.count = 2}); }, "no memory");
      });
      if (c.rank() == 1) ++second_stages;
      const NamedTensors state = mine.strategy->model_state(*mine.model);
      if (c.rank() == 0) worst = difference(state, one.model->state_dict());
    };
    run_ranks(2, [&](Communicator& c) { fit(c, false); });
    CHECK(worst < 1e-12);
    // It has failed there alone, and must not go on with what was left: the first is a run ahead.
    const auto fit_again = [&](Communicator& c) { fit(c, true); };
    CHECK_THROWS_AS(run_ranks(2, fit_again, {.host = {.timeout_seconds = 1}}), Error);
    CHECK(second_stages == 1);
  }
}

TEST_CASE("trap: micro-batches of a pipeline draw the numbers of one rank, none of them twice") {
  const auto train = [](OnRank& r, bool is_alone) {
    r.model->dropout = 0.3;
    manual_seed(5);
    for (int step = 0; step < 3; ++step) {
      const Generator position = generator();
      uint64_t drawn = position.offset;
      const auto at = [&](int64_t i) {
        if (is_alone) {
          drawn = std::max(drawn, generator().offset);
          generator() = position;
          generator().stream += static_cast<uint64_t>(i) << 48;
        }
        const OracleShare mine = r.share(10 * step + static_cast<int>(i), i % 2 == 0 ? 12 : 8);
        return MicroBatch{mine.batch.x, [mine](const Tensor& logits) {
                            return ops::cross_entropy(logits, mine.batch.labels) * mine.weight;
                          }};
      };
      r.strategy->run(*r.model, {.count = 5, .at = at});
      if (is_alone) {
        drawn = std::max(drawn, generator().offset);
        generator() = {position.seed, position.stream, drawn};
      }
      r.step();
    }
    return generator().offset;
  };
  OnRank one({.name = "single"}, nullptr, false);
  const uint64_t expected = train(one, true);
  CHECK(expected > 0);
  for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    INFO(name(schedule));
    double worst = 0;
    run_ranks(4, [&](Communicator& c) {
      OnRank mine({.name = "pipeline", .schedule = schedule}, borrowed(c), false);
      const uint64_t offset = train(mine, false);
      WEFT_CHECK(offset == expected, "stage {}: the generator is at {}, expected {}", c.rank(),
                 offset, expected);
      const NamedTensors state = mine.strategy->model_state(*mine.model);
      if (c.rank() == 0) worst = difference(state, one.model->state_dict());
    });
    CHECK(worst < 1e-12);
  }
}

TEST_CASE("trap: a backward pass that fails on one rank alone is an error of all") {
  // That rank would otherwise be a step ahead of the others from then on.
  const InProcessOptions hasty{.host = {.timeout_seconds = 1}};
  for (const StrategyOptions& options : on_four_ranks()) {
    if (options.name == "tp" || options.name == "pipeline") continue;
    INFO(options.name);
    CHECK_THROWS_AS(run_ranks(
                        4,
                        [&](Communicator& c) {
                          OnRank r(options, borrowed(c), false);
                          for (int step = 0; step < 6; ++step) {
                            const Tensor loss = r.loss(step);
                            if (step == 1 && c.rank() == 2) {
                              fail_at(r.model->blocks[1]->fc1.weight);
                              expect_error([&] { backward(loss); }, "no memory");
                              r.zero_grad();
                              continue;
                            }
                            backward(loss);
                            r.step();
                          }
                        },
                        hasty),
                    Error);
  }
}

TEST_CASE("a stage that fails in its backward ends the others', with its reason") {
  // A middle one, the last, and all.
  for (const std::vector<size_t>& blocks :
       {std::vector<size_t>{1}, std::vector<size_t>{2}, std::vector<size_t>{0, 1, 2}}) {
    for (const bool is_plain : {false, true}) {
      const auto begin = std::chrono::steady_clock::now();
      std::vector<std::string> errors(4);
      const auto body = [&](Communicator& c) {
        OnRank r({.name = "pipeline", .micro_batches = 4}, borrowed(c), false);
        for (const size_t i : blocks) fail_at(r.model->blocks[i]->fc1.weight);
        const auto at = [&](int64_t i) {
          const OracleShare mine = r.share(static_cast<int>(i));
          return MicroBatch{mine.batch.x, [mine](const Tensor& logits) {
                              return ops::cross_entropy(logits, mine.batch.labels);
                            }};
        };
        try {
          is_plain ? backward(r.loss(0)) : r.strategy->run(*r.model, {.count = 4, .at = at});
        } catch (const Error& error) {
          errors[c.rank()] = error.what();
        }
      };
      run_ranks(4, body, {.host = {.timeout_seconds = 30}});
      INFO(blocks.size() << " blocks, the first " << blocks[0]);
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
      CHECK(errors[0].find("no memory") != std::string::npos);
    }
  }
}

TEST_CASE("trap: parameters are frozen and trained again after the setup") {
  const auto program = [](OnRank& r) {
    for (int step = 0; step < 6; ++step) {
      if (step == 1) r.model->blocks[1]->requires_grad_(false);
      if (step == 2) r.model->blocks[0]->requires_grad_(true);
      {
        const std::shared_ptr<void> local = r.strategy->no_sync();
        backward(r.loss(2 * step));
      }
      if (step == 3) r.model->blocks[2]->requires_grad_(false);
      const Tensor loss = r.loss(2 * step + 1);
      if (step == 3) r.model->embed.requires_grad_(false);  // its forward has been recorded
      backward(loss);
      if (step == 4) r.model->requires_grad_(true);
      r.step();
    }
  };
  for (const bool is_frozen : {false, true}) {
    check_as_on_one_device(on_four_ranks(), program, is_frozen);
  }
}

TEST_CASE("trap: tokens of no_sync() that overlap") {
  check_as_on_one_device(on_four_ranks(), [](OnRank& r) {
    for (int step = 0; step < 3; ++step) {
      std::shared_ptr<void> local;
      for (int i = 0; i < 3; ++i) {
        // The new one is there before the old one goes.
        local = i < 2 ? r.strategy->no_sync() : nullptr;
        backward(r.loss(3 * step + i));
      }
      r.step();
    }
  });
}

TEST_CASE("trap: a model that is called twice in one loss") {
  check_as_on_one_device(on_four_ranks(), [](OnRank& r) {
    for (int step = 0; step < 3; ++step) {
      backward(r.loss(2 * step) + r.loss(2 * step + 1) * 0.5);
      r.step();
    }
  });
}
