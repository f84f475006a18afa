// Optimizers of parts of a model, and of several models, that step and drop gradients when they
// like: under every strategy what one device does, with ranks as threads.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/philox.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/testing/oracle.h"
#include "nn/nn.h"
#include "optim/clip.h"
#include "optim/layerwise.h"
#include "optim/sgd.h"
#include "train/fabric.h"
#include "train/testing/every_strategy.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

/// Three layers, and a spare one that is neither used nor in an optimizer. fc1 is a unit of its
/// own, the others are one together.
struct Net : nn::Module {
  explicit Net(int64_t classes = 4, bool has_spare = true)
      : classes(classes),
        has_spare(has_spare),
        fc1(add<nn::Linear>("fc1", 6, 12)),
        fc2(add<nn::Linear>("fc2", 12, 6)),
        head(add<nn::Linear>("head", 6, classes)) {
    if (has_spare) add<nn::Linear>("spare", 6, 4);
  }
  Tensor forward(const Tensor& x) override { return head(ops::gelu(fc2(ops::gelu(fc1(x))))); }
  nn::ModelStructure structure() override {
    nn::ModelStructure structure(
        [](const std::string& name, nn::Module&) { return name == "fc1"; });
    structure.mlps = {{&fc1, &fc2}};
    structure.segments = {{"fc1", [this](const Tensor& x) { return ops::gelu(fc1(x)); }, {"fc1"}},
                          {"fc2", [this](const Tensor& x) { return ops::gelu(fc2(x)); }, {"fc2"}},
                          {"head", [this](const Tensor& x) { return head(x); }, {"head", "spare"}}};
    structure.replica = [classes = classes, has_spare = has_spare] {
      return std::make_shared<Net>(classes, has_spare);
    };
    return structure;
  }
  const int64_t classes;
  const bool has_spare;
  nn::Linear &fc1, &fc2, &head;
};

using Choice = std::function<bool(const std::string& name)>;

/// The parameters of these names, but for the spare ones.
NamedTensors chosen(const Net& net, const Choice& is_chosen) {
  NamedTensors all = net.named_parameters();
  std::erase_if(all, [&](const auto& named) {
    return named.first.starts_with("spare.") || !is_chosen(named.first);
  });
  return all;
}

/// This rank's rows out of 12 in a step; of half of them where `part` is 0 or 1.
std::pair<Tensor, Tensor> rows_of(const Fabric& fabric, int step, int part) {
  const NoGrad guard;
  Philox random(7, static_cast<uint64_t>(step));
  std::vector<float> values(12 * 6);
  for (float& v : values) v = static_cast<float>(random.normal());
  const Tensor x = Tensor::from(values, {12, 6});
  const Tensor labels =
      Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3}, {12});
  const int begin = part == 1 ? 6 : 0, all = part < 0 ? 12 : 6;
  const int rows = all / fabric.data_size(), first = begin + fabric.data_rank() * rows;
  return {ops::contiguous(ops::narrow(x, 0, first, rows)),
          ops::contiguous(ops::narrow(labels, 0, first, rows))};
}

/// A rank's loop around a net, and two optimizers of its parts.
struct Run {
  Fabric& fabric;
  Net& net;
  optim::SGD &first, &second;
  std::vector<double> norms = {};

  /// Adds the gradients of the rows' mean loss, times `weight`.
  void backward(int step, int part = -1, double weight = 1) const {
    const auto [x, labels] = rows_of(fabric, step, part);
    fabric.backward(ops::cross_entropy(net(x), labels) * weight);
  }
  void clip(const Tensors& parameters) { norms.push_back(optim::clip_grad_norm(parameters, 0.2)); }
};

struct Program {
  const char* name;
  bool has_second;  // else what it would have is in no optimizer
  std::function<void(Run& run, int step)> step;
};

/// Two rounds a step. The second optimizer steps after every other step, on what both have left; if
/// `drops`, on the second's alone.
void rounds(Run& run, int step, bool drops) {
  const bool both_step = step % 2 == 1;
  for (int part : {0, 1}) {
    const auto round = run.fabric.accumulate(run.net);
    run.first.zero_grad();
    if (drops || !both_step) run.second.zero_grad();
    run.backward(step, part);
    const double norm = optim::clip_grad_norm(run.first.parameters(), 0.2);
    if (run.fabric.sync_gradients()) run.norms.push_back(norm);
    WEFT_CHECK(run.first.step() == (part == 1), "the first optimizer in round {}", part);
    if (both_step) {
      WEFT_CHECK(run.second.step() == (part == 1), "the second optimizer in round {}", part);
    }
  }
}

/// The same without accumulate().
void rounds_by_hand(Run& run, int step, bool drops) {
  const bool both_step = step % 2 == 1;
  run.first.zero_grad();
  if (drops || !both_step) run.second.zero_grad();
  for (int part : {0, 1}) {
    const auto local = run.fabric.no_backward_sync(run.net, part == 0);
    run.backward(step, part, 0.5);
  }
  run.clip(run.first.parameters());
  run.first.step();
  if (both_step) run.second.step();
}

