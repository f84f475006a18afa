// A decoder-only transformer: GPT-2, and what became of it in Llama.
//
//   tokens -> wte (+ wpe) -> layers x { x += attn(ln_1(x)); x += mlp(ln_2(x)) } -> ln_f -> head
//
// Radford et al.: "Language Models are Unsupervised Multitask Learners", 2019; Touvron et al.:
// "LLaMA", arXiv:2302.13971; grouped heads: Ainslie et al., "GQA", arXiv:2305.13245. Parameters
// have the names of GPT-2's published files; matrices are [out, in], as everywhere here. Shapes
// below: B sequences, T tokens, W the width, V the vocabulary.
//
//   models::Gpt model({.vocabulary = 256, .context = 128});
//   Tensor logits = model(tokens);                              // i64 [B, T] -> [B, T, V]
//   std::vector<int64_t> more = models::generate(model, prompt);  // models/generate.h
#pragma once

#include <optional>
#include <vector>

#include "nn/layers.h"
#include "nn/rotary.h"
#include "nn/structure.h"

namespace weft::models {

enum class GptNorm { kLayer, kRms };
enum class GptPositions { kLearned, kRotary };
/// kSwiglu: silu(gate(x)) * fc(x). Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.
enum class GptActivation { kGeluTanh, kSwiglu };

/// As it stands: a small model of bytes, built like Llama.
struct GptConfig {
  int64_t vocabulary = 256;
  int64_t context = 256;  // tokens that it sees at most
  int64_t width = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 4;  // of keys and values, a divisor of heads
  int64_t hidden = 344;  // of the MLPs; 8/3 of the width gives SwiGLU the size of GPT-2's 4 widths
  GptNorm norm = GptNorm::kRms;
  GptPositions positions = GptPositions::kRotary;
  GptActivation activation = GptActivation::kSwiglu;
  bool biases = false;    // of the linear layers in the blocks
  bool tied_head = true;  // the head's weight is wte's
  double dropout = 0;     // of embeddings, attention weights, and the branches' results
  double eps = 1e-5;      // of the norms
  double rope_base = 10000;
  /// Blocks keep their inputs alone, and are computed again when their gradients are needed.
  bool checkpoint_activations = false;

  /// GPT-2's smallest, of 124 million parameters.
  static GptConfig gpt2() {
    return {.vocabulary = 50257,
            .context = 1024,
            .width = 768,
            .layers = 12,
            .heads = 12,
            .kv_heads = 12,
            .hidden = 3072,
            .norm = GptNorm::kLayer,
            .positions = GptPositions::kLearned,
            .activation = GptActivation::kGeluTanh,
            .biases = true,
            .dropout = 0.1};
  }
};

/// Keys and values of the tokens that a model has seen: the next ones cost their own rows alone.
struct KvCache {
  struct Layer {
    Tensor keys, values;  // [B, kv_heads, context, W / heads]; the first `length` rows are filled
  };
  std::vector<Layer> layers;
  int64_t length = 0;
};

/// Self-attention in which a token sees itself and those before it. c_attn makes the rows of all
/// heads' q, then those of k, then of v; or of a part of the heads, where tensor parallelism has
/// left it no more.
class CausalAttention : public nn::Module {
 public:
  explicit CausalAttention(const GptConfig& config);
  Tensor forward(const Tensor& x) override;
  /// Of the tokens that follow the first `length` of the cache; adds theirs to it.
  Tensor forward_cached(const Tensor& x, KvCache::Layer& cache, int64_t length);
  /// An empty cache [B, heads, context, W / heads] for so many heads of k and v as are here.
  KvCache::Layer make_cache(int64_t batch, int64_t context) const;

  nn::Linear &c_attn, &c_proj;
  int64_t heads, kv_heads;  // of the whole layer
  double dropout;

 private:
  struct Heads {
    Tensor q, k, v;  // [B, heads, T, W / heads]
  };
  Heads heads_of(const Tensor& qkv, int64_t first) const;
  /// Of k and v, by the features that there are of q, k and v.
  int64_t kv_heads_in(int64_t features) const;
  Tensor output(const Tensor& attended);  // of [B, heads, T, W / heads]

  int64_t head_width_;
  std::optional<nn::RotaryPositions> rotary_;
};

/// c_proj(gelu(c_fc(x))), or with SwiGLU c_proj(silu(c_gate(x)) * c_fc(x)).
class GptMlp : public nn::Module {
 public:
  explicit GptMlp(const GptConfig& config);
  Tensor forward(const Tensor& x) override;

  nn::Linear& c_fc;
  nn::Linear* c_gate;  // null without SwiGLU
  nn::Linear& c_proj;
};

/// What has norms of the kind that the configuration says.
class GptPart : public nn::Module {
 protected:
  nn::Module& add_norm(std::string_view name, const GptConfig& config);
};

class GptBlock : public GptPart {
 public:
  explicit GptBlock(const GptConfig& config);
  Tensor forward(const Tensor& x) override;
  Tensor forward_cached(const Tensor& x, KvCache::Layer& cache, int64_t length);

  nn::Module& ln_1;
  CausalAttention& attn;
  nn::Module& ln_2;
  GptMlp& mlp;
  nn::Dropout& dropout;

 private:
  Tensor add_branches(const Tensor& x, const Tensor& attended);
};

class Gpt : public GptPart {
 public:
  /// Weights are N(0, 0.02^2), those of c_proj over sqrt(2 layers); biases 0. Throws Error naming
  /// the option that does not fit.
  explicit Gpt(const GptConfig& config);

  /// Logits [B, T, V] of what follows each of the tokens i64 [B, T]. Throws Error for more tokens
  /// than the context, and naming a token that the vocabulary lacks.
  Tensor forward(const Tensor& tokens) override;
  /// The same of tokens that follow those in the cache, without gradients; they join the cache.
  Tensor forward(const Tensor& tokens, KvCache& cache);
  /// An empty cache for B sequences.
  KvCache make_cache(int64_t batch = 1) const;
  /// With a tied head the last segment reads the first one's weight, which no pipeline can take,
  /// and there is no head that could be cut by tokens.
  nn::ModelStructure structure() override;
  nn::BatchRow batch_row() const override {
    return {.shape = {config.context}, .classes = config.vocabulary, .has_tokens = true};
  }

  GptConfig config;
  nn::Embedding& wte;
  nn::Embedding* wpe;  // null with rotary positions
  nn::Dropout& drop;
  nn::Sequential& h;
  nn::Module& ln_f;
  nn::Linear* lm_head;  // null where the head is tied

 private:
  void check_tokens(const Tensor& tokens, int64_t seen) const;
  Tensor embed(const Tensor& tokens, int64_t first);
  Tensor logits(const Tensor& x);

  std::vector<GptBlock*> blocks_;
};

}  // namespace weft::models
