// What a program asks of a model that was set up besides model(x): its parts, functions of its own
// and its state; and which devices, hosts and schedules it says.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "autograd/backward.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/testing/oracle.h"
#include "nn/meta.h"
#include "nn/nn.h"
#include "optim/sgd.h"
#include "tests/skip.h"
#include "train/fabric.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;
using dist::expect_error;

namespace {

/// A body that is computed again in backward, and a head.
struct Net : nn::Module {
  Net()
      : body(add<nn::Sequential>("body")),
        gelu(add<nn::GELU>("gelu")),
        head(add<nn::Linear>("head", 6, 4)) {
    body.append<nn::Linear>(6, 12);
    body.append<nn::GELU>();
    body.append<nn::Linear>(12, 6);
  }
  Tensor encode(const Tensor& x) {
    return checkpoint([this](const Tensors& in) { return body(in[0]); }, {x});
  }
  Tensor forward(const Tensor& x) override { return head(gelu(encode(x))); }
  nn::ModelStructure structure() override {
    nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
    structure.mlps = {{dynamic_cast<nn::Linear*>(&body[0]), dynamic_cast<nn::Linear*>(&body[2])}};
    structure.segments = {
        {"body", [this](const Tensor& x) { return encode(x); }, {"body"}},
        {"head", [this](const Tensor& x) { return head(gelu(x)); }, {"gelu", "head"}}};
    return structure;
  }
  nn::Sequential& body;
  nn::GELU& gelu;
  nn::Linear& head;
};

bool is_dp(const FabricOptions& options) { return options.strategy.name == "dp"; }

/// On as many ranks as the options say, as threads.
void on_ranks(const FabricOptions& options, const std::function<void(Fabric&)>& body) {
  const auto run = [&](const dist::CommunicatorPtr& world) {
    Fabric fabric(options);
    fabric.launch(world);
    fabric.seed_everything(1);
    body(fabric);
  };
  if (options.devices.count == 1 || is_dp(options)) return run(nullptr);
  dist::run_ranks(options.devices.count, [&](dist::Communicator& c) {
    run({&c, [](dist::Communicator*) {}});
  });
}

std::vector<FabricOptions> every_strategy() {
  std::vector<FabricOptions> all;
  for (const char* name :
       {"single", "dp", "ddp", "fsdp", "zero1", "zero2", "tp", "fsdp+tp", "pipeline"}) {
    const bool is_single = std::string_view(name) == "single";
    const int devices = is_single ? 1 : std::string_view(name) == "fsdp+tp" ? 4 : 2;
    all.push_back({.devices = devices, .strategy = {.name = name}});
  }
  return all;
}

Tensor rows() { return Tensor::full({4, 6}, 0.5); }

void check_same(const NamedTensors& a, const NamedTensors& b, const char* what) {
  WEFT_CHECK(a.size() == b.size(), "{}: {} tensors, expected {}", what, a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    WEFT_CHECK(a[i].first == b[i].first, "{}: {}, expected {}", what, a[i].first, b[i].first);
    WEFT_CHECK(a[i].second.shape() == b[i].second.shape() &&
                   a[i].second.to_vector() == b[i].second.to_vector(),
               "{}: {} differs", what, a[i].first);
  }
}

}  // namespace

