#include "models/gpt.h"

#include <cmath>

#include "autograd/checkpoint.h"
#include "core/view.h"
#include "nn/init.h"
#include "nn/rms_norm.h"

namespace weft::models {
namespace {

void check(const GptConfig& c) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocabulary", c.vocabulary}, {"context", c.context}, {"width", c.width},
      {"layers", c.layers},         {"heads", c.heads},     {"kv_heads", c.kv_heads},
      {"hidden", c.hidden}};
  for (const auto& [name, size] : sizes) {
    WEFT_CHECK(size > 0, "Gpt: {} must be positive, got {}", name, size);
  }
  WEFT_CHECK(c.width % c.heads == 0, "Gpt: width {} is not a multiple of {} heads", c.width,
             c.heads);
  WEFT_CHECK(c.heads % c.kv_heads == 0, "Gpt: {} heads are not a multiple of {} kv_heads", c.heads,
             c.kv_heads);
  WEFT_CHECK(c.positions == GptPositions::kLearned || c.width / c.heads % 2 == 0,
             "Gpt: rotary positions need heads of an even width, got {}", c.width / c.heads);
  WEFT_CHECK(c.dropout >= 0 && c.dropout < 1, "Gpt: dropout must lie in [0, 1), got {}", c.dropout);
  WEFT_CHECK(c.eps >= 0, "Gpt: eps must not be negative, got {}", c.eps);
}

const GptConfig& checked(const GptConfig& config) {
  check(config);
  return config;
}

/// [B, T, n D] as [B, n, T, D].
Tensor split_heads(const Tensor& x, int64_t heads) {
  return ops::transpose(ops::reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}

}  // namespace

CausalAttention::CausalAttention(const GptConfig& config)
    : c_attn(add<nn::Linear>("c_attn", config.width,
                             config.width + 2 * config.kv_heads * (config.width / config.heads),
                             config.biases)),
      c_proj(add<nn::Linear>("c_proj", config.width, config.width, config.biases)),
      heads(config.heads),
      kv_heads(config.kv_heads),
      dropout(config.dropout),
      head_width_(config.width / config.heads) {
  if (config.positions == GptPositions::kRotary) {
    rotary_.emplace(config.context, head_width_, config.rope_base);
  }
}

CausalAttention::Heads CausalAttention::heads_of(const Tensor& qkv, int64_t first) const {
  const int64_t kv = kv_heads_in(qkv.size(2)), q = kv * (heads / kv_heads);
  const Tensor all = split_heads(qkv, q + 2 * kv);
  Heads parts = {ops::narrow(all, 1, 0, q), ops::narrow(all, 1, q, kv),
                 ops::narrow(all, 1, q + kv, kv)};
  if (rotary_) {
    parts.q = rotary_->rotate(parts.q, first);
    parts.k = rotary_->rotate(parts.k, first);
  }
  return parts;
}

int64_t CausalAttention::kv_heads_in(int64_t features) const {
  return features / (head_width_ * (heads / kv_heads + 2));
}

KvCache::Layer CausalAttention::make_cache(int64_t batch, int64_t context) const {
  const Tensor& like = c_attn.weight;
  const Shape shape = {batch, kv_heads_in(like.size(0)), context, head_width_};
  return {Tensor::empty(shape, like.dtype(), like.device()),
          Tensor::empty(shape, like.dtype(), like.device())};
}

Tensor CausalAttention::output(const Tensor& attended) {
  const Tensor rows = ops::transpose(attended, 1, 2);  // [B, T, heads, W / heads]
  return c_proj(ops::flatten(rows, 2));
}

Tensor CausalAttention::forward(const Tensor& x) {
  const nn::AttentionOptions options = {.causal = true, .dropout = is_training() ? dropout : 0};
  const Tensor qkv = c_attn(x);
  if (!rotary_ && kv_heads == heads) {
    return c_proj(ops::self_attention(qkv, kv_heads_in(qkv.size(2)), options));
  }
  const auto [q, k, v] = heads_of(qkv, 0);
  return output(ops::attention(q, k, v, options));
}

