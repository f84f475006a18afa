#include "models/gpt.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/random.h"
#include "core/philox.h"
#include "kernels/gemm/matmul_numerics.h"
#include "models/generate.h"
#include "nn/loss.h"
#include "nn/meta.h"

namespace weft::models {
namespace {

using Catch::Matchers::Contains;

/// Two layers, each option of Llama's, heads in groups.
GptConfig small_llama() {
  return {.vocabulary = 23,
          .context = 20,
          .width = 16,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .hidden = 24,
          .tied_head = false};
}

/// Two layers, each option of GPT-2's.
GptConfig small_gpt2() {
  GptConfig config = GptConfig::gpt2();
  config.vocabulary = 23;
  config.context = 20;
  config.width = 16;
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.hidden = 64;
  config.dropout = 0;
  return config;
}

/// Random in every parameter: zeros and ones would hide a swapped pair.
void randomise(Gpt& model) {
  const NoGrad guard;
  for (auto& [name, parameter] : model.named_parameters()) {
    ops::copy_(parameter, ops::randn(parameter.shape(), parameter.dtype()) * 0.3 + 0.1);
  }
}

std::vector<int64_t> some_tokens(int64_t count, int64_t vocabulary) {
  Philox random(17);
  std::vector<int64_t> tokens(count);
  for (int64_t& token : tokens) token = static_cast<int64_t>(random.below(vocabulary));
  return tokens;
}

Tensor batch_of(const std::vector<int64_t>& tokens, int64_t batch = 1) {
  return Tensor::from(tokens, {batch, static_cast<int64_t>(tokens.size()) / batch});
}

double largest(const Tensor& x) { return ops::max(ops::abs(x)).item(); }
double spread(const Tensor& x) { return std::sqrt(ops::mean(ops::square(x)).item()); }

TEST_CASE("gpt2 has the parameters of its published file") {
  const nn::MetaScope no_memory;
  const Gpt model(GptConfig::gpt2());
  CHECK(model.num_parameters() == 124'439'808);
  const NamedTensors state = model.state_dict();
  CHECK(state.size() == 148);
  const std::pair<const char*, Shape> first[] = {{"wte.weight", {50257, 768}},
                                                 {"wpe.weight", {1024, 768}},
                                                 {"h.0.ln_1.weight", {768}},
                                                 {"h.0.ln_1.bias", {768}},
                                                 {"h.0.attn.c_attn.weight", {2304, 768}},
                                                 {"h.0.attn.c_attn.bias", {2304}},
                                                 {"h.0.attn.c_proj.weight", {768, 768}},
                                                 {"h.0.attn.c_proj.bias", {768}},
                                                 {"h.0.ln_2.weight", {768}},
                                                 {"h.0.ln_2.bias", {768}},
                                                 {"h.0.mlp.c_fc.weight", {3072, 768}},
                                                 {"h.0.mlp.c_fc.bias", {3072}},
                                                 {"h.0.mlp.c_proj.weight", {768, 3072}},
                                                 {"h.0.mlp.c_proj.bias", {768}},
                                                 {"h.1.ln_1.weight", {768}}};
  for (size_t i = 0; i < std::size(first); ++i) {
    CHECK(state[i].first == first[i].first);
    CHECK(state[i].second.shape() == first[i].second);
  }
  CHECK(state.back().first == "ln_f.bias");
}

TEST_CASE("the weights begin as GPT-2's") {
  manual_seed(3);
  GptConfig config = small_llama();
  config.width = 128, config.hidden = 256, config.biases = true;
  const Gpt model(config);
  // Of n samples the deviation is known to 1 / sqrt(2 n): n is 8,192 and more, 5% six times that.
  for (const auto& [name, parameter] : model.named_parameters()) {
    CAPTURE(name);
    if (parameter.dim() == 2 && parameter.numel() > 8000) {
      const double expected = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(4.0) : 0.02;
      CHECK(spread(parameter) == Approx(expected).epsilon(0.05));
    } else if (name.ends_with("bias")) {
      CHECK(largest(parameter) == 0);
    }
  }
}

TEST_CASE("gradients flow through every part of a gpt") {
  for (GptConfig config : {small_llama(), small_gpt2()}) {
    manual_seed(5);
    config.vocabulary = 5, config.width = 8, config.hidden = 6, config.layers = 1;
    config.heads = 2, config.kv_heads = config.norm == GptNorm::kRms ? 1 : 2;
    config.context = 4;
    Gpt model(config);
    model.to(DType::f64);
    randomise(model);
    const Tensor tokens = batch_of(some_tokens(8, 5), 2);
    CHECK_NOTHROW(gradcheck([&](const Tensors&) { return model(tokens); }, model.parameters()));
    model.zero_grad();
    backward(
        nn::cross_entropy(ops::flatten(model(tokens), 0, 1), Tensor::from(some_tokens(8, 5), {8})));
    for (const auto& [name, parameter] : model.named_parameters()) {
      CAPTURE(name);
      REQUIRE(parameter.grad().defined());
      CHECK(largest(parameter.grad()) > 0);
    }
  }
}

TEST_CASE("activations computed again give the same bits, dropout included") {
  const Tensor tokens = batch_of(some_tokens(32, 256), 2);
  const auto gradients = [&](bool again) {
    manual_seed(5);
    Gpt model({.context = 16, .layers = 2, .dropout = 0.1, .checkpoint_activations = again});
    backward(ops::mean(ops::square(model(tokens))));
    Tensors all;
    for (const Tensor& parameter : model.parameters()) all.push_back(parameter.grad());
    return all;
  };
  const Tensors kept = gradients(false), computed = gradients(true);
  REQUIRE(kept.size() == computed.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    CHECK(largest(kept[i] - computed[i]) == 0);
  }
}

TEST_CASE("a token sees itself and what came before, bit for bit") {
  for (const GptConfig& config : {small_llama(), small_gpt2()}) {
    manual_seed(7);
    Gpt model(config);
    randomise(model);
    const NoGrad guard;
    std::vector<int64_t> tokens = some_tokens(12, config.vocabulary);
    const Tensor before = model(batch_of(tokens));
    tokens[8] = (tokens[8] + 1) % config.vocabulary;
    const Tensor after = model(batch_of(tokens));
    const auto rows = [](const Tensor& logits, int64_t begin, int64_t end) {
      return ops::slice(logits, 1, begin, end).to_vector();
    };
    CHECK(rows(before, 0, 8) == rows(after, 0, 8));
    for (int64_t i = 8; i < 12; ++i) CHECK(rows(before, i, i + 1) != rows(after, i, i + 1));
  }
}

/// How far the logits of tokens taken in steps of given sizes lie from those of all at once, in
/// units of the largest.
double cache_distance(Gpt& model, const Tensor& tokens,
                      const std::vector<std::vector<int64_t>>& all_steps) {
  const NoGrad guard;
  const Tensor whole = model(tokens);
  double distance = 0;
  for (const std::vector<int64_t>& steps : all_steps) {
    KvCache cache = model.make_cache(tokens.size(0));
    Tensors parts;
    for (const int64_t step : steps) {
      parts.push_back(model.forward(ops::narrow(tokens, 1, cache.length, step), cache));
    }
    CHECK(cache.length == tokens.size(1));
    distance = std::max(distance, largest(ops::sub(ops::cat(parts, 1), whole)));
  }
  return distance / largest(whole);
}

TEST_CASE("with a cache, in steps of any size, the logits are the whole forward's") {
  for (GptConfig config : {small_llama(), small_gpt2()}) {
    manual_seed(11);
    Gpt model(config);
    randomise(model);
    const Tensor tokens = batch_of(some_tokens(2 * 18, config.vocabulary), 2);
    const std::vector<int64_t> single(18, 1);
    for (const DType dtype : {DType::f32, DType::f64}) {
      model.to(dtype);
      // Only the order of sums may differ, with the number of rows. Along a path to a logit lie
      // products of inner sizes 16, 16 and 64 at most in each layer, attention's 4 to 18, and 16 in
      // the head: some 256 roundings. A wrong position or mask moves these logits by more than
      // 1e-3.
      CHECK(cache_distance(model, tokens, {single, {7, 1, 1, 1, 8}, {18}, {1, 17}}) <=
            256 * unit_roundoff(dtype));
    }
    // Exact sums have no order: the same bits. They are there for heads with their own keys.
    config.kv_heads = config.heads;
    Gpt equal(config);
    randomise(equal);
    const kernels::MatmulScope exact({.accumulation = kernels::Accumulation::kExact});
    std::vector<int64_t> prompt_first(12, 1);
    prompt_first[0] = 7;
    CHECK(cache_distance(equal, tokens, {single, prompt_first}) == 0);
  }
}

TEST_CASE("inside an Autocast the logits are the same but for bf16's roundings") {
  for (const GptConfig& config : {small_llama(), small_gpt2()}) {
    manual_seed(12);
    Gpt model(config);
    randomise(model);
    const Tensor tokens = batch_of(some_tokens(2 * 18, config.vocabulary), 2);
    const NoGrad guard;
    const Tensor truth = model(tokens);
    const Autocast autocast(DType::bf16);
    const Tensor narrow = ops::cast(model(tokens), DType::f32);
    // A path to a logit has some ten operands rounded at 2^-9 in each layer; errors of random sign
    // add up as roots.
    CHECK(largest(ops::sub(narrow, truth)) <= 16 * 0x1p-9 * largest(truth));
    CHECK(largest(ops::sub(narrow, truth)) > 0);
  }
}

TEST_CASE("greedy tokens are the most probable ones of the whole forward") {
  for (const GptConfig& config : {small_llama(), small_gpt2()}) {
    manual_seed(13);
    Gpt model(config);
    randomise(model);
    std::vector<int64_t> tokens = some_tokens(3, config.vocabulary);
    const std::vector<int64_t> made =
        generate(model, tokens, {.max_new_tokens = 17, .temperature = 0});
    const NoGrad guard;
    for (const int64_t token : made) {
      const Tensor last = ops::select(ops::select(model(batch_of(tokens)), 0, 0), 0, -1);
      CHECK(ops::argmax(last, 0).item() == token);
      tokens.push_back(token);
    }
    CHECK(tokens.size() == 20);
  }
}

TEST_CASE("what is generated depends on the seed alone, and dropout rests meanwhile") {
  manual_seed(17);
  GptConfig config = small_llama();
  config.dropout = 0.5;
  Gpt model(config);
  randomise(model);
  const std::vector<int64_t> prompt = {1, 2, 3};
  const auto make = [&](GenerateOptions options) {
    options.max_new_tokens = 15;
    return generate(model, prompt, options);
  };
  const std::vector<int64_t> first = make({.seed = 1});
  CHECK(model.is_training());
  CHECK(make({.seed = 1}) == first);
  CHECK(make({.seed = 2}) != first);
  model.eval();
  CHECK(make({.seed = 1}) == first);
  CHECK_FALSE(model.is_training());
  CHECK(make({.top_k = 1}) == make({.temperature = 0}));
  CHECK(make({.top_p = 1e-6}) == make({.temperature = 0}));
}

TEST_CASE("tokens are drawn with the probabilities that the options leave") {
  const std::vector<double> logits = {std::log(1.0), std::log(4.0), std::log(2.0), std::log(1.0)};
  const auto probabilities = [&](const GenerateOptions& options) {
    return token_probabilities(logits, options);
  };
  const auto is = [](const std::vector<double>& found, const std::vector<double>& expected) {
    REQUIRE(found.size() == expected.size());
    // Exponentials and logarithms of relative error below 2 u each, and five sums and divisions.
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK(std::abs(found[i] - expected[i]) <= 16 * 0x1p-53 * expected[i]);
    }
  };
  is(probabilities({}), {1.0 / 8, 4.0 / 8, 2.0 / 8, 1.0 / 8});
  is(probabilities({.temperature = 0.5}), {1.0 / 22, 16.0 / 22, 4.0 / 22, 1.0 / 22});
  is(probabilities({.temperature = 0}), {0, 1, 0, 0});
  is(probabilities({.top_k = 2}), {0, 4.0 / 6, 2.0 / 6, 0});
  is(probabilities({.top_k = 3}), {1.0 / 7, 4.0 / 7, 2.0 / 7, 0});  // of equals the first
  is(probabilities({.top_k = 99}), probabilities({}));
  is(probabilities({.top_p = 0.3}), {0, 1, 0, 0});
  is(probabilities({.top_p = 0.6}), {0, 4.0 / 6, 2.0 / 6, 0});
  is(probabilities({.top_k = 2, .top_p = 0.6}), {0, 1, 0, 0});  // of what top_k left
  CHECK_THROWS_WITH(token_probabilities({0, NAN}, {}), "generate: the logit of token 1 is nan");
  CHECK_THROWS_WITH(token_probabilities({}, {}), "generate: no logits");
}

TEST_CASE("the segments of a gpt are its forward, and a tied head reads the embedding's weight") {
  for (const GptConfig& config : {small_llama(), small_gpt2()}) {
    manual_seed(19);
    Gpt model(config);
    const NoGrad guard;
    const Tensor tokens = batch_of(some_tokens(10, 23), 2);
    const nn::ModelStructure structure = model.structure();
    Tensor x = tokens;
    for (const nn::Segment& segment : structure.segments) x = segment.forward(x);
    CHECK(x.to_vector() == model(tokens).to_vector());
    for (const auto& [name, parameter] : model.named_parameters()) {
      CAPTURE(name);
      CHECK(std::ranges::count_if(structure.segments, [&, &n = name](const nn::Segment& segment) {
              return nn::owns(segment, n);
            }) == 1);
    }
    CHECK(structure.segments.size() == 4);
    CHECK(structure.segments.back().reads ==
          (config.tied_head ? std::vector<std::string>{"wte.weight"} : std::vector<std::string>()));
    CHECK(structure.head == model.lm_head);
    CHECK(structure.replica()->num_parameters() == model.num_parameters());
    REQUIRE(structure.linears.size() == 4);
    CHECK(structure.linears[0].kv_heads == config.kv_heads);
    CHECK(structure.linears[1].columns.size() == (model.wpe ? 1 : 2));
    CHECK(structure.tokens.count == config.context);
  }
  Gpt gpt2(small_gpt2());
  CHECK(gpt2.structure().embeddings == std::vector<std::string>{"wte.weight", "wpe.weight"});
}

TEST_CASE("what does not fit a gpt is named") {
  manual_seed(23);
  Gpt model(small_llama());
  CHECK_THROWS_WITH(model(Tensor::zeros({2, 3})),
                    Contains("Gpt: expected tokens i64 [batch, sequence], got f32 [2, 3]"));
  CHECK_THROWS_WITH(model(batch_of({1, 22, 3, 23}, 2)),
                    "Gpt: the token 23 at [1, 1] is outside the vocabulary of 23");
  CHECK_THROWS_WITH(model(batch_of({-1})), Contains("the token -1 at [0, 0]"));
  CHECK_THROWS_WITH(model(batch_of(some_tokens(21, 23))),
                    "Gpt: 21 tokens exceed the context of 20");
  KvCache cache = model.make_cache();
  model.forward(batch_of(some_tokens(15, 23)), cache);
  CHECK_THROWS_WITH(model.forward(batch_of(some_tokens(6, 23)), cache),
                    "Gpt: 21 tokens exceed the context of 20");
  CHECK_THROWS_WITH(model.forward(batch_of({1, 2}, 2), cache), Contains("Gpt: the cache"));

  CHECK_THROWS_WITH(generate(model, {}), "generate: the prompt is empty");
  CHECK_THROWS_WITH(generate(model, some_tokens(21, 23)),
                    "generate: the prompt of 21 tokens exceeds the context of 20");
  CHECK_THROWS_WITH(generate(model, {1, 2}, {.max_new_tokens = 19}),
                    "generate: a prompt of 2 tokens and 19 new ones exceed the context of 20");
  CHECK_THROWS_WITH(generate(model, {23}, {.max_new_tokens = 1}),
                    Contains("the token 23 at [0, 0] is outside the vocabulary of 23"));
  const std::pair<GenerateOptions, const char*> wrong[] = {
      {{.max_new_tokens = -1}, "max_new_tokens must not be negative, got -1"},
      {{.temperature = -1}, "temperature must be finite and not negative, got -1"},
      {{.top_k = -2}, "top_k must not be negative, got -2"},
      {{.top_p = 0}, "top_p must lie in (0, 1], got 0"},
      {{.top_p = 1.5}, "top_p must lie in (0, 1], got 1.5"}};
  for (const auto& [options, message] : wrong) {
    CHECK_THROWS_WITH(generate(model, {1}, options), std::string("generate: ") + message);
  }
  CHECK(generate(model, {1}, {.max_new_tokens = 0}).empty());

  const auto refuses = [](auto change, const std::string& message) {
    GptConfig config = small_llama();
    change(config);
    CHECK_THROWS_WITH(Gpt(config), "Gpt: " + message);
  };
  refuses([](GptConfig& c) { c.layers = 0; }, "layers must be positive, got 0");
  refuses([](GptConfig& c) { c.heads = 3; }, "width 16 is not a multiple of 3 heads");
  refuses([](GptConfig& c) { c.kv_heads = 3; }, "4 heads are not a multiple of 3 kv_heads");
  refuses(
      [](GptConfig& c) {
        c.heads = 16;
        c.kv_heads = 1;
      },
      "rotary positions need heads of an even width, got 1");
  refuses([](GptConfig& c) { c.dropout = 1; }, "dropout must lie in [0, 1), got 1");
}

}  // namespace
}  // namespace weft::models