TEST_CASE("trap: a part of a model that is called from outside of it throws") {
  std::vector<FabricOptions> all = every_strategy();
  for (const char* precision : {"bf16-mixed", "16-mixed", "tf32", "transformer-engine"}) {
    all.push_back({.precision = precision, .strategy = {.name = "single"}});
  }
  for (const FabricOptions& options : all) {
    const bool is_alone = options.devices.count == 1;
    if (is_alone && options.precision == "32-true") continue;
    INFO(options.strategy.name << " in " << options.precision);
    on_ranks(options, [&](Fabric& fabric) {
      Net net;
      optim::SGD optimizer(net.named_parameters(), {.lr = 0.1});
      fabric.setup(net, optimizer);
      const Tensor x = rows();
      const auto refuses = [&](const char* part, const std::function<void()>& f) {
        expect_error(f, fmt::format("fabric: \"{}\", a part of a model that was set up, was called "
                                    "from outside of the model",
                                    part));
        expect_error(f, is_alone ? "it would not run in " + options.precision
                                 : "strategy " + options.strategy.name + " does not know of it");
        expect_error(f, "fabric.forward(model, function)");
      };
      refuses("body", [&] { net.forward(x); });
      refuses("body", [&] { net.encode(x); });
      refuses("body.2", [&] { net.body[2](Tensor::zeros({1, 12})); });
      {
        const NoGrad guard;
        net.eval();
        refuses("head", [&] { net.head(x); });
        net.train();
      }
      WEFT_CHECK(net.gelu(x).defined(), "what has no tensors may be called");

      // In its model a part is called in forward and, again, in backward.
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        fabric.backward(ops::mean(net(x)));
        optimizer.step();
      }
      if (is_dp(options) || options.strategy.name == "pipeline") {
        expect_error([&] { fabric.forward(net, [&] { return net.encode(x); }); },
                     "is called as model(x) alone");
        return;
      }
      const NoGrad guard;
      const Tensor whole = net(x),
                   by_function = fabric.forward(net, [&] { return net.forward(x); });
      WEFT_CHECK(by_function.to_vector() == whole.to_vector(), "forward(model, function) differs");
      // Behind it all is as before.
      refuses("body", [&] { net.encode(x); });
    });
  }
}

TEST_CASE("a function of a model may return several tensors") {
  NamedTensors expected;
  std::mutex mutex;
  for (FabricOptions options : every_strategy()) {
    INFO(options.strategy.name);
    options.precision = "64-true";
    on_ranks(options, [&](Fabric& fabric) {
      Net net;
      optim::SGD optimizer(net.named_parameters(), {.lr = 0.1});
      fabric.setup(net, optimizer);
      WEFT_CHECK(Fabric::of(net) == &fabric && !Fabric::of(net.head), "of another Fabric");
      const auto both = [&] {
        const Tensor body = net.encode(fabric.input(rows()));
        return Tensors{body, net.head(net.gelu(body))};
      };
      if (is_dp(options) || options.strategy.name == "pipeline") {
        expect_error([&] { fabric.lead(net, both); },
                     options.strategy.name + ": a model is called");
        return;
      }
      const Tensors two = fabric.lead(net, both);
      WEFT_CHECK(two.size() == 2 && two[0].size(1) == 6 && two[1].size(1) == 4, "other tensors");
      fabric.backward(ops::mean(two[0]) + ops::mean(two[1]));
      optimizer.step();
      const NamedTensors state = net.state_dict();
      const std::lock_guard lock(mutex);
      if (expected.empty()) expected = state;  // of one device
      WEFT_CHECK(state.size() == expected.size(), "{} tensors", state.size());
      for (size_t i = 0; i < state.size(); ++i) {
        const std::vector<double> mine = state[i].second.to_vector(),
                                  theirs = expected[i].second.to_vector();
        for (size_t k = 0; k < mine.size(); ++k) {
          WEFT_CHECK(std::abs(mine[k] - theirs[k]) < 1e-12, "{}: {}, expected {}", state[i].first,
                     mine[k], theirs[k]);
        }
      }
    });
  }
}

