// The oracle of every strategy: K steps on N ranks are K steps on one rank with the whole batch.
//
// A small model that has what makes sharding go wrong: odd sizes, a weight used in two places,
// layer norms, a parameter of one element.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "autograd/backward.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/philox.h"
#include "dist/comm/communicator.h"
#include "dist/model_parallel/tensor_parallel.h"
#include "nn/loss.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "optim/sgd.h"

namespace weft::dist {

/// x [B, 7] -> [B, 5], with what the strategies want to know.
class OracleModule : public nn::Module {
 public:
  virtual nn::Segments segments() { return {}; }
  virtual std::vector<std::pair<nn::Linear*, nn::Linear*>> mlps() { return {}; }
  virtual TokenRegion tokens() { return {}; }
  virtual nn::Linear* last_layer() { return nullptr; }
  bool checkpoints = false;  // recomputes activations
  double dropout = 0;

 protected:
  Tensor checkpointed(const std::function<Tensor(const Tensor&)>& function, const Tensor& x) {
    if (!checkpoints) return function(x);
    return checkpoint([function](const Tensors& in) { return function(in[0]); }, {x});
  }
};

/// `tied` is used by two layers.
class OracleModel : public OracleModule {
 public:
  OracleModel()
      : fc1(add<nn::Linear>("fc1", 7, 11)),
        norm(add<nn::LayerNorm>("norm", 11)),
        tied(add<nn::Linear>("tied", 11, 11)),
        scale(parameter("scale", Tensor::scalar(1.5))),
        fc2(add<nn::Linear>("fc2", 11, 5)) {}
  Tensor forward(const Tensor& x) override {
    return checkpointed(
        [this](const Tensor& in) {
          const Tensor h = norm(ops::gelu(fc1(ops::dropout(in, dropout, dropout > 0))));
          return fc2(tied(ops::gelu(tied(h) * scale)) + h);
        },
        x);
  }
  nn::Linear& fc1;
  nn::LayerNorm& norm;
  nn::Linear& tied;
  Tensor scale;
  nn::Linear& fc2;
};

/// Four tokens, three blocks: heads and hidden features that 2, 3, 4 and 8 divide, eight segments.
class OracleTransformer : public OracleModule {
 public:
  static constexpr int64_t kWidth = 24, kTokens = 4, kBlocks = 3;

  struct Block : nn::Module {
    Block()
        : ln_1(add<nn::LayerNorm>("ln_1", kWidth)),
          attention(add<nn::MultiheadAttention>("attention", kWidth, kWidth)),
          ln_2(add<nn::LayerNorm>("ln_2", kWidth)),
          fc1(add<nn::Linear>("fc1", kWidth, 2 * kWidth)),
          fc2(add<nn::Linear>("fc2", 2 * kWidth, kWidth)) {}
    Tensor attend(const Tensor& x) { return x + attention(ln_1(x)); }
    Tensor think(const Tensor& x) { return x + fc2(fc1.forward_gelu(ln_2(x))); }
    nn::LayerNorm& ln_1;
    nn::MultiheadAttention& attention;
    nn::LayerNorm& ln_2;
    nn::Linear &fc1, &fc2;
  };

  OracleTransformer()
      : embed(add<nn::Linear>("embed", 7, kTokens * kWidth)),
        begin(add<nn::Identity>("begin")),
        end(add<nn::Identity>("end")) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(&add<Block>("block" + std::to_string(i)));
    }
    head = &add<nn::Linear>("head", kWidth, 5);
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (const nn::Segment& segment : segments()) y = segment.forward(y);
    return y;
  }
  nn::Segments segments() override {
    nn::Segments all;
    const auto push = [&](const std::string& name, std::function<Tensor(const Tensor&)> function,
                          std::vector<std::string> owns) {
      all.push_back(
          {name, [this, function](const Tensor& x) { return checkpointed(function, x); }, owns});
    };
    push("embed",
         [this](const Tensor& x) {
           return begin(
               ops::dropout(ops::reshape(embed(x), {-1, kTokens, kWidth}), dropout, dropout > 0));
         },
         {"embed"});
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string name = "block" + std::to_string(i);
      Block* const block = blocks[i];
      push(name + ".attend",
           [this, block](const Tensor& x) {
             return ops::dropout(block->attend(x), dropout, dropout > 0);
           },
           {name + ".ln_1", name + ".attention"});
      push(name + ".think", [block](const Tensor& x) { return block->think(x); },
           {name + ".ln_2", name + ".fc1", name + ".fc2"});
    }
    push("head", [this](const Tensor& x) { return (*head)(ops::mean(end(x), {1})); }, {"head"});
    return all;
  }
  std::vector<std::pair<nn::Linear*, nn::Linear*>> mlps() override {
    std::vector<std::pair<nn::Linear*, nn::Linear*>> pairs;
    for (Block* block : blocks) pairs.emplace_back(&block->fc1, &block->fc2);
    return pairs;
  }
  TokenRegion tokens() override {
    return {.begin = &begin, .end = &end, .between = {blocks.begin(), blocks.end()}};
  }
  nn::Linear* last_layer() override { return head; }
  nn::Linear& embed;
  nn::Identity &begin, &end;  // of the part that works on tokens
  std::vector<Block*> blocks;
  nn::Linear* head = nullptr;
};