std::vector<Program> programs() {
  return {
      {"steps of their own, with the norm of all", true,
       [](Run& run, int step) {
         run.backward(step);
         run.clip(run.net.parameters());
         run.first.step();
         run.first.zero_grad();
         if (step % 2 == 0) return;
         run.second.step();
         run.second.zero_grad();
       }},
      {"a norm for each, gradients dropped before backward", true,
       [](Run& run, int step) {
         run.first.zero_grad();
         if (step % 2 == 0) run.second.zero_grad();
         run.backward(step);
         run.clip(run.first.parameters());
         run.clip(run.second.parameters());
         run.first.step();
         if (step % 2 == 1) run.second.step();
       }},
      {"an optimizer of a part alone", false,
       [](Run& run, int step) {
         run.first.zero_grad();
         run.backward(step);
         run.clip(run.net.parameters());
         run.first.step();
       }},
      {"a step of two passes, the first of them not summed", true,
       [](Run& run, int step) {
         for (int part : {0, 1}) {
           const auto local = run.fabric.no_backward_sync(run.net, part == 0);
           run.backward(step, part, 0.5);
         }
         run.clip(run.net.parameters());
         run.first.step();
         run.second.step();
         run.second.zero_grad();
         run.first.zero_grad();
       }},
      {"one drops what has not been summed yet", true,
       [](Run& run, int step) {
         {
           const auto local = run.fabric.no_backward_sync(run.net);
           run.backward(step, 0);
         }
         run.first.zero_grad();
         run.backward(step, 1);
         run.clip(run.net.parameters());
         run.first.step();
         run.second.step();
         run.first.zero_grad();
         if (step % 2 == 1) run.second.zero_grad();
       }},
      {"a module of the net drops it", true,
       [](Run& run, int step) {
         {
           const auto local = run.fabric.no_backward_sync(run.net);
           run.backward(step, 0);
         }
         run.net.fc2.zero_grad();
         run.backward(step, 1);
         run.first.step();
         run.second.step();
         run.first.zero_grad();
         run.second.zero_grad();
       }},
      {"one drops sums and what came behind them", true,
       [](Run& run, int step) {
         run.backward(step);
         {
           const auto local = run.fabric.no_backward_sync(run.net);
           run.backward(step, 0);
         }
         run.second.zero_grad();
         run.backward(step, 1);
         run.clip(run.net.parameters());
         run.first.step();
         run.second.step();
         run.first.zero_grad();
       }},
      {"rounds, gradients dropped behind the step", true,
       [](Run& run, int step) {
         for (int part : {0, 1}) {
           const auto round = run.fabric.accumulate(run.net);
           run.backward(step, part);
           const double norm = optim::clip_grad_norm(run.net.parameters(), 0.2);
           if (run.fabric.sync_gradients()) run.norms.push_back(norm);
           for (optim::SGD* optimizer : {&run.first, &run.second}) {
             WEFT_CHECK(optimizer->step() == (part == 1), "a step in round {}", part);
           }
           for (optim::SGD* optimizer : {&run.first, &run.second}) optimizer->zero_grad();
         }
       }},
      {"rounds, steps of their own", true, [](Run& run, int step) { rounds(run, step, false); }},
      {"rounds, gradients dropped without a step", true,
       [](Run& run, int step) { rounds(run, step, true); }},
      {"rounds of an optimizer of a part alone", false,
       [](Run& run, int step) {
         for (int part : {0, 1}) {
           const auto round = run.fabric.accumulate(run.net);
           run.backward(step, part);
           const double norm = optim::clip_grad_norm(run.net.parameters(), 0.2);
           if (run.fabric.sync_gradients()) run.norms.push_back(norm);
           run.first.step();
           run.first.zero_grad();
         }
       }},
  };
}

struct Result {
  NamedTensors state;
  std::vector<double> norms;
};

/// Under ddp a parameter that nobody uses has to be said; among copies of tp it cannot be.
FabricOptions completed(FabricOptions options) {
  if (options.precision == FabricOptions().precision) options.precision = "64-true";
  options.strategy.find_unused = options.strategy.name == "ddp";
  options.accumulate = 2;
  return options;
}
bool takes_spare(const FabricOptions& options) {
  return options.strategy.name != "tp" || options.strategy.tensor_parallel == 0;
}

/// What body(fabric) returns on each rank.
std::vector<Result> on_ranks(const FabricOptions& given,
                             const std::function<Result(Fabric&)>& body) {
  const FabricOptions options = completed(given);
  const auto on_rank = [&](const dist::CommunicatorPtr& world) {
    Fabric fabric(options);
    fabric.launch(world);
    fabric.seed_everything(1);
    return body(fabric);
  };
  if (options.devices.count == 1 || options.strategy.name == "dp") return {on_rank(nullptr)};
  std::vector<Result> results(options.devices.count);
  dist::run_ranks(options.devices.count, [&](dist::Communicator& c) {
    results[c.rank()] = on_rank({&c, [](dist::Communicator*) {}});
  });
  return results;
}

std::vector<Result> run(const FabricOptions& options, const Choice& is_first,
                        const Program& program) {
  return on_ranks(options, [&](Fabric& fabric) {
    Net net(4, takes_spare(options));
    optim::SGD first(chosen(net, is_first), {.lr = 0.1, .momentum = 0.9});
    optim::SGD second(chosen(net, [&](const std::string& name) { return !is_first(name); }),
                      {.lr = 0.1, .momentum = 0.9});
    fabric.setup(net, first);
    if (program.has_second) fabric.setup_optimizer(second);
    Run run{fabric, net, first, second};
    for (int step = 0; step < 4; ++step) program.step(run, step);
    return Result{dist::cloned(net.state_dict()), run.norms};
  });
}