TEST_CASE("what a function returns of a model in few bits is widened, each tensor") {
  Fabric fabric({.precision = "bf16-true"});
  fabric.launch(nullptr);
  Net net;
  fabric.setup(net);
  CHECK(fabric.input(rows()).dtype() == DType::bf16);
  const Tensor bytes = Tensor::zeros({4, 6}, DType::u8);
  CHECK(fabric.input(bytes).dtype() == DType::u8);
  CHECK(fabric.input(bytes, true).dtype() == DType::bf16);
  const Tensors all = fabric.forward(net, [&] {
    return Tensors{net.encode(fabric.input(rows())), Tensor(), Tensor::zeros({2}, DType::i64)};
  });
  CHECK(all[0].dtype() == DType::f32);
  CHECK(!all[1].defined());
  CHECK(all[2].dtype() == DType::i64);
}

TEST_CASE("a model that was made without memory has it behind setup()") {
  for (const FabricOptions& options : every_strategy()) {
    INFO(options.strategy.name);
    on_ranks(options, [&](Fabric& fabric) {
      std::optional<nn::MetaScope> without_memory(std::in_place);
      Net net;
      without_memory.reset();
      NamedTensors state;
      for (const auto& [name, tensor] : net.state_dict()) {
        state.emplace_back(name, Tensor::full(tensor.shape(), 0.25));
      }
      fabric.setup(net);
      net.load_state_dict(state);
      check_same(net.state_dict(), state, "loaded");
    });
  }
}

TEST_CASE("trap: a call of one model is none of another's parts, but of all of the other") {
  for (const char* strategy : {"ddp", "fsdp", "zero2", "tp"}) {
    INFO(strategy);
    on_ranks({.devices = 2, .strategy = {.name = strategy}}, [&](Fabric& fabric) {
      Net student, teacher;
      optim::SGD optimizer(student.named_parameters(), {.lr = 0.1});
      optim::SGD of_teacher(teacher.named_parameters(), {.lr = 0.1});
      fabric.setup(student, optimizer);
      fabric.setup(teacher, of_teacher);
      const Tensor x = rows();
      const auto teach = [&] {
        const NoGrad guard;
        return teacher(x);
      };
      // Behind a call of all of the teacher that of the student goes on.
      fabric.backward(fabric.forward(student, [&] {
        const Tensor target = teach(), difference = student.head(student.encode(x)) - target;
        return ops::mean(difference * difference);
      }));
      WEFT_CHECK(optimizer.step(), "no step");
      const NoGrad guard;
      // A call that is made in another's is of both.
      const Tensor y = fabric.forward(student, [&] {
        return fabric.forward(teacher, [&] { return teacher.head(student.encode(x)); });
      });
      WEFT_CHECK(y.shape() == Shape({4, 4}), "{}", y);
      const auto refuses = [&](const char* part, const std::function<Tensor()>& f) {
        expect_error(
            [&] { fabric.forward(student, f); },
            fmt::format("fabric: \"{}\", a part of a model that was set up, was called from "
                        "outside of the model, where strategy {} does not know of it",
                        part, strategy));
      };
      refuses("body", [&] { return teacher.encode(x); });
      refuses("head", [&] { return teacher.head(student.encode(x)); });
      refuses("body", [&] {
        teach();
        return teacher.forward(x);
      });
    });
  }
}

TEST_CASE("parts may be called where that is the same as in their model") {
  for (const char* precision : {"32-true", "64-true", "bf16-true"}) {
    on_ranks({.precision = precision}, [&](Fabric& fabric) {
      Net net;
      optim::SGD optimizer(net.named_parameters(), {.lr = 0.1});
      fabric.setup(net, optimizer);
      const Tensor x = ops::cast(rows(), net.head.weight.dtype());
      CHECK(net.forward(x).to_vector() == net(x).to_vector());
    });
  }
  on_ranks({.precision = "bf16-mixed"}, [&](Fabric& fabric) {
    Net net;
    optim::SGD optimizer(net.named_parameters(), {.lr = 0.1});
    fabric.setup(net, optimizer);
    {
      const PrecisionScope scope = fabric.autocast();
      CHECK(ops::cast(net.forward(rows()), DType::f32).to_vector() == net(rows()).to_vector());
    }
    // A backward pass of the program's own computes activations again.
    CHECK_NOTHROW(backward(ops::mean(net(rows()))));
    CHECK(net.head.weight.grad().defined());
    // So may a loss that fabric.run() asks for.
    const auto loss = [&](const Tensor& y) {
      const Tensor six = ops::cat({y, ops::narrow(y, 1, 0, 2)}, 1);
      return ops::mean(ops::cast(net.head(six), DType::f32));
    };
    CHECK_NOTHROW(fabric.run({.count = 1, .at = [&](int64_t) {
                                return dist::MicroBatch{rows(), loss};
                              }}));
  });
}