/// The same weights wherever it is called.
template <class Model>
std::unique_ptr<Model> make_oracle(DType dtype, uint64_t seed = 3) {
  manual_seed(seed);
  auto model = std::make_unique<Model>();
  model->to(dtype);
  return model;
}
inline std::unique_ptr<OracleModel> make_oracle_model(DType dtype, uint64_t seed = 3) {
  return make_oracle<OracleModel>(dtype, seed);
}

struct OracleBatch {
  Tensor x, labels;
};

/// The whole batch of a step.
inline OracleBatch oracle_batch(int step, int64_t rows, DType dtype) {
  Philox random(99, static_cast<uint64_t>(step));
  std::vector<double> x(rows * 7);
  for (double& value : x) value = random.normal();
  std::vector<int64_t> labels(rows);
  for (int64_t& label : labels) label = static_cast<int64_t>(random.below(5));
  const NoGrad guard;
  return {ops::cast(Tensor::from(x, {rows, 7}), dtype), Tensor::from(labels, {rows})};
}

/// Rows [begin, begin + count).
inline OracleBatch rows_of(const OracleBatch& batch, int64_t begin, int64_t count) {
  return {ops::contiguous(ops::narrow(batch.x, 0, begin, count)),
          ops::contiguous(ops::narrow(batch.labels, 0, begin, count))};
}

/// A rank's rows of a batch, cut as evenly as it goes, and their share of it.
struct OracleShare {
  OracleBatch batch;
  double weight = 0;
};
inline OracleShare share_of(const OracleBatch& batch, int ranks, int rank) {
  const int64_t rows = batch.x.size(0);
  const std::vector<int64_t> counts = split_evenly(rows, ranks);
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[r];
  return {rows_of(batch, begin, counts[rank]),
          static_cast<double>(counts[rank]) / static_cast<double>(rows)};
}

/// max |a - b| over all elements, relative to max |b|. Throws Error for different names or shapes.
inline double difference(const NamedTensors& a, const NamedTensors& b) {
  WEFT_CHECK(a.size() == b.size(), "oracle: {} tensors against {}", a.size(), b.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    WEFT_CHECK(a[i].first == b[i].first && a[i].second.shape() == b[i].second.shape(),
               "oracle: {} {} against {} {}", a[i].first, a[i].second, b[i].first, b[i].second);
    const std::vector<double> x = a[i].second.to_vector(), y = b[i].second.to_vector();
    for (size_t j = 0; j < x.size(); ++j) {
      worst = std::max(worst, std::abs(x[j] - y[j]));
      largest = std::max(largest, std::abs(y[j]));
      if (std::isnan(x[j]) != std::isnan(y[j])) worst = INFINITY;
    }
  }
  return worst == 0 ? 0 : worst / largest;
}

inline NamedTensors cloned(const NamedTensors& tensors) {
  const NoGrad guard;
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) result.emplace_back(name, ops::clone(tensor));
  return result;
}

/// Throws Error unless f() throws one whose message holds `text`: for ranks that are threads, which
/// a test framework's assertions are not made for.
inline void expect_error(const std::function<void()>& f, const std::string& text) {
  try {
    f();
  } catch (const Error& error) {
    WEFT_CHECK(std::string(error.what()).find(text) != std::string::npos,
               "expected an error with \"{}\", got \"{}\"", text, error.what());
    return;
  }
  WEFT_FAIL("expected an error with \"{}\"", text);
}

/// The next gradient of the parameter is an Error, "no memory".
inline void fail_at(const Tensor& parameter) {
  register_hook(parameter, [has_failed = std::make_shared<bool>(false)](const Tensor&) {
    WEFT_CHECK(std::exchange(*has_failed, true), "no memory");
    return Tensor();
  });
}

}  // namespace weft::dist