Tensor CausalAttention::forward_cached(const Tensor& x, KvCache::Layer& cache, int64_t length) {
  const auto [q, k, v] = heads_of(c_attn(x), length);
  const int64_t tokens = q.size(2), seen = length + tokens;  // x may be a rank's part of them
  for (const auto& [rows, part] : {std::pair(cache.keys, k), std::pair(cache.values, v)}) {
    Tensor place = view::narrow(rows, 2, length, tokens);
    ops::copy_(place, part);
  }
  nn::AttentionOptions options;
  if (tokens > 1 && length == 0) options.causal = true;
  if (tokens > 1 && length > 0) {
    // The last query sees all keys, the one before it all but one.
    options.mask = ops::to(
        ops::le(ops::arange(0, seen), ops::unsqueeze(ops::arange(length, seen), 1)), q.device());
  }
  return output(ops::attention(q, view::narrow(cache.keys, 2, 0, seen),
                               view::narrow(cache.values, 2, 0, seen), options));
}

GptMlp::GptMlp(const GptConfig& config)
    : c_fc(add<nn::Linear>("c_fc", config.width, config.hidden, config.biases)),
      c_gate(config.activation == GptActivation::kSwiglu
                 ? &add<nn::Linear>("c_gate", config.width, config.hidden, config.biases)
                 : nullptr),
      c_proj(add<nn::Linear>("c_proj", config.hidden, config.width, config.biases)) {}

Tensor GptMlp::forward(const Tensor& x) {
  if (c_gate) return c_proj(ops::silu((*c_gate)(x)) * c_fc(x));
  return c_proj(ops::gelu(c_fc(x), ops::Gelu::kTanh));
}

nn::Module& GptPart::add_norm(std::string_view name, const GptConfig& config) {
  if (config.norm == GptNorm::kRms) return add<nn::RmsNorm>(name, config.width, config.eps);
  return add<nn::LayerNorm>(name, config.width, config.eps);
}

GptBlock::GptBlock(const GptConfig& config)
    : ln_1(add_norm("ln_1", config)),
      attn(add<CausalAttention>("attn", config)),
      ln_2(add_norm("ln_2", config)),
      mlp(add<GptMlp>("mlp", config)),
      dropout(add<nn::Dropout>("dropout", config.dropout)) {}

Tensor GptBlock::add_branches(const Tensor& x, const Tensor& attended) {
  const Tensor y = x + dropout(attended);
  return y + dropout(mlp(ln_2(y)));
}

Tensor GptBlock::forward(const Tensor& x) { return add_branches(x, attn(ln_1(x))); }

Tensor GptBlock::forward_cached(const Tensor& x, KvCache::Layer& cache, int64_t length) {
  return add_branches(x, attn.forward_cached(ln_1(x), cache, length));
}

Gpt::Gpt(const GptConfig& c)
    : config(checked(c)),
      wte(add<nn::Embedding>("wte", c.vocabulary, c.width)),
      wpe(c.positions == GptPositions::kLearned ? &add<nn::Embedding>("wpe", c.context, c.width)
                                                : nullptr),
      drop(add<nn::Dropout>("drop", c.dropout)),
      h(add<nn::Sequential>("h")),
      ln_f(add_norm("ln_f", c)),
      lm_head(nullptr) {
  for (int64_t i = 0; i < c.layers; ++i) {
    GptBlock* const block = blocks_.emplace_back(&h.append<GptBlock>(c));
    if (!c.checkpoint_activations) continue;
    block->set_stand_in([block](const Tensor& x) {
      return checkpoint([block](const Tensors& in) { return block->forward(in[0]); }, {x});
    });
  }
  if (!c.tied_head) lm_head = &add<nn::Linear>("lm_head", c.width, c.vocabulary, false);
  constexpr double kSpread = 0.02;
  for (auto& [name, parameter] : named_parameters()) {
    const bool is_matrix = parameter.dim() == 2;
    const bool ends_branch = name.ends_with("c_proj.weight");
    const double spread = ends_branch ? kSpread / std::sqrt(2.0 * c.layers) : kSpread;
    if (is_matrix) nn::init::normal(parameter, 0, spread);
    if (name.ends_with(".bias")) nn::init::zeros(parameter);
  }
}