TEST_CASE("a part that was set up on its own, and one that outlives its model") {
  for (const FabricOptions& options :
       {FabricOptions{.precision = "bf16-mixed"},
        {.devices = 2, .precision = "bf16-mixed", .strategy = {.name = "ddp"}},
        {.devices = 2, .precision = "bf16-mixed", .strategy = {.name = "fsdp"}}}) {
    on_ranks(options, [](Fabric& fabric) {
      Net net;
      optim::SGD optimizer(net.body.named_parameters(), {.lr = 0.1});
      fabric.setup(net.body, optimizer);
      const auto check = [&] {
        const Tensor h = net.body(rows());
        WEFT_CHECK(h.dtype() == DType::f32, "{}", h);
        // The model around it is a program's own.
        const Tensor y = net(rows()), expected = net.head(net.gelu(h));
        WEFT_CHECK(y.to_vector() == expected.to_vector(), "the model around it");
        expect_error([&] { net.body[0](rows()); }, "fabric: \"0\", a part of a model");
      };
      check();
      {
        const NoGrad guard;
        net.body.eval();
        check();
      }
    });
  }

  struct Holder : nn::Module {
    explicit Holder(std::shared_ptr<nn::Module> part) : part(*part) {
      add_child("part", std::move(part));
    }
    Tensor forward(const Tensor& x) override { return part(x); }
    nn::Module& part;
  };
  const auto part = std::make_shared<nn::Linear>(6, 2);
  auto fabric = std::make_unique<Fabric>(FabricOptions{.precision = "bf16-mixed"});
  fabric->launch(nullptr);
  auto first = std::make_unique<Holder>(part);
  fabric->setup_model(*first, {});
  CHECK_THROWS_WITH((*part)(rows()), Contains("\"part\", a part of a model that was set up"));
  first.reset();
  CHECK_NOTHROW((*part)(rows()));
  Holder second(part);
  fabric->setup_model(second, {});
  fabric.reset();
  CHECK_THROWS_WITH((*part)(rows()), "part: the Fabric that set it up is gone");
}

TEST_CASE("trap: models that share parameters are refused, by name, and nothing has changed") {
  struct Head : nn::Module {
    explicit Head(const std::shared_ptr<nn::Linear>& body)
        : body(*body), head(add<nn::Linear>("head", 6, 2)) {
      add_child("body", body);
    }
    Tensor forward(const Tensor& x) override { return head(body(x)); }
    nn::Linear &body, &head;
  };
  for (const FabricOptions& options : every_strategy()) {
    INFO(options.strategy.name);
    on_ranks(options, [&](Fabric& fabric) {
      Net net;
      optim::SGD optimizer(net.named_parameters(), {.lr = 0.1});
      fabric.setup(net, optimizer);
      expect_error([&] { fabric.setup_model(net.body, {}); },
                   "fabric: parameter \"0.weight\" of the model weft::nn::Sequential is also "
                   "\"body.0.weight\" of the model ");
      fabric.backward(ops::mean(net(rows())));
      WEFT_CHECK(optimizer.step(), "no step");
    });
  }
  for (const char* strategy : {"single", "ddp", "fsdp", "zero2"}) {
    INFO(strategy);
    const bool is_single = strategy == std::string("single");
    on_ranks({.devices = is_single ? 1 : 2, .strategy = {.name = strategy}}, [](Fabric& fabric) {
      Net net;
      fabric.setup_model(net.body, {});
      expect_error([&] { fabric.setup(net); }, "fabric: parameter \"body.0.weight\" of the model ");
      const auto shared = std::make_shared<nn::Linear>(6, 6);
      Head first(shared), second(shared);
      fabric.setup_model(first, {});
      expect_error([&] { fabric.setup_model(second, {}); },
                   "parameter \"body.weight\" of the model");
      WEFT_CHECK(first(rows()).size(1) == 2, "the first of them");
      Fabric other({});
      other.launch(nullptr);
      expect_error([&] { other.setup_model(second, {}); }, "that another Fabric has set up");
    });
  }
}