/// Every rank has what one device has; a spare layer may be missing.
void check_same(const std::vector<Result>& ranks, const Result& one) {
  for (const Result& result : ranks) {
    const std::unordered_map<std::string, Tensor> state(result.state.begin(), result.state.end());
    double largest = 0;
    for (const auto& [name, expected] : one.state) {
      const auto found = state.find(name);
      if (found == state.end() && name.starts_with("spare.")) continue;
      REQUIRE(found != state.end());
      const std::vector<double> x = found->second.to_vector(), y = expected.to_vector();
      REQUIRE(x.size() == y.size());
      for (size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
    }
    CHECK(largest < 1e-12);
    REQUIRE(result.norms.size() == one.norms.size());
    for (size_t i = 0; i < one.norms.size(); ++i) {
      CHECK(std::abs(result.norms[i] - one.norms[i]) < 1e-12);
    }
  }
}

/// That a program, play(options, by hand), is under every strategy what it is by hand on one
/// device.
template <class Play>
void check_everywhere(const Play& play) {
  const Result one = play(FabricOptions(), true)[0];
  check_same(play(FabricOptions(), false), one);
  for (const FabricOptions& options : every_strategy()) {
    INFO(options.strategy.name << " on " << options.devices.count);
    check_same(play(options, false), one);
  }
}

/// The states of two models, the second's names behind a prefix.
NamedTensors state_of(nn::Module& first, const std::string& prefix, nn::Module& second) {
  NamedTensors state = dist::cloned(first.state_dict());
  for (const auto& [name, tensor] : dist::cloned(second.state_dict())) {
    state.emplace_back(prefix + name, tensor);
  }
  return state;
}

const std::vector<std::pair<const char*, Choice>>& choices() {
  static const std::vector<std::pair<const char*, Choice>> all = {
      {"the head", [](const std::string& name) { return name.starts_with("head."); }},
      {"weights", [](const std::string& name) { return name.ends_with(".weight"); }}};
  return all;
}

}  // namespace

TEST_CASE("trap: each optimizer has its parameters' gradients alone, under every strategy") {
  for (const auto& [part, is_first] : choices()) {
    for (const Program& program : programs()) {
      const Result one = run({}, is_first, program)[0];
      for (const FabricOptions& options : every_strategy()) {
        INFO(program.name << ", first " << part << ": " << options.strategy.name << " on "
                          << options.devices.count);
        check_same(run(options, is_first, program), one);
      }
    }
  }
}

TEST_CASE("rounds of accumulate() are the same passes by hand") {
  for (const auto& [part, is_first] : choices()) {
    for (const bool drops : {false, true}) {
      INFO(part << ", drops: " << drops);
      const Program by_rounds = {"rounds", true,
                                 [&](Run& run, int step) { rounds(run, step, drops); }};
      const Program by_hand = {"by hand", true,
                               [&](Run& run, int step) { rounds_by_hand(run, step, drops); }};
      check_same(run({}, is_first, by_rounds), run({}, is_first, by_hand)[0]);
    }
  }
}

TEST_CASE("gradients of fabric.run() add up with those of other passes") {
  const auto fit = [](const FabricOptions& options) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net net(4, takes_spare(options));
      optim::SGD optimizer(chosen(net, [](const std::string&) { return true; }), {.lr = 0.1});
      fabric.setup(net, optimizer);
      for (int step = 0; step < 2; ++step) {
        const auto run_part = [&](int part) {
          const auto [x, labels] = rows_of(fabric, step, part);
          const auto loss = [&, labels = labels](const Tensor& logits) {
            return fabric.scaled(ops::cross_entropy(logits, labels) * (0.5 / fabric.data_size()));
          };
          fabric.run({.count = 1, .at = [&, x = x](int64_t) {
                        return dist::MicroBatch{ops::cast(x, DType::f64), loss};
                      }});
        };
        {
          const auto local = fabric.no_backward_sync(net);
          run_part(0);
        }
        run_part(1);
        run_part(0);
        const auto [x, labels] = rows_of(fabric, step, -1);
        fabric.backward(ops::cross_entropy(net(x), labels));
        optimizer.step();
        if (step == 0) optimizer.zero_grad();
      }
      return Result{dist::cloned(net.state_dict()), {}};
    });
  };
  const Result one = fit({})[0];
  for (const FabricOptions& options : every_strategy()) {
    INFO(options.strategy.name << " on " << options.devices.count);
    check_same(fit(options), one);
  }
}

TEST_CASE("trap: a model's rounds leave the gradients and steps of others alone") {
  // One loss that goes through both: of the maker two rounds are a step, of the critic one is.
  const auto play = [](const FabricOptions& options, bool by_hand) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net maker(6, false), critic(4, false);
      optim::SGD of_maker(maker.named_parameters(), {.lr = 0.1, .momentum = 0.9});
      optim::SGD of_critic(critic.named_parameters(), {.lr = 0.1, .momentum = 0.9});
      fabric.setup(maker, of_maker);
      fabric.setup(critic, of_critic);
      Result result;
      for (int step = 0; step < 3; ++step) {
        for (int part : {0, 1}) {
          const bool is_last = part == 1;
          const auto round =
              by_hand ? fabric.no_backward_sync(maker, !is_last) : fabric.accumulate(maker);
          const auto [x, labels] = rows_of(fabric, step, part);
          fabric.backward(ops::cross_entropy(critic(maker(x)), labels));
          result.norms.push_back(optim::clip_grad_norm(critic.parameters(), 0.2));
          WEFT_CHECK(of_critic.step(), "the critic's step in round {}", part);
          of_critic.zero_grad();
          if (by_hand) {
            if (!is_last) continue;
            of_maker.step(0.5);
          } else {
            WEFT_CHECK(of_maker.step() == is_last, "the maker's step in round {}", part);
          }
          of_maker.zero_grad();
        }
      }
      result.state = state_of(maker, "critic.", critic);
      return result;
    });
  };
  check_everywhere(play);
}

