// Language models whose layers are cut over ranks, against the whole ones.
#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/random.h"
#include "core/philox.h"
#include "dist/comm/in_process.h"
#include "dist/model_parallel/pipeline.h"
#include "dist/model_parallel/tensor_parallel.h"
#include "dist/plan/model_layout.h"
#include "dist/strategy/strategy.h"
#include "dist/strategy/strategy_kind.h"
#include "dist/strategy/testing/oracle.h"
#include "models/generate.h"
#include "models/gpt.h"
#include "nn/loss.h"
#include "optim/clip.h"
#include "optim/optimizer_state.h"

namespace weft::models {
namespace {

using Catch::Matchers::Contains;
using dist::Communicator;
using dist::difference;

constexpr int64_t kTokens = 10, kVocabulary = 23;

/// Llama's form: 8 heads in groups of two, SwiGLU, a head of its own.
GptConfig grouped() {
  return {.vocabulary = kVocabulary,
          .context = 16,
          .width = 32,
          .layers = 2,
          .heads = 8,
          .kv_heads = 4,
          .hidden = 24,
          .tied_head = false};
}

/// GPT-2's form: fused attention, biases, a plain MLP, a tied head.
GptConfig gpt2() {
  GptConfig config = GptConfig::gpt2();
  config.vocabulary = kVocabulary;
  config.context = 16;
  config.width = 32;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.hidden = 64;
  config.dropout = 0;
  return config;
}

/// The same weights wherever it is called, none of them zero or one.
std::unique_ptr<Gpt> make_model(const GptConfig& config, uint64_t seed = 3) {
  manual_seed(seed);
  auto model = std::make_unique<Gpt>(config);
  model->to(DType::f64);
  const NoGrad guard;
  for (auto& [name, parameter] : model->named_parameters()) {
    ops::copy_(parameter, ops::randn(parameter.shape(), parameter.dtype()) * 0.2 + 0.05);
  }
  return model;
}

struct Text {
  Tensor tokens, next;
};
Text batch_of_step(int step, int64_t rows = 4) {
  Philox random(7, static_cast<uint64_t>(step));
  std::vector<int64_t> tokens(rows * kTokens), next(rows * kTokens);
  for (int64_t& token : tokens) token = static_cast<int64_t>(random.below(kVocabulary));
  for (int64_t& token : next) token = static_cast<int64_t>(random.below(kVocabulary));
  return {Tensor::from(tokens, {rows, kTokens}), Tensor::from(next, {rows * kTokens})};
}

/// What so many steps on the same batches leave: on the first rank the whole state.
struct Trained {
  std::vector<double> losses, norms;
  NamedTensors model;
  optim::OptimizerState optimizer;
};

Trained train(const GptConfig& config, const dist::StrategyOptions& options,
              const dist::CommunicatorPtr& world, int first_step, int steps,
              const Trained* from = nullptr) {
  // Weights of other ranks than the first are to be replaced.
  const auto model = make_model(config, 3 + (world ? world->rank() : 0));
  const auto strategy = dist::make_strategy(options, world);
  strategy->wrap(*model, model->structure());
  optim::AdamW optimizer(
      strategy->groups(optim::without_decay_of_vectors(model->named_parameters())),
      {.lr = 0.01, .weight_decay = 0.1});
  if (from) {
    strategy->load_model_state(*model, from->model);
    strategy->load_optimizer_state(optimizer, from->optimizer);
  }
  Trained result;
  for (int step = first_step; step < first_step + steps; ++step) {
    const Text text = batch_of_step(step);
    const int64_t rows = text.tokens.size(0), ranks = strategy->data_size(),
                  begin = rows / ranks * strategy->data_rank();
    const Tensor mine = ops::contiguous(ops::narrow(text.tokens, 0, begin, rows / ranks)),
                 next = ops::contiguous(
                     ops::narrow(text.next, 0, begin * kTokens, rows / ranks * kTokens));
    optimizer.zero_grad();
    double loss_sum = 0;
    strategy->run(*model, {.count = 1, .at = [&](int64_t) {
                             return dist::MicroBatch{mine, [&](const Tensor& logits) {
                                                       const Tensor loss =
                                                           strategy->cross_entropy(
                                                               ops::flatten(logits, 0, 1), next) /
                                                           static_cast<double>(ranks);
                                                       loss_sum = loss.item();
                                                       return loss;
                                                     }};
                           }});
    const Tensor sum = Tensor::scalar(strategy->counts() ? loss_sum : 0, DType::f64);
    if (world) world->all_reduce(sum).wait();
    result.losses.push_back(sum.item());
    result.norms.push_back(strategy->grad_norm(optimizer.parameters()));
    optimizer.step();
    strategy->after_step();
  }
  result.model = dist::cloned(strategy->model_state(*model));
  result.optimizer = strategy->optimizer_state(optimizer);
  result.optimizer.tensors = dist::cloned(result.optimizer.tensors);
  return result;
}

std::vector<Trained> train_ranks(const GptConfig& config, const dist::StrategyOptions& options,
                                 int ranks, int first_step, int steps,
                                 const Trained* from = nullptr) {
  std::vector<Trained> all(ranks);
  dist::run_ranks(ranks, [&](Communicator& c) {
    all[c.rank()] = train(config, options, {&c, [](Communicator*) {}}, first_step, steps, from);
  });
  return all;
}

NamedTensors sorted(NamedTensors tensors) {
  std::ranges::sort(tensors, {}, &NamedTensors::value_type::first);
  return tensors;
}

/// As dist/strategy/strategy_test.cc holds other models: to 1e-10.
void check_same(const std::vector<Trained>& ranks, const Trained& one) {
  for (const Trained& rank : ranks) {
    REQUIRE(rank.losses.size() == one.losses.size());
    for (size_t step = 0; step < one.losses.size(); ++step) {
      CHECK(std::abs(rank.losses[step] - one.losses[step]) < 1e-10);
      CHECK(std::abs(rank.norms[step] - one.norms[step]) < 1e-10);
    }
  }
  CHECK(difference(sorted(ranks[0].model), sorted(one.model)) < 1e-10);
  CHECK(difference(sorted(ranks[0].optimizer.tensors), sorted(one.optimizer.tensors)) < 1e-10);
}

dist::CommunicatorPtr borrowed(Communicator& c) {
  return {&c, [](Communicator*) {}};
}

/// Cuts all layers of a model, and deals out its tokens where asked.
void cut(dist::TensorParallel& parallel, nn::Module& model, bool is_dealt_out) {
  const nn::ModelStructure structure = model.structure();
  for (const nn::ParallelLinears& layers : dist::cut_layers_of(model, structure).linears) {
    parallel.cut(layers);
  }
  if (is_dealt_out) parallel.deal_out(structure.tokens);
}

TEST_CASE("a gpt cut over ranks has the logits and gradients of the whole one") {
  for (const GptConfig& config : {grouped(), gpt2()}) {
    const auto whole = make_model(config);
    const Text text = batch_of_step(0);
    const Tensor logits = (*whole)(text.tokens);
    backward(nn::cross_entropy(ops::flatten(logits, 0, 1), text.next));
    const NamedTensors expected = whole->named_parameters();
    for (const int ranks : {1, 2, 4}) {
      for (const bool is_dealt_out : {false, true}) {
        dist::run_ranks(ranks, [&](Communicator& c) {
          const auto model = make_model(config, 3 + c.rank());
          dist::TensorParallel parallel(*model, borrowed(c));
          cut(parallel, *model, is_dealt_out);
          const Tensor ours = (*model)(text.tokens);
          const double off = difference({{"logits", ours}}, {{"logits", logits}});
          WEFT_CHECK(off < 1e-12, "the logits differ by {}", off);
          backward(nn::cross_entropy(ops::flatten(ours, 0, 1), text.next));
          const NamedTensors parameters = model->named_parameters();
          int64_t kept = 0;
          for (size_t i = 0; i < parameters.size(); ++i) {
            const auto& [name, parameter] = parameters[i];
            const dist::Cut* const how = parallel.cut_of(name);
            const Tensor whole_gradient = expected[i].second.grad();
            const Tensor gradient = how ? dist::part_of(whole_gradient, *how, c) : whole_gradient;
            const double d = difference({{name, parameter.grad()}}, {{name, gradient}});
            WEFT_CHECK(d < 1e-12, "the gradient of {} differs by {}", name, d);
            if (how) kept += parameter.numel();
          }
          int64_t all = 0;
          for (const auto& [name, parameter] : expected) {
            if (parallel.cut_of(name)) all += parameter.numel();
          }
          WEFT_CHECK(kept * ranks == all, "{} of {} elements on each of {} ranks", kept, all,
                     ranks);
        });
      }
    }
  }
}

TEST_CASE("a gpt under tp and fsdp+tp trains as on one rank, and goes on from a whole state") {
  for (const GptConfig& config : {grouped(), gpt2()}) {
    const Trained one = train(config, {}, nullptr, 0, 4);
    const Trained half = train(config, {}, nullptr, 0, 2);
    struct Case {
      dist::StrategyOptions options;
      int ranks;
    };
    std::vector<Case> cases = {{{.name = "tp"}, 2},
                               {{.name = "tp"}, 4},
                               {{.name = "tp", .tensor_parallel = 2}, 4},
                               {{.name = "tp", .sequence_parallel = true}, 4},
                               {{.name = "fsdp+tp", .sequence_parallel = true}, 4}};
    if (!config.tied_head) {
      cases.push_back({{.name = "tp", .parallel_head = true}, 2});
      cases.push_back({{.name = "fsdp+tp", .sequence_parallel = true, .parallel_head = true}, 4});
    }
    for (const auto& [options, ranks] : cases) {
      INFO(options.name << " on " << ranks << (options.sequence_parallel ? ", dealt out" : "")
                        << (options.parallel_head ? ", with its head" : "")
                        << (config.tied_head ? ", GPT-2's form" : ""));
      check_same(train_ranks(config, options, ranks, 0, 4), one);
      // From one rank's state to many, and from theirs to one.
      std::vector<Trained> resumed = train_ranks(config, options, ranks, 2, 2, &half);
      Trained last_half = one;
      last_half.losses.erase(last_half.losses.begin(), last_half.losses.begin() + 2);
      last_half.norms.erase(last_half.norms.begin(), last_half.norms.begin() + 2);
      check_same(resumed, last_half);
      const std::vector<Trained> started = train_ranks(config, options, ranks, 0, 2);
      check_same({train(config, {}, nullptr, 2, 2, &started[0])}, last_half);
    }
  }
}

TEST_CASE("a cut gpt generates what the whole one does, from a cache of its own heads") {
  for (const GptConfig& config : {grouped(), gpt2()}) {
    const std::vector<int64_t> prompt = {4, 0, 17, 9};
    const GenerateOptions options = {.max_new_tokens = 10, .temperature = 0};
    const std::vector<int64_t> expected = generate(*make_model(config), prompt, options);
    for (const bool is_dealt_out : {false, true}) {
      dist::run_ranks(2, [&](Communicator& c) {
        const auto model = make_model(config);
        dist::TensorParallel parallel(*model, borrowed(c));
        cut(parallel, *model, is_dealt_out);
        WEFT_CHECK(model->make_cache().layers[0].keys.size(1) == config.kv_heads / 2,
                   "a cache of {} heads", model->make_cache().layers[0].keys.size(1));
        WEFT_CHECK(generate(*model, prompt, options) == expected, "another text");
      });
    }
  }
}

TEST_CASE("attention's dropout differs from rank to rank, and what follows is the same") {
  GptConfig config = grouped();
  config.dropout = 0.3;
  for (const bool is_dealt_out : {false, true}) {
    dist::run_ranks(2, [&](Communicator& c) {
      const auto model = make_model(config);
      dist::TensorParallel parallel(*model, borrowed(c));
      cut(parallel, *model, is_dealt_out);
      const Tensor logits = detach((*model)(batch_of_step(0).tokens));
      const Tensor place =
          Tensor::from(std::vector<int64_t>{static_cast<int64_t>(generator().offset),
                                            static_cast<int64_t>(generator().stream)},
                       {2});
      for (const Tensor& x : {ops::cast(logits, DType::f64), ops::cast(place, DType::f64)}) {
        const Tensor largest = ops::clone(x), smallest = ops::clone(x);
        c.all_reduce(largest, dist::ReduceOp::kMax).wait();
        c.all_reduce(smallest, dist::ReduceOp::kMin).wait();
        WEFT_CHECK(ops::sum(ops::abs(largest - smallest)).item() == 0, "the ranks differ");
      }
    });
  }
}

TEST_CASE("gates and what they gate travel together: as many collectives as a plain MLP") {
  GptConfig gated = grouped();
  GptConfig plain = gated;
  plain.activation = GptActivation::kGeluTanh;
  const auto sent = [](const GptConfig& config, bool is_dealt_out) {
    int64_t bytes = 0;
    dist::run_ranks(2, [&](Communicator& c) {
      const auto model = make_model(config);
      dist::TensorParallel parallel(*model, borrowed(c));
      cut(parallel, *model, is_dealt_out);
      const Text text = batch_of_step(0);
      const int64_t before = c.family_traffic().sent;
      backward(nn::cross_entropy(ops::flatten((*model)(text.tokens), 0, 1), text.next));
      if (c.rank() == 0) bytes = c.family_traffic().sent - before;
    });
    return bytes;
  };
  for (const bool is_dealt_out : {false, true}) {
    CHECK(sent(gated, is_dealt_out) > 0);
    CHECK(sent(gated, is_dealt_out) == sent(plain, is_dealt_out));
  }
}

TEST_CASE("what of a gpt cannot be cut is refused by name") {
  const auto fails = [](const GptConfig& config, const dist::StrategyOptions& options, int ranks,
                        const std::string& message) {
    CHECK_THROWS_WITH(train_ranks(config, options, ranks, 0, 1), Contains(message));
  };
  fails(grouped(), {.name = "tp"}, 8,
        "tensor parallelism: 8 ranks do not divide 8 heads, which share 4 of keys and values, of "
        "weft::models::Gpt's \"h.0.attn.c_attn.weight\"");
  fails(gpt2(), {.name = "tp"}, 8,
        "8 ranks do not divide 4 heads of weft::models::Gpt's \"h.0.attn.c_attn.weight\"");
  GptConfig odd = grouped();
  odd.hidden = 23;
  fails(odd, {.name = "tp"}, 2,
        "2 ranks do not divide the 23 features of weft::models::Gpt's \"h.0.mlp.c_fc.weight\"");
  fails(gpt2(), {.name = "tp", .parallel_head = true}, 2,
        "names no head; one that is tied to an embedding stays whole");
  fails(gpt2(), {.name = "pipeline"}, 2,
        "pipeline: the segment head reads \"wte.weight\" of another, to which it is tied");

  dist::run_ranks(2, [](Communicator& c) {
    const auto model = make_model(grouped());
    dist::TensorParallel parallel(*model, borrowed(c));
    GptMlp& mlp = dynamic_cast<GptBlock&>(model->h[0]).mlp;
    parallel.cut({.columns = {&mlp.c_fc, mlp.c_gate}, .rows = &mlp.c_proj});
    const NoGrad guard;
    const Tensor x = ops::randn({2, 3, 32}, DType::f64), y = ops::clone(x);
    dist::expect_error([&] { mlp.c_proj(mlp.c_fc(x) * (*mlp.c_gate)(y)); },
                       "were not called on one tensor");
  });
  // Features that are no heads, and layers that do not fit.
  dist::run_ranks(2, [](Communicator& c) {
    nn::Sequential net;
    auto& first = net.append<nn::Linear>(4, 10);
    auto& other = net.append<nn::Linear>(4, 8);
    auto& last = net.append<nn::Linear>(4, 4);
    dist::TensorParallel parallel(net, borrowed(c));
    dist::expect_error(
        [&] { parallel.cut({.columns = {&first}, .rows = &last, .heads = 4, .kv_heads = 2}); },
        "makes 10 features, expected those of 4 + 2 x 2 heads");
    dist::expect_error(
        [&] {
          parallel.cut({.columns = {&first, &other}, .rows = &last});
        },
        "makes 10 and 8 features of one tensor");
    dist::expect_error([&] { parallel.cut({}); }, "a group of layers has no columns");
  });
}

TEST_CASE("the layout of a cut gpt counts its parts, its head's rows and what is summed") {
  Gpt model(grouped());
  const nn::ModelStructure structure = model.structure();
  const auto sharing = [](const dist::StrategyOptions& options, int ranks) {
    return dist::sharing_of(options, ranks);
  };
  const dist::ModelLayout mine =
      dist::layout_of(model, structure,
                      sharing({.name = "tp", .sequence_parallel = true, .parallel_head = true}, 2));
  // q of 8 heads, k and v of 4, what puts them together, and an MLP of three.
  const int64_t cut = 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 24 * 32), norms = 5 * 32;
  CHECK(mine.parameters == cut / 2 + norms + kVocabulary * 32 + 12 * 32);
  CHECK(mine.cut_layers == 4);
  CHECK(mine.width == 32);
  CHECK(mine.tokens == 16);
  CHECK(mine.head_rows == 16);
  CHECK(mine.summed == std::vector<int64_t>(5, 32));
  CHECK_THROWS_WITH(dist::layout_of(model, structure, sharing({.name = "tp"}, 8)),
                    Contains("8 ranks do not divide 8 heads, which share 4 of keys and values, of "
                             "weft::models::Gpt"));
}

}  // namespace
}  // namespace weft::models