TEST_CASE("trap: a model outlives its Fabric, and is set up again where it is whole") {
  for (const char* strategy : {"single", "ddp", "fsdp", "tp"}) {
    INFO(strategy);
    const bool is_single = strategy == std::string("single");
    const bool is_cut = !is_single && strategy != std::string("ddp");
    const FabricOptions options{.devices = is_single ? 1 : 2, .strategy = {.name = strategy}};
    const auto train = [&](const dist::CommunicatorPtr& world) {
      Net net, straight;
      straight.load_state_dict(net.state_dict());
      std::shared_ptr<void> local;
      const auto step = [](Fabric& fabric, Net& of) {
        optim::SGD optimizer(of.named_parameters(), {.lr = 0.1});
        fabric.setup(of, optimizer);
        for (int i = 0; i < 2; ++i) {
          optimizer.zero_grad();
          fabric.backward(ops::mean(of(rows())));
          optimizer.step();
        }
      };
      {
        Fabric fabric(options);
        fabric.launch(world);
        step(fabric, net);
        local = fabric.no_backward_sync(net);
      }
      local.reset();
      Fabric other(options);
      other.launch(world);
      if (is_cut) {
        expect_error([&] { net.state_dict(); }, "state_dict: the Fabric that set it up is gone");
        expect_error([&] { other.setup(net); }, "by a Fabric that is gone and had it in parts");
        return;
      }
      const NamedTensors before = dist::cloned(net.state_dict());
      WEFT_CHECK(before.size() == 6, "{} tensors", before.size());
      step(other, net);
      // The optimizer has gone, the model is given up while the Fabric lives.
      other.release(net);
      WEFT_CHECK(!Fabric::of(net) && !net.head.weight.grad().defined(), "it is set up still");
      step(other, net);
      // The same as without an end between.
      Fabric third(options);
      third.launch(world);
      for (int i = 0; i < 3; ++i) {
        step(third, straight);
        third.release(straight);
      }
      check_same(net.state_dict(), straight.state_dict(), strategy);
    };
    if (is_single) {
      train(nullptr);
    } else {
      dist::run_ranks(2, [&](dist::Communicator& c) {
        manual_seed(1);
        train({&c, [](dist::Communicator*) {}});
      });
    }
  }
  on_ranks({.devices = 2, .strategy = {.name = "fsdp"}}, [](Fabric& fabric) {
    Net net;
    fabric.setup(net);
    expect_error([&] { fabric.release(net); },
                 "was set up already, and strategy fsdp does not leave it whole");
    WEFT_CHECK(net(rows()).defined(), "it cannot be called");
  });
}