TEST_CASE("several models accumulate together") {
  const auto train_both = [](const FabricOptions& options, bool by_hand) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net a(4, false), b(4, false);
      optim::SGD of_a(a.named_parameters(), {.lr = 0.1, .momentum = 0.9});
      optim::SGD of_b(b.named_parameters(), {.lr = 0.1, .momentum = 0.9});
      fabric.setup(a, of_a);
      fabric.setup(b, of_b);
      const auto backward = [&](Net& net, int step, int part, double weight) {
        const auto [x, labels] = rows_of(fabric, step, part);
        fabric.backward(ops::cross_entropy(net(x), labels) * weight);
      };
      for (int step = 0; step < 3; ++step) {
        for (int part : {0, 1}) {
          if (by_hand) {
            const auto local_a = fabric.no_backward_sync(a, part == 0);
            const auto local_b = fabric.no_backward_sync(b, part == 0);
            backward(a, step, part, 0.5);
            backward(b, step, part, 0.5);
            continue;
          }
          const auto round = fabric.accumulate({&a, &b});
          // A pass through one leaves what the other's last step has used to its zero_grad().
          of_a.zero_grad();
          backward(a, step, part, 1);
          WEFT_CHECK(of_a.step() == (part == 1), "a step in round {}", part);
          of_b.zero_grad();
          backward(b, step, part, 1);
          WEFT_CHECK(of_b.step() == (part == 1), "b's step in round {}", part);
        }
        if (!by_hand) continue;
        for (optim::SGD* optimizer : {&of_a, &of_b}) {
          optimizer->step();
          optimizer->zero_grad();
        }
      }
      return Result{state_of(a, "b.", b), {}};
    });
  };
  check_everywhere(train_both);
}

TEST_CASE("trap: one optimizer of a model in a round and of another keeps the gradients of both") {
  const auto train_both = [](const FabricOptions& options, bool by_hand) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net a(4, false), b(4, false);
      NamedTensors all = a.named_parameters();
      for (const auto& [name, tensor] : b.named_parameters()) all.emplace_back("b." + name, tensor);
      optim::SGD optimizer(all, {.lr = 0.1, .momentum = 0.9});
      fabric.setup_model(a, structure_of(a));
      fabric.setup_model(b, structure_of(b));
      fabric.setup_optimizer(optimizer);
      Result result;
      for (int step = 0; step < 3; ++step) {
        for (int part : {0, 1}) {
          const bool is_last = part == 1;
          const auto round = by_hand ? std::shared_ptr<void>() : fabric.accumulate(a);
          if (!by_hand || !is_last) optimizer.zero_grad();
          const auto [x, labels] = rows_of(fabric, step, part);
          fabric.backward(ops::cross_entropy(a(x), labels) * (by_hand ? 0.5 : 1.0));
          fabric.backward(ops::cross_entropy(b(x), labels));
          if (by_hand && !is_last) continue;
          // It waits, as the step does.
          const double norm = optim::clip_grad_norm(b.parameters(), 0.2);
          if (is_last) result.norms.push_back(norm);
          WEFT_CHECK(optimizer.step() == is_last, "a step in round {}", part);
        }
      }
      result.state = state_of(a, "b.", b);
      return result;
    });
  };
  check_everywhere(train_both);
}

TEST_CASE("trap: a step of rounds that is left out leaves nothing to the next one") {
  enum class How : uint8_t { kNotThere, kBehindBackward, kWithoutBackward, kByModel };
  const auto train = [](const FabricOptions& options, How how, bool drops_first) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net net(4, false);
      optim::SGD optimizer(net.named_parameters(), {.lr = 0.1, .momentum = 0.9});
      fabric.setup(net, optimizer);
      Run run{fabric, net, optimizer, optimizer};
      for (int step = 0; step < 3; ++step) {
        const bool is_left_out = step == 1;
        if (is_left_out && how == How::kNotThere) continue;
        for (int part : {0, 1}) {
          const auto round = fabric.accumulate(net);
          if (drops_first) optimizer.zero_grad();
          if (is_left_out && part == 1) {
            if (how == How::kBehindBackward) run.backward(step, part);
            if (how == How::kByModel) {
              net.zero_grad();
            } else {
              optimizer.zero_grad();
            }
            continue;
          }
          run.backward(step, part);
          WEFT_CHECK(optimizer.step() == (part == 1), "a step in round {}", part);
          if (!drops_first) optimizer.zero_grad();
        }
      }
      return Result{dist::cloned(net.state_dict()), {}};
    });
  };
  for (const bool drops_first : {false, true}) {
    const Result one = train({}, How::kNotThere, drops_first)[0];
    for (const How how : {How::kBehindBackward, How::kWithoutBackward, How::kByModel}) {
      INFO("drops first: " << drops_first << ", how: " << static_cast<int>(how));
      check_same(train({}, how, drops_first), one);
      for (const FabricOptions& options : every_strategy()) {
        INFO(options.strategy.name << " on " << options.devices.count);
        check_same(train(options, how, drops_first), one);
      }
    }
  }
}