void Gpt::check_tokens(const Tensor& tokens, int64_t seen) const {
  WEFT_CHECK(tokens.defined() && tokens.dim() == 2 && tokens.dtype() == DType::i64,
             "Gpt: expected tokens i64 [batch, sequence], got {}", tokens);
  WEFT_CHECK(seen + tokens.size(1) <= config.context, "Gpt: {} tokens exceed the context of {}",
             seen + tokens.size(1), config.context);
  if (tokens.device() != Device{}) return;  // there the lookup's kernel checks
  const Tensor list = ops::contiguous(tokens);
  for (int64_t i = 0; i < list.numel(); ++i) {
    const int64_t token = list.data<int64_t>()[i];
    WEFT_CHECK(token >= 0 && token < config.vocabulary,
               "Gpt: the token {} at [{}, {}] is outside the vocabulary of {}", token,
               i / list.size(1), i % list.size(1), config.vocabulary);
  }
}

Tensor Gpt::embed(const Tensor& tokens, int64_t first) {
  check_tokens(tokens, first);
  if (!wpe) return drop(wte(tokens));
  const Tensor positions = ops::arange(first, first + tokens.size(1));
  return drop(wte(tokens) + (*wpe)(ops::to(positions, tokens.device())));
}

Tensor Gpt::logits(const Tensor& x) {
  return lm_head ? (*lm_head)(ln_f(x)) : ops::linear(ln_f(x), wte.weight);
}

Tensor Gpt::forward(const Tensor& tokens) { return logits(h(embed(tokens, 0))); }

Tensor Gpt::forward(const Tensor& tokens, KvCache& cache) {
  const NoGrad guard;
  WEFT_CHECK(cache.layers.size() == blocks_.size() && tokens.dim() == 2 &&
                 cache.layers[0].keys.size(0) == tokens.size(0),
             "Gpt: the cache of {} layers is not one of {} layers for the tokens {}",
             cache.layers.size(), blocks_.size(), tokens);
  Tensor x = embed(tokens, cache.length);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->forward_cached(x, cache.layers[i], cache.length);
  }
  cache.length += tokens.size(1);
  return logits(x);
}

KvCache Gpt::make_cache(int64_t batch) const {
  WEFT_CHECK(batch > 0, "Gpt: a cache for {} sequences", batch);
  KvCache cache;
  for (const GptBlock* block : blocks_) {
    cache.layers.push_back(block->attn.make_cache(batch, config.context));
  }
  return cache;
}

nn::ModelStructure Gpt::structure() {
  nn::ModelStructure structure(nn::wrap_modules<GptBlock>());
  structure.embeddings = {"wte.weight"};
  if (wpe) structure.embeddings.push_back("wpe.weight");
  structure.replica = [config = config] { return std::make_unique<Gpt>(config); };
  structure.head = lm_head;
  for (GptBlock* block : blocks_) {
    CausalAttention& attn = block->attn;
    GptMlp& mlp = block->mlp;
    structure.linears.push_back({.columns = {&attn.c_attn},
                                 .rows = &attn.c_proj,
                                 .heads = attn.heads,
                                 .kv_heads = attn.kv_heads});
    structure.linears.push_back({.columns = {&mlp.c_fc}, .rows = &mlp.c_proj});
    if (mlp.c_gate) structure.linears.back().columns.push_back(mlp.c_gate);
  }
  structure.tokens = {
      .begin = &drop, .end = &ln_f, .between = {&h, &ln_f}, .count = config.context};
  structure.segments.push_back(
      {"embedding", [this](const Tensor& tokens) { return embed(tokens, 0); }, {"wte", "wpe"}});
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const std::string name = "h." + std::to_string(i);
    structure.segments.push_back(
        {name, [block = blocks_[i]](const Tensor& x) { return (*block)(x); }, {name}});
  }
  structure.segments.push_back(
      {"head", [this](const Tensor& x) { return logits(x); }, {"ln_f", "lm_head"}});
  if (!lm_head) structure.segments.back().reads = {"wte.weight"};
  structure.layers = config.layers;
  return structure;
}

}  // namespace weft::models