TEST_CASE("trap: state_dict() is the whole state on every rank, and in f32") {
  NamedTensors expected;
  on_ranks({}, [&](Fabric&) { expected = dist::cloned(Net().state_dict()); });
  for (const FabricOptions& one : every_strategy()) {
    // In bf16 sharded weights travel in 16 bits.
    for (const char* precision : {"32-true", "bf16-mixed"}) {
      FabricOptions options = one;
      options.precision = precision;
      INFO(options.strategy.name << " in " << precision);
      on_ranks(options, [&](Fabric& fabric) {
        Net net;
        optim::SGD optimizer(net.named_parameters(), {.lr = 0.5});
        fabric.setup(net, optimizer);
        check_same(net.state_dict(), expected, "state_dict()");
        const auto part_of = [](const NamedTensors& state) {
          NamedTensors part;
          for (const auto& [name, tensor] : state) {
            if (name.starts_with("body.")) part.emplace_back(name.substr(5), tensor);
          }
          return part;
        };
        check_same(net.body.state_dict(), part_of(expected), "a part's");
        // An optimizer's step without the gradients of a part leaves that as it is.
        fabric.backward(ops::mean(net(rows())));
        net.body.zero_grad();
        optimizer.step();
        const NamedTensors after = dist::cloned(net.state_dict());
        check_same(part_of(after), part_of(expected), "without a gradient");
        WEFT_CHECK(after.back().first == "head.bias" &&
                       after.back().second.to_vector() != expected.back().second.to_vector(),
                   "with one");
        for (const auto& [name, tensor] : after) {
          const Tensor of_rank_0 = ops::clone(tensor);
          fabric.broadcast(of_rank_0);
          WEFT_CHECK(of_rank_0.to_vector() == tensor.to_vector(), "{} differs by rank", name);
        }
        net.load_state_dict(expected);
        check_same(net.state_dict(), expected, "what was loaded");
        const auto load = [&] { net.body.load_state_dict(part_of(expected)); };
        if (fabric.strategy().keeps_whole_state()) {
          load();
        } else {
          expect_error(load, "load_state_dict: \"body\" is a part of a model that was set up");
        }
        check_same(net.state_dict(), expected, "after a part's load");
      });
    }
  }
}

TEST_CASE("a part of a model is saved whole, and loaded where ranks have it whole") {
  const char* const folder = std::getenv("TEST_TMPDIR");
  for (const char* type : {"full", "sharded"}) {
    const std::string path =
        std::string(folder ? folder : "/tmp") + "/part_" + type + ".safetensors";
    NamedTensors saved;
    on_ranks({.devices = 2, .strategy = {.name = "fsdp"}, .state_dict_type = type},
             [&](Fabric& fabric) {
               Net net;
               optim::SGD optimizer(net.named_parameters(), {.lr = 0.5});
               fabric.setup(net, optimizer);
               fabric.save(path, {{"body", &net.body}});
               expect_error(
                   [&] {
                     fabric.load(path, {{"body", &net.body}});
                   },
                   "\"body\" is a part of a model that was set up");
               NamedTensors state = net.body.state_dict();
               if (fabric.is_main()) saved = std::move(state);
             });
    on_ranks({}, [&](Fabric& fabric) {
      Net net;
      for (Tensor p : net.parameters()) p.set_data(Tensor::zeros(p.shape()));
      fabric.load(path, {{"body", &net.body}});
      check_same(net.body.state_dict(), saved, type);
    });
  }
}

TEST_CASE("a pipeline's plain loop refuses the schedule that it cannot follow") {
  for (const auto schedule :
       {dist::Schedule::kUsual, dist::Schedule::kGpipe, dist::Schedule::k1F1B}) {
    on_ranks(
        {.devices = 2, .strategy = {.name = "pipeline", .schedule = schedule}},
        [&](Fabric& fabric) {
          Net net;
          optim::SGD optimizer(net.named_parameters(), {.lr = 0.5});
          fabric.setup(net, optimizer);
          {
            const NoGrad guard;  // evaluation has no schedule
            net(rows());
          }
          const auto pass = [&] { fabric.backward(ops::mean(net(rows()))); };
          if (schedule == dist::Schedule::k1F1B) {
            expect_error(pass, "cannot follow the schedule 1f1b; call fabric.run()");
          } else {
            pass();
          }
          const auto loss = [](const Tensor& y) { return ops::mean(y); };
          fabric.run({.count = 2, .at = [&](int64_t) { return dist::MicroBatch{rows(), loss}; }});
        });
  }
}