TEST_CASE("trap: a layer that is frozen at the setup and trained later accumulates") {
  const auto train = [](const FabricOptions& options, bool by_hand) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net net(4, false);
      net.fc1.requires_grad_(false);
      optim::SGD optimizer(net.named_parameters(), {.lr = 0.1, .momentum = 0.9});
      fabric.setup(net, optimizer);
      Run run{fabric, net, optimizer, optimizer};
      for (int step = 0; step < 4; ++step) {
        if (step == 2) net.fc1.requires_grad_(true);
        if (by_hand) optimizer.zero_grad();
        for (int part : {0, 1}) {
          const auto round =
              by_hand ? fabric.no_backward_sync(net, part == 0) : fabric.accumulate(net);
          if (!by_hand) optimizer.zero_grad();
          run.backward(step, part, by_hand ? 0.5 : 1);
          if (!by_hand || part == 1) optimizer.step();
        }
      }
      return Result{dist::cloned(net.state_dict()), {}};
    });
  };
  const Result one = train({}, true)[0];
  check_same(train({}, false), one);
  for (const FabricOptions& options : every_strategy()) {
    INFO(options.strategy.name << " on " << options.devices.count);
    check_same(train(options, false), one);
  }
}

TEST_CASE("trap: a backward that fails and is caught leaves the sums that were there") {
  const auto train = [](const FabricOptions& options, bool fails) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net net(4, false);
      optim::SGD optimizer(net.named_parameters(), {.lr = 0.1, .momentum = 0.9});
      fabric.setup(net, optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const auto [x, labels] = rows_of(fabric, step, -1);
        const Tensor loss = ops::cross_entropy(net(x), labels);
        fabric.backward(loss);
        if (fails && step == 1) {
          dist::expect_error([&] { fabric.backward(loss); }, "backward was run through it already");
        }
        optimizer.step();
      }
      return Result{dist::cloned(net.state_dict()), {}};
    });
  };
  const Result one = train({}, false)[0];
  check_same(train({}, true), one);
  for (const FabricOptions& options :
       {FabricOptions{.devices = 2, .strategy = {.name = "ddp"}},
        {.devices = 3, .strategy = {.name = "fsdp"}},
        {.devices = 2, .strategy = {.name = "zero1"}},
        {.devices = 3, .strategy = {.name = "zero2"}},
        {.devices = 4, .strategy = {.name = "hsdp", .shard_size = 2}}}) {
    INFO(options.strategy.name);
    check_same(train(options, true), one);
  }
}

TEST_CASE("trap: a loss scale is no matter of what no backward reaches, nor of two optimizers") {
  const auto norms_of = [](FabricOptions options, bool has_first_alone) {
    options.precision = "16-mixed";
    options.numerics.loss_scale.init_scale = 1024;
    return on_ranks(options, [&](Fabric& fabric) {
      Net net;  // the spare layer is in no optimizer
      const auto is_first = [&](const std::string& name) {
        return !has_first_alone || name.starts_with("head.");
      };
      optim::SGD optimizer(chosen(net, is_first), {.lr = 0.1});
      fabric.setup(net, optimizer);
      optim::SGD second(chosen(net, is_first), {.lr = 0.1});
      dist::expect_error(
          [&] { fabric.setup_optimizer(second); },
          fmt::format("fabric: parameter \"{}.weight\" is in another optimizer, too: "
                      "in 16-mixed",
                      has_first_alone ? "head" : "fc1"));
      Run run{fabric, net, optimizer, optimizer};
      run.backward(0);
      if (has_first_alone) {
        dist::expect_error([&] { run.clip(net.parameters()); },
                           "clipping: parameter \"fc1.weight\" is trained by no optimizer");
        return Result{{}, run.norms};
      }
      run.clip(net.parameters());
      WEFT_CHECK(optimizer.step(), "no step");
      return Result{{}, run.norms};
    });
  };
  const double expected = norms_of({}, false)[0].norms.at(0);
  for (const FabricOptions& options :
       {FabricOptions{.devices = 2, .strategy = {.name = "ddp"}},
        {.devices = 3, .strategy = {.name = "fsdp"}},
        {.devices = 2, .strategy = {.name = "zero1"}},
        {.devices = 3, .strategy = {.name = "zero2"}},
        {.devices = 4, .strategy = {.name = "hsdp", .shard_size = 2}},
        {.devices = 4, .strategy = {.name = "fsdp+tp"}},
        {.devices = 4, .strategy = {.name = "pipeline", .pipeline_stages = 2}}}) {
    INFO(options.strategy.name);
    for (const Result& result : norms_of(options, false)) {
      CHECK(result.norms.at(0) == Approx(expected).epsilon(0.01));
    }
    norms_of(options, true);
  }
  // Without a scale they may take turns.
  const auto take_turns = [](Fabric& fabric) {
    Net net;
    optim::SGD first(net.named_parameters(), {.lr = 0.1}),
        second(net.named_parameters(), {.lr = 1});
    fabric.setup(net, first, second);
    return Result{};
  };
  CHECK_NOTHROW(on_ranks({}, take_turns));
}

TEST_CASE("trap: what one rank alone has reached decides for all whether clipping throws") {
  const FabricOptions options{.devices = 2, .precision = "16-mixed", .strategy = {.name = "ddp"}};
  on_ranks(options, [](Fabric& fabric) {
    Net net(4, false);
    const auto is_of_head = [](const std::string& name) { return name.starts_with("head."); };
    optim::SGD optimizer(chosen(net, is_of_head), {.lr = 0.1});
    fabric.setup(net, optimizer);
    const auto [x, labels] = rows_of(fabric, 0, -1);
    const Tensor logits =
        fabric.rank() == 0 ? net(x) : fabric.forward(net, [&, x = x] { return net.head(x); });
    fabric.backward(ops::cross_entropy(logits, labels));
    dist::expect_error([&] { optim::clip_grad_norm(net.parameters(), 1.0); },
                       "clipping: parameter \"fc1.weight\" is trained by no optimizer");
    optim::clip_grad_norm(optimizer.parameters(), 1.0);
    WEFT_CHECK(optimizer.step(), "no step");
    return Result{};
  });
}

TEST_CASE("a rank that a pass reaches no parameter of has the sums of earlier rounds, too") {
  const char* const strategy = GENERATE("ddp", "zero2");
  CAPTURE(strategy);
  const FabricOptions options{.devices = 2, .strategy = {.name = strategy}};
  on_ranks(options, [](Fabric& fabric) {
    Net net(4, false);
    optim::SGD optimizer(net.named_parameters(), {.lr = 0.1});
    fabric.setup(net, optimizer);
    const auto [x, labels] = rows_of(fabric, 0, -1);
    {
      const auto local = fabric.no_backward_sync(net);
      fabric.backward(ops::cross_entropy(net(x), labels));
    }
    Tensor other = Tensor::zeros(net(x).shape());
    other.set_requires_grad(true);
    const Tensor logits =
        fabric.rank() == 0 ? net(x) : fabric.forward(net, [&] { return other * 2.0; });
    fabric.backward(ops::cross_entropy(logits, labels));
    const double norm = optim::clip_grad_norm(optimizer.parameters(), 1.0);
    WEFT_CHECK(norm > 0, "a norm of {}", norm);
    WEFT_CHECK(optimizer.step(), "no step");
    return Result{};
  });
}

TEST_CASE("trap: a setup() whose optimizers are refused has changed nothing") {
  for (const FabricOptions& given : {FabricOptions(),
                                     FabricOptions{.devices = 2, .strategy = {.name = "ddp"}},
                                     {.devices = 2, .strategy = {.name = "fsdp"}},
                                     {.devices = 2, .strategy = {.name = "zero1"}},
                                     {.devices = 2, .strategy = {.name = "tp"}},
                                     {.devices = 4, .strategy = {.name = "fsdp+tp"}},
                                     {.devices = 2, .strategy = {.name = "pipeline"}}}) {
    INFO(given.strategy.name);
    FabricOptions options = given;
    options.precision = "16-mixed";
    on_ranks(options, [&](Fabric& fabric) {
      Net net(4, false);
      const NamedTensors before = dist::cloned(net.state_dict());
      optim::SGD all(net.named_parameters(), {.lr = 0.1}),
          head(net.head.named_parameters(), {.lr = 0.1});
      optim::Lars whole(net.named_parameters());
      dist::expect_error([&] { fabric.setup(net, all, head); },
                         "fabric: parameter \"weight\" is in another optimizer, too: in 16-mixed");
      dist::expect_error([&] { fabric.setup(net, all, all); }, "fabric: setup() of one SGD twice");
      const std::string& strategy = options.strategy.name;
      const bool is_cut =
          strategy == "zero1" || strategy.find("fsdp") != std::string::npos || strategy == "tp";
      if (is_cut) {
        dist::expect_error([&] { fabric.setup(net, whole); },
                           fmt::format("fabric: LARS needs whole parameters; the strategy {} cuts "
                                       "some, and refuses it for all",
                                       strategy));
        // Of what tp leaves whole, too.
        optim::Lars whole_head(net.head.named_parameters());
        dist::expect_error([&] { fabric.setup(net, whole_head); }, "refuses it for all");
      }
      const std::vector<optim::Optimizer*> one_is_null = {&all, nullptr};
      dist::expect_error([&] { fabric.setup(net, one_is_null, net.structure()); },
                         "fabric: setup(): an optimizer is null");
      WEFT_CHECK(!Fabric::of(net) && !net.fc1.weight.grad().defined(), "it is set up");
      const NamedTensors after = net.state_dict();
      WEFT_CHECK(dist::difference(after, before) == 0, "the model has changed");
      if (is_cut) {
        fabric.setup(net, all);
      } else {
        fabric.setup(net, whole);
      }
      const auto [x, labels] = rows_of(fabric, 0, -1);
      fabric.backward(ops::cross_entropy(net(x), labels));
      WEFT_CHECK(is_cut ? all.step() : whole.step(), "no step");
      return Result{};
    });
  }
}