TEST_CASE("a list of devices says where ranks and threads are") {
  const int there = runtime::device_count();
  if (there < 2) WEFT_SKIP("two CUDA devices");
  const Devices list = std::vector<int>{1, 0};
  on_ranks({.device = "cuda", .devices = list, .strategy = {.name = "ddp"}}, [](Fabric& fabric) {
    WEFT_CHECK(fabric.device().index == 1 - fabric.rank(), "rank {} is on {}", fabric.rank(),
               fabric.device());
    const Tensor x = ops::to(Tensor::full({2}, fabric.rank() + 1.0), fabric.device());
    fabric.all_reduce(x, dist::ReduceOp::kSum);
    WEFT_CHECK(x.to_vector() == std::vector<double>({3, 3}), "{}", x.to_vector()[0]);
  });

  // By rows: two are the first replica's, one is the second's.
  static std::mutex mutex;
  static std::map<int64_t, int> number_of;
  struct Where : nn::Module {
    Where() : linear(add<nn::Linear>("linear", 6, 2)) {}
    Tensor forward(const Tensor& x) override {
      {
        const std::lock_guard lock(mutex);
        number_of[x.size(0)] = x.device().index;
      }
      return linear(x);
    }
    nn::Linear& linear;
  };
  Fabric fabric({.device = "cuda", .devices = list, .strategy = {.name = "dp"}});
  fabric.launch(nullptr);
  Where where;
  optim::SGD optimizer(where.named_parameters(), {.lr = 0.5});
  fabric.setup(where, optimizer);
  fabric.backward(ops::mean(where(Tensor::full({3, 6}, 1))));
  CHECK(optimizer.step());
  CHECK(number_of == std::map<int64_t, int>{{2, 1}, {1, 0}});

  // Of those that are listed, none takes the place of another.
  for (const char* strategy : {"dp", "single"}) {
    Devices missing = std::vector<int>{0, there};
    if (strategy == std::string("single")) missing = std::vector<int>{there};
    const auto set_up = [&] {
      Fabric other({.device = "cuda", .devices = missing, .strategy = {.name = strategy}});
      other.launch(nullptr);
      Where model;
      other.setup(model);
    };
    CHECK_THROWS_WITH(set_up(), Contains(fmt::format("device cuda:{} is not available", there)));
  }
}

TEST_CASE("devices are those of all nodes") {
  const FabricOptions options{
      .devices = 2, .num_nodes = 2, .strategy = {.name = "hsdp", .shard_size = 2}};
  dist::run_ranks(4, [&](dist::Communicator& c) {
    Fabric fabric(options);
    fabric.launch(dist::CommunicatorPtr(&c, [](dist::Communicator*) {}));
    WEFT_CHECK(fabric.size() == 4 && fabric.data_size() == 4, "{} ranks", fabric.size());
    Net net;
    optim::SGD optimizer(net.named_parameters(), {.lr = 0.5});
    fabric.setup(net, optimizer);
    fabric.backward(ops::mean(net(rows())));
    WEFT_CHECK(optimizer.step(), "no step");
  });
  dist::run_ranks(2, [&](dist::Communicator& c) {
    expect_error(
        [&] { Fabric(options).launch(dist::CommunicatorPtr(&c, [](dist::Communicator*) {})); },
        "4 devices were asked for, 2 ranks were started");
  });
  std::string program = "program";
  char* arguments[] = {program.data(), nullptr};
  CHECK_THROWS_WITH(Fabric(options).launch(1, arguments), Contains("2 nodes need a launcher"));
  CHECK_THROWS_WITH(Fabric({.devices = 2, .num_nodes = 2, .strategy = {.name = "dp"}}),
                    Contains("2 nodes, but dp has threads of one program"));
}