namespace {

/// Two models in 16-mixed, whose rounds double the loss scale at each step.
struct Scaled {
  Scaled() {
    fabric.launch(nullptr);
    fabric.setup(a, of_a);
    fabric.setup(b, *of_b);
  }
  /// The last leaves b's step out, for which the change of the scale waits: by zero_grad(), or so
  /// that b's gradients stay. Returns the scale until then.
  double leave_b_out(bool drops = true) {
    {
      const auto round = fabric.accumulate({&a, &b});
      fabric.backward(ops::mean(a(x)) + ops::mean(b(x)));
    }
    const double scale = fabric.scaler().get_scale();
    const auto round = fabric.accumulate({&a, &b});
    if (drops) of_b->zero_grad();  // in the place of b's backward and step
    fabric.backward(ops::mean(a(x)));
    // Both are divided by the scale.
    CHECK(optim::clip_grad_norm(a.parameters(), 1.0) > 0);
    CHECK(optim::clip_grad_norm(b.parameters(), 1.0) > 0);
    CHECK(of_a.step());
    CHECK(fabric.scaler().get_scale() == scale);
    of_a.zero_grad();
    return scale;
  }

  Fabric fabric{{.precision = "16-mixed",
                 .numerics = {.loss_scale = {.init_scale = 64, .growth_interval = 1}},
                 .accumulate = 2}};
  Net a{4, false}, b{4, false};
  optim::SGD of_a{a.named_parameters(), {.lr = 0.1}};
  std::unique_ptr<optim::SGD> of_b =
      std::make_unique<optim::SGD>(b.named_parameters(), optim::SgdOptions{.lr = 0.1});
  const Tensor x = Tensor::full({4, 6}, 1);
};

}  // namespace

TEST_CASE("a step of rounds that is left out leaves no change of the loss scale behind") {
  Scaled s;
  for (int step = 0; step < 3; ++step) {
    INFO("step " << step);
    CHECK(s.leave_b_out() == 64 << step);
    CHECK(!s.b.fc1.weight.grad().defined());
  }
  // The loss takes the scale that has moved.
  const Tensor bias = s.a.head.bias;
  s.fabric.backward(ops::sum(s.a(s.x)));
  CHECK(s.fabric.scaler().get_scale() == 512);
  for (double g : bias.grad().to_vector()) CHECK(g == 4 * 512);
}

TEST_CASE("a step of rounds that is left out leaves nothing to a state that is saved or loaded") {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder ? folder : "/tmp") + "/scale.safetensors";
  Scaled s;
  const auto scale_of_next_pass = [&] {
    s.of_a.zero_grad();
    s.fabric.backward(ops::sum(s.a(s.x)));
    return s.a.head.bias.grad().to_vector()[0] / 4;
  };
  s.leave_b_out();
  s.fabric.save(path, {{"scaler", &s.fabric.scaler()}});
  CHECK(scale_of_next_pass() == 128);
  s.of_a.zero_grad();
  s.leave_b_out();
  s.fabric.load(path, {{"scaler", &s.fabric.scaler()}});
  CHECK(s.fabric.scaler().get_scale() == 128);
  CHECK(scale_of_next_pass() == 128);
}

TEST_CASE("a step of rounds that is left out leaves nothing to the next optimizer") {
  Fabric fabric({.accumulate = 2});
  fabric.launch(nullptr);
  Net net(4, false);
  auto first = std::make_unique<optim::SGD>(net.named_parameters(), optim::SgdOptions{.lr = 0.1});
  fabric.setup(net, *first);
  const Tensor x = Tensor::full({4, 6}, 1);
  for (int part : {0, 1}) {
    const auto round = fabric.accumulate(net);
    if (part == 0) fabric.backward(ops::sum(net(x)));
    first->zero_grad();
  }
  CHECK(!net.head.bias.grad().defined());
  first.reset();
  optim::SGD second(net.named_parameters(), {.lr = 0.1});
  fabric.setup_optimizer(second);
  fabric.backward(ops::sum(net(x)));
  for (double g : net.head.bias.grad().to_vector()) CHECK(g == 4);

  // The loss scale that waits for an optimizer does so while that is there.
  for (const bool drops : {false, true}) {
    INFO("drops: " << drops);
    Scaled s;
    s.leave_b_out(drops);
    s.of_b.reset();
    s.fabric.backward(ops::sum(s.a(s.x)));
    CHECK(s.fabric.scaler().get_scale() == 128);
    for (double g : s.a.head.bias.grad().to_vector()) CHECK(g == 4 * 128);
    CHECK(s.of_a.step());
  }
}

TEST_CASE("trap: a step of rounds is left out on all ranks or on none, whatever each has reached") {
  // The ranks that reach the optimizer's parameters in the first round and in the last.
  struct Case {
    std::vector<int> first, last;
    bool is_left_out;  // with zero_grad() in each round, and the step behind the last
  };
  const auto train = [](const FabricOptions& options, const Case& which, bool by_hand,
                        bool steps_behind) {
    return on_ranks(options, [&](Fabric& fabric) {
      Net net(4, false);
      const auto is_of_fc1 = [](const std::string& name) { return name.starts_with("fc1."); };
      optim::SGD optimizer(chosen(net, is_of_fc1), {.lr = 0.1});
      fabric.setup(net, optimizer);
      for (int part : {0, 1}) {
        auto round = by_hand ? fabric.no_backward_sync(net, part == 0) : fabric.accumulate(net);
        if (!by_hand) optimizer.zero_grad();
        const std::vector<int>& reach = part == 0 ? which.first : which.last;
        const auto [x, labels] = rows_of(fabric, 0, part);
        const Tensor logits =
            std::ranges::count(reach, fabric.rank()) > 0
                ? net(x)
                : fabric.forward(net, [&, x = ops::cast(x, DType::f64)] { return net.head(x); });
        fabric.backward(ops::cross_entropy(logits, labels) * (by_hand ? 0.5 : 1.0));
        if (steps_behind) round.reset();
        if (part == 1) optimizer.step();
      }
      return Result{dist::cloned(net.state_dict()), {}};
    });
  };
  for (const char* const name : {"ddp", "zero1", "zero2"}) {
    const FabricOptions options{.devices = 2, .strategy = {.name = name}};
    for (const Case& which : {Case{{0, 1}, {0}, false}, {{0}, {1}, false}, {{0}, {}, true}}) {
      INFO(name << ", " << which.first.size() << " and " << which.last.size());
      const std::vector<Result> by_hand = train(options, which, true, false);
      check_same(train(options, which, false, false), by_hand[0]);
      const std::vector<Result> behind = train(options, which, false, true);
      if (!which.is_left_out) check_same(behind, by_hand[0]);
      check_same(behind, behind[0]);
    }
  }
}

TEST_CASE("gradients that wait for further rounds follow the loss scale") {
  // The critic's steps double the scale while the maker's gradients add up.
  const auto weights = [](const std::string& strategy, bool scale_is_fixed) {
    std::vector<double> all;
    const auto run = [&](const dist::CommunicatorPtr& world) {
      Fabric fabric({.devices = world ? 2 : 1,
                     .precision = "16-mixed",
                     .strategy = {.name = strategy},
                     .numerics = {.loss_scale = {.init_scale = 64, .growth_interval = 1},
                                  .loss_scale_is_fixed = scale_is_fixed},
                     .accumulate = 2});
      fabric.launch(world);
      fabric.seed_everything(1);
      Net maker(4, false), critic(4, false);
      optim::SGD of_maker(maker.named_parameters(), {.lr = 0.1});
      optim::SGD of_critic(critic.named_parameters(), {.lr = 0.1});
      fabric.setup(maker, of_maker);
      fabric.setup(critic, of_critic);
      for (int step = 0; step < 2; ++step) {
        for (int part : {0, 1}) {
          const auto round = fabric.accumulate(maker);
          const auto [x, labels] = rows_of(fabric, step, part);
          fabric.backward(ops::cross_entropy(maker(x), labels));
          fabric.backward(ops::cross_entropy(critic(x), labels));
          WEFT_CHECK(of_critic.step(), "the critic's step in round {}", part);
          WEFT_CHECK(of_maker.step() == (part == 1), "the maker's step in round {}", part);
          of_critic.zero_grad();
          of_maker.zero_grad();
        }
      }
      const double expected = scale_is_fixed ? 64 : 64 * 64;
      WEFT_CHECK(fabric.scaler().get_scale() == expected, "the scale is {}",
                 fabric.scaler().get_scale());
      const NamedTensors state = maker.state_dict();
      if (!fabric.is_main()) return;
      for (const auto& [name, tensor] : state) {
        for (double v : tensor.to_vector()) all.push_back(v);
      }
    };
    if (strategy == "single") {
      run(nullptr);
    } else {
      dist::run_ranks(2, [&](dist::Communicator& c) { run({&c, [](dist::Communicator*) {}}); });
    }
    return all;
  };
  for (const std::string strategy : {"single", "ddp", "fsdp", "zero1", "zero2"}) {
    INFO(strategy);
    const std::vector<double> grown = weights(strategy, false), fixed = weights(strategy, true);
    REQUIRE(grown.size() == fixed.size());
    for (size_t i = 0; i < grown.size(); ++i) CHECK(grown[i] == Approx(fixed[i]).margin(1e-6));
  }
}

TEST_CASE("what accumulate() cannot do throws") {
  Fabric fabric({.accumulate = 2});
  fabric.launch(nullptr);
  Net a, b;
  optim::SGD of_a(a.named_parameters(), {.lr = 0.1}), of_b(b.named_parameters(), {.lr = 0.1});
  fabric.setup(a, of_a);
  fabric.setup(b, of_b);
  const std::vector<nn::Module*> both = {&a, &b}, none, null = {nullptr};
  const Tensor x = Tensor::full({4, 6}, 1);
  CHECK_THROWS_WITH(fabric.accumulate(none), Contains("accumulate() of no model"));
  CHECK_THROWS_WITH(fabric.accumulate(null), Contains("a model is null"));
  {
    const auto round = fabric.accumulate(a);
    CHECK_THROWS_WITH(fabric.accumulate(b), Contains("one call takes several models"));
    Tensors all = a.parameters();
    for (const Tensor& p : b.parameters()) all.push_back(p);
    CHECK_THROWS_WITH(optim::clip_grad_norm(all, 1.0), Contains("clip them apart"));
    CHECK(optim::clip_grad_norm(a.parameters(), 1.0) == 0);
    CHECK_THROWS_WITH(backward(ops::mean(a(x))), Contains("call fabric.backward(loss)"));
    CHECK_NOTHROW(backward(ops::mean(b(x))));
    a.zero_grad();
    CHECK(of_b.step());
  }
  CHECK_NOTHROW(backward(ops::mean(a(x))));
  CHECK_THROWS_WITH(fabric.accumulate(both), Contains("one has had 1 rounds and another 0"));
  // What was refused has begun nothing.
  CHECK(fabric.sync_gradients());
  CHECK(of_a.step());
}
