#include "dist/model_parallel/tensor_parallel.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "autograd/autocast.h"
#include "autograd/checkpoint.h"
#include "dist/comm/exact_sum.h"
#include "dist/comm/in_process.h"
#include "dist/model_parallel/parallel_head.h"
#include "dist/model_parallel/parallel_layers.h"
#include "dist/model_parallel/rank_collectives.h"
#include "dist/strategy/testing/oracle.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/op.h"
#include "numerics/error_bounds.h"
#include "optim/clip.h"

using namespace weft;
using namespace weft::dist;

namespace {

/// A leaf with the elements of this rank's part of x along a dimension, which the ranks divide.
Tensor part_leaf(const Tensor& x, int64_t dim, Communicator& c,
                 const std::vector<int64_t>& sections = {1}) {
  if (!x.defined()) return {};
  Tensor leaf = ops::clone(part_of(x, {.dim = dim, .sections = sections}, c));
  return leaf.set_requires_grad(true);
}
Tensor whole_leaf(const Tensor& x) {
  const NoGrad guard;
  return ops::clone(detach(x)).set_requires_grad(true);
}

/// A layer's rows.
struct ColumnParallel {
  ColumnParallel(const nn::Linear& whole, CommunicatorPtr c, Tokens tokens = Tokens::kWhole)
      : group(std::move(c)),
        weight(part_leaf(whole.weight, 0, *group)),
        bias(part_leaf(whole.bias, 0, *group)),
        tokens(tokens) {}
  Tensor operator()(const Tensor& x) const {
    return column_parallel_linear(x, weight, bias, group, tokens);
  }
  CommunicatorPtr group;
  Tensor weight, bias;
  Tokens tokens;
};

/// A layer's columns, for an input of which this rank has its part.
struct RowParallel {
  RowParallel(const nn::Linear& whole, CommunicatorPtr c, Tokens tokens = Tokens::kWhole)
      : group(std::move(c)),
        weight(part_leaf(whole.weight, 1, *group)),
        bias(whole_leaf(whole.bias)),
        tokens(tokens) {}
  Tensor operator()(const Tensor& x) const {
    return row_parallel_linear(x, weight, bias, group, tokens);
  }
  CommunicatorPtr group;
  Tensor weight, bias;
  Tokens tokens;
};

/// The heads of a self-attention dealt out: in_proj by columns, out_proj by rows.
struct ParallelAttention {
  ParallelAttention(const nn::MultiheadAttention& whole, CommunicatorPtr c, Tokens tokens)
      : in_proj_weight(part_leaf(whole.in_proj_weight, 0, *c, {1, 1, 1})),
        in_proj_bias(part_leaf(whole.in_proj_bias, 0, *c, {1, 1, 1})),
        out_proj(whole.out_proj, c, tokens),
        heads(whole.heads / c->size()) {}
  Tensor operator()(const Tensor& x) const {
    const Tensor qkv =
        column_parallel_linear(x, in_proj_weight, in_proj_bias, out_proj.group, out_proj.tokens);
    return out_proj(ops::self_attention(qkv, heads));
  }
  Tensor in_proj_weight, in_proj_bias;
  RowParallel out_proj;
  int64_t heads;
};

CommunicatorPtr borrowed(Communicator& c) {
  return {&c, [](Communicator*) {}};
}

/// A block of a transformer, whole.
struct Whole {
  Whole() {
    manual_seed(4);
    norm = std::make_unique<nn::LayerNorm>(24);
    attention = std::make_unique<nn::MultiheadAttention>(24, 12);
    fc1 = std::make_unique<nn::Linear>(24, 36);
    fc2 = std::make_unique<nn::Linear>(36, 24);
    head = std::make_unique<nn::Linear>(24, 12, false);
    for (nn::Module* m : modules()) m->to(DType::f64);
  }
  std::vector<nn::Module*> modules() const {
    return {norm.get(), attention.get(), fc1.get(), fc2.get(), head.get()};
  }
  Tensor logits(const Tensor& x) const {
    const Tensor h = x + (*attention)((*norm)(x));
    return (*head)(ops::mean(h + (*fc2)(ops::gelu((*fc1)(h))), {1}));
  }
  std::unique_ptr<nn::LayerNorm> norm;
  std::unique_ptr<nn::MultiheadAttention> attention;
  std::unique_ptr<nn::Linear> fc1, fc2, head;
};

Tensor make_input() {
  manual_seed(9);
  const NoGrad guard;
  return ops::randn({3, 12, 24}, DType::f64);
}
const std::vector<int64_t> kLabels = {3, 0, 11};

void expect_close(const Tensor& got, const Tensor& expected, const std::string& what) {
  const double d = difference({{what, got}}, {{what, expected}});
  WEFT_CHECK(d < 1e-12, "{} differs by {}", what, d);
}

/// The gradients of a cut model, put together, against those of the whole one's parameters.
void expect_gradients(const nn::Module& cut, const TensorParallel& parallel,
                      const NamedTensors& expected, Communicator& c) {
  const NamedTensors ours = cut.named_parameters();
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto& [name, p] = ours[i];
    const Cut* how = parallel.cut_of(name);
    expect_close(how ? whole_of(p.grad(), *how, c) : p.grad(), expected[i].second.grad(), name);
  }
}

Tensor random_f32(const Shape& shape, uint64_t seed) {
  const NoGrad guard;
  manual_seed(seed);
  return ops::randn(shape);
}

Tensor part(const Tensor& x, int64_t dim, Communicator& c) {
  const int64_t n = x.size(dim) / c.size();
  return ops::contiguous(ops::narrow(detach(x), dim, c.rank() * n, n));
}

}  // namespace

TEST_CASE("a block cut over ranks equals the whole one, gradients and norm included") {
  const Whole whole;
  Tensor x = make_input();
  x.set_requires_grad(true);
  const Tensor labels = Tensor::from(kLabels, {3});
  const Tensor loss = ops::cross_entropy(whole.logits(x), labels);
  backward(loss);
  Tensors all;
  for (nn::Module* m : whole.modules()) {
    for (const Tensor& p : m->parameters()) all.push_back(p);
  }
  const double norm = optim::grad_norm(all);
  for (int ranks : {1, 2, 3, 4}) {
    for (bool sequence : {false, true}) {
      run_ranks(ranks, [&](Communicator& c) {
        const CommunicatorPtr group = borrowed(c);
        nn::LayerNorm norm_own(24);
        norm_own.to(DType::f64);
        norm_own.load_state_dict(whole.norm->state_dict());
        // Of dealt-out tokens the parameters' gradients are those of the rank's tokens alone.
        const auto norm_cut = [&](const Tensor& x) {
          return ops::layer_norm(x, copy_to_ranks(norm_own.weight, group),
                                 copy_to_ranks(norm_own.bias, group), norm_own.eps);
        };
        const Tokens tokens = sequence ? Tokens::kDealtOut : Tokens::kWhole;
        const ParallelAttention attention(*whole.attention, group, tokens);
        const ColumnParallel fc1(*whole.fc1, group, tokens);
        const RowParallel fc2(*whole.fc2, group, tokens);
        const ColumnParallel head(*whole.head, group);
        Tensor in = sequence ? part(x, 1, c) : detach(x);
        in.set_requires_grad(true);
        const Tensor h = in + attention(sequence ? norm_cut(in) : norm_own(in));
        Tensor y = h + fc2(ops::gelu(fc1(h)));
        if (sequence) y = gather_from_ranks(y, 1, group);
        const Tensor cut = parallel_cross_entropy(head(ops::mean(y, {1})), labels, 12, group);
        WEFT_CHECK(std::abs(cut.item() - loss.item()) < 1e-12, "loss {}, expected {}", cut.item(),
                   loss.item());
        backward(cut);
        expect_close(fc1.weight.grad(), part(whole.fc1->weight.grad(), 0, c), "fc1.weight");
        expect_close(fc1.bias.grad(), part(whole.fc1->bias.grad(), 0, c), "fc1.bias");
        expect_close(fc2.weight.grad(), part(whole.fc2->weight.grad(), 1, c), "fc2.weight");
        expect_close(fc2.bias.grad(), whole.fc2->bias.grad(), "fc2.bias");
        expect_close(head.weight.grad(), part(whole.head->weight.grad(), 0, c), "head.weight");
        expect_close(attention.out_proj.bias.grad(), whole.attention->out_proj.bias.grad(),
                     "out_proj.bias");
        expect_close(attention.out_proj.weight.grad(),
                     part(whole.attention->out_proj.weight.grad(), 1, c), "out_proj.weight");
        // Trap: with sequence parallelism layer norm's gradients need a sum over the ranks.
        for (size_t i = 0; i < 2; ++i) {
          expect_close(norm_own.parameters()[i].grad(), whole.norm->parameters()[i].grad(), "norm");
        }
        expect_close(in.grad(), sequence ? part(x.grad(), 1, c) : x.grad(), "x");
        // Trap: replicated parameters count once in the norm.
        ExactSum squares;
        for (const Tensor& p :
             {fc1.weight, fc1.bias, fc2.weight, head.weight, attention.in_proj_weight,
              attention.in_proj_bias, attention.out_proj.weight}) {
          add_squares(squares, p.grad());
        }
        if (c.rank() == 0) {
          for (const Tensor& p :
               {fc2.bias, attention.out_proj.bias, norm_own.weight, norm_own.bias}) {
            add_squares(squares, p.grad());
          }
        }
        all_reduce(squares, c);
        const double together = std::sqrt(squares.value());
        WEFT_CHECK(std::abs(together - norm) < 1e-12 * norm, "norm {}, expected {}", together,
                   norm);
      });
    }
  }
}

TEST_CASE("trap: a row-parallel bias on dealt-out tokens needs a sum of its gradient") {
  run_ranks(2, [](Communicator& c) {
    const CommunicatorPtr group = borrowed(c);
    nn::Linear whole(4, 3);
    whole.to(DType::f64);
    whole.load_state_dict({{"weight", Tensor::full({3, 4}, 0.5, DType::f64)},
                           {"bias", Tensor::full({3}, 1, DType::f64)}});
    const RowParallel row(whole, group, Tokens::kDealtOut);
    const Tensor x = Tensor::full({6, 2}, 1, DType::f64);  // this rank's features of all tokens
    const Tensor y = row(x);
    WEFT_CHECK(y.shape() == (Shape{3, 3}), "tokens of this rank: {}", y);
    for (double v : y.to_vector()) WEFT_CHECK(v == 3, "{}", v);
    backward(ops::sum(y));
    for (double g : row.bias.grad().to_vector()) WEFT_CHECK(g == 6, "bias gradient {}", g);
    for (double g : row.weight.grad().to_vector()) WEFT_CHECK(g == 6, "weight gradient {}", g);
  });
}

TEST_CASE("what ranks do not divide is refused") {
  run_ranks(2, [](Communicator& c) {
    const CommunicatorPtr group = borrowed(c);
    nn::Sequential net;
    auto& odd = net.append<nn::Linear>(4, 3);
    auto& behind = net.append<nn::Linear>(3, 4);
    auto& three = net.append<nn::MultiheadAttention>(6, 3);
    TensorParallel parallel(net, group);
    expect_error([&] { parallel.cut(odd, behind); }, "2 ranks do not divide the 3 features");
    expect_error([&] { parallel.cut(three); }, "2 ranks do not divide 3 heads");
  });
}

TEST_CASE("a layer of a derived class, whose forward() is another, is not cut") {
  struct Shifted : nn::Linear {
    using Linear::Linear;
    Tensor forward(const Tensor& x) override { return Linear::forward(x) + 100.0; }
  };
  run_ranks(2, [](Communicator& c) {
    nn::Sequential net;
    auto& shifted = net.append<Shifted>(4, 8);
    auto& plain = net.append<nn::Linear>(8, 4);
    TensorParallel parallel(net, borrowed(c));
    const std::vector<double> before = net(Tensor::full({1, 4}, 1)).to_vector();
    expect_error([&] { parallel.cut(shifted, plain); },
                 "Shifted, whose own forward() would be lost");
    expect_error([&] { parallel.cut_head(shifted); }, "expected a weft::nn::Linear itself");
    WEFT_CHECK(net(Tensor::full({1, 4}, 1)).to_vector() == before, "something was cut");
  });
}

TEST_CASE("cut layers of which forward() is called are those that are called themselves") {
  class Direct : public nn::Module {
   public:
    Direct()
        : attention(add<nn::MultiheadAttention>("attention", 8, 4)),
          fc1(add<nn::Linear>("fc1", 8, 12)),
          fc2(add<nn::Linear>("fc2", 12, 8)),
          head(add<nn::Linear>("head", 8, 6)) {
      to(DType::f64);
    }
    Tensor forward(const Tensor& x) override {
      const Tensor h = fc2.forward(ops::gelu(fc1.forward(attention.forward(x))));
      return head.forward(ops::mean(h, {1}));
    }
    nn::MultiheadAttention& attention;
    nn::Linear &fc1, &fc2, &head;
  };
  const Tensor labels = Tensor::from(std::vector<int64_t>{5, 0}, {2});
  manual_seed(7);
  Direct whole;
  Tensor x;
  {
    const NoGrad guard;
    x = ops::randn({2, 3, 8}, DType::f64);
  }
  backward(ops::cross_entropy(whole(x), labels));
  const NamedTensors expected = whole.named_parameters();
  run_ranks(2, [&](Communicator& c) {
    const CommunicatorPtr group = borrowed(c);
    manual_seed(7);
    Direct net;
    TensorParallel parallel(net, group);
    parallel.cut(net.attention);
    parallel.cut(net.fc1, net.fc2);
    parallel.cut_head(net.head);
    backward(parallel_cross_entropy(net(x), labels, 6, group));
    expect_gradients(net, parallel, expected, c);
  });
}

TEST_CASE("a parameter between cut layers, of which ranks have other gradients, is refused") {
  class Scaled : public nn::Module {
   public:
    Scaled()
        : fc1(add<nn::Linear>("fc1", 4, 8)),
          fc2(add<nn::Linear>("fc2", 8, 4)),
          before(parameter("before", Tensor::full({4}, 2))),
          scale(parameter("scale", Tensor::full({1}, 2))) {}
    Tensor forward(const Tensor& x) override { return fc2(ops::gelu(fc1(x * before)) * scale); }
    nn::Linear &fc1, &fc2;
    Tensor before, scale;
  };
  run_ranks(2, [](Communicator& c) {
    Scaled net;
    TensorParallel parallel(net, borrowed(c));
    parallel.cut(net.fc1, net.fc2);
    const Tensor x = Tensor::full({3, 4}, 1);
    expect_error([&] { net(x); }, "\"scale\" is used between");
    net.scale.set_requires_grad(false);
    net(x);
  });
}

TEST_CASE("column and row parallel linear with whole inputs and outputs") {
  const Tensor x = make_input();
  run_ranks(3, [&](Communicator& c) {
    const CommunicatorPtr group = borrowed(c);
    manual_seed(2);
    nn::Linear whole(24, 9);
    whole.to(DType::f64);
    const ColumnParallel column(whole, group);
    const RowParallel row(whole, group);
    const Tensor expected = whole(x);
    expect_close(gather_from_ranks(column(x), -1, group), expected, "column");
    expect_close(row(part(x, 2, c)), expected, "row");
  });
}

TEST_CASE(
    "a product cut along its inner dimension lies within the bound of its summation, in f32") {
  // Two orders of adding K products, bias included, differ by at most 2 gamma_{K+1} |x| |W|^T
  // (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.5): the whole
  // product and the sum of the ranks' are two such orders.
  manual_seed(5);
  const int64_t in = 96, out = 36;
  nn::Linear first(out, in), second(in, out);
  Tensor x;
  {
    const NoGrad guard;
    x = ops::randn({7, in});
  }
  const auto bound_of = [](const Tensor& a, const Tensor& weight, const Tensor& bias) {
    const NoGrad guard;
    const auto wide = [](const Tensor& t) { return ops::abs(ops::cast(detach(t), DType::f64)); };
    Tensor sum = ops::matmul(wide(a), ops::transpose(wide(weight), 0, 1));
    if (bias.defined()) sum = sum + wide(bias);
    const double n = static_cast<double>(a.size(1)) + 1, u = unit_roundoff(DType::f32);
    return (sum * (2 * n * u / (1 - n * u))).to_vector();
  };
  const auto exceed = [](const Tensor& a, const Tensor& b, const std::vector<double>& bound) {
    const std::vector<double> x = a.to_vector(), y = b.to_vector();
    int64_t count = 0;
    for (size_t i = 0; i < x.size(); ++i) count += !(std::abs(x[i] - y[i]) <= bound[i]);
    return count;
  };
  const Tensor y = second(x);
  // Backward through a column-parallel layer is the same sum: dx = dy W.
  Tensor h = ops::contiguous(ops::narrow(x, 1, 0, out));
  h.set_requires_grad(true);
  backward(first(h), x);
  for (int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](Communicator& c) {
      const CommunicatorPtr group = borrowed(c);
      const RowParallel row(second, group);
      const int64_t wrong = exceed(row(part(x, 1, c)), y, bound_of(x, second.weight, second.bias));
      WEFT_CHECK(wrong == 0, "{} results lie outside of the bound", wrong);
      const ColumnParallel column(first, group);
      Tensor mine = detach(h);
      mine.set_requires_grad(true);
      backward(column(mine), part(x, 1, c));
      const Tensor transposed = ops::transpose(detach(first.weight), 0, 1);
      const int64_t wrong_dx = exceed(mine.grad(), h.grad(), bound_of(x, transposed, {}));
      WEFT_CHECK(wrong_dx == 0, "{} gradients lie outside of the bound", wrong_dx);
    });
  }
}

TEST_CASE("in bf16 a row-parallel result is rounded once on each rank, once as a sum, once more") {
  // x and W are rounded before; each rank's product p_r and the bias to bf16, the ranks' sum s,
  // added in f32, and s + b too. With u the unit roundoff of bf16 that is u (sum |p_r| + |b| + |s|
  // + |s + b|), enlarged by the errors of what is rounded last, (1 + u)^3 < 1 + 4 u; the sums
  // themselves are of K + N terms in f32.
  const int64_t rows = 7, in = 96, out = 20;
  const auto rounded = [](const Tensor& t) {
    const NoGrad guard;
    return ops::cast(ops::cast(detach(t), DType::bf16), DType::f64);
  };
  manual_seed(6);
  nn::Linear whole(in, out);
  const Tensor x = random_f32({rows, in}, 12);
  const double u = unit_roundoff(DType::bf16), u32 = unit_roundoff(DType::f32);
  for (int ranks : {2, 3, 4}) {
    const NoGrad guard;
    const Tensor wide = rounded(x), w = ops::transpose(rounded(whole.weight), 0, 1);
    const Tensor exact = ops::matmul(wide, w), bias = ops::cast(detach(whole.bias), DType::f64);
    Tensor magnitude = ops::abs(exact) + ops::abs(bias) + ops::abs(exact + bias);
    const int64_t part = in / ranks;
    for (int r = 0; r < ranks; ++r) {
      magnitude = magnitude + ops::abs(ops::matmul(ops::narrow(wide, 1, r * part, part),
                                                   ops::narrow(w, 0, r * part, part)));
    }
    const Tensor sums = ops::matmul(ops::abs(wide), ops::abs(w));
    const std::vector<double> expected = (exact + bias).to_vector(),
                              bound = (magnitude * (u * (1 + 4 * u)) +
                                       sums * numerics::gamma(static_cast<double>(in + ranks), u32))
                                          .to_vector();
    run_ranks(ranks, [&](Communicator& c) {
      const CommunicatorPtr group = borrowed(c);
      for (bool sequence : {false, true}) {
        const RowParallel row(whole, group, sequence ? Tokens::kDealtOut : Tokens::kWhole);
        const Autocast precision(DType::bf16);
        Tensor y = row(::part(x, 1, c));
        WEFT_CHECK(y.dtype() == DType::bf16, "{}", y);
        if (sequence) y = join_sequence(y, 0, group, rows);
        const std::vector<double> got = y.to_vector();
        int64_t outside = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          outside += !(std::abs(got[i] - expected[i]) <= bound[i]);
        }
        WEFT_CHECK(outside == 0, "{} results lie outside of the bound", outside);
      }
    });
  }
}

namespace {

/// Two blocks between places where tokens are dealt out and put together.
class TokensNet : public nn::Module {
 public:
  static constexpr int64_t kWidth = 24;
  struct Block : nn::Module {
    Block()
        : norm(add<nn::LayerNorm>("norm", kWidth)),
          attention(add<nn::MultiheadAttention>("attention", kWidth, 12)),
          norm_2(add<nn::LayerNorm>("norm_2", kWidth)),
          fc1(add<nn::Linear>("fc1", kWidth, 36)),
          fc2(add<nn::Linear>("fc2", 36, kWidth)) {}
    Tensor forward(const Tensor& x) override {
      const auto [y, normalized] = norm_2.forward_add(attention(norm(x)), x);
      return y + fc2(fc1.forward_gelu(normalized));
    }
    nn::LayerNorm& norm;
    nn::MultiheadAttention& attention;
    nn::LayerNorm& norm_2;
    nn::Linear &fc1, &fc2;
  };
  TokensNet()
      : begin(add<nn::Identity>("begin")),
        blocks(add<nn::Sequential>("blocks")),
        end(add<nn::Identity>("end")),
        head(add<nn::Linear>("head", kWidth, 7)) {
    for (int i = 0; i < 2; ++i) {
      Block& block = blocks.append<Block>();
      for (Tensor p : block.norm.parameters()) {  // not those of a fresh norm, which are 1 and 0
        const NoGrad guard;
        p.set_data(ops::randn(p.shape()));
      }
    }
    to(DType::f64);
  }
  Tensor forward(const Tensor& x) override { return head(ops::mean(end(between(begin(x))), {1})); }
  Tensor between(const Tensor& x) {
    if (!checkpoints) return blocks(x);
    return checkpoint([this](const Tensors& in) { return blocks(in[0]); }, {x});
  }
  void cut(TensorParallel& parallel) {
    for (int i = 0; i < 2; ++i) {
      auto& block = dynamic_cast<Block&>(blocks[i]);
      parallel.cut(block.attention);
      parallel.cut(block.fc1, block.fc2);
    }
    parallel.cut_head(head);
    parallel.deal_out({.begin = &begin, .end = &end, .between = {&blocks}});
  }
  nn::Identity& begin;
  nn::Sequential& blocks;
  nn::Identity& end;
  nn::Linear& head;
  bool checkpoints = false;
};

Tensor random(const Shape& shape, uint64_t seed, DType dtype = DType::f64) {
  const NoGrad guard;
  manual_seed(seed);
  return ops::randn(shape, dtype);
}

}  // namespace

TEST_CASE("sequences are dealt out and put together, whatever their length") {
  for (int64_t tokens : {1, 5, 65, 197}) {
    const Tensor x = random({2, tokens, 3}, 1), w = random({2, tokens, 3}, 2);
    for (int ranks : {1, 2, 3, 4, 8}) {
      run_ranks(ranks, [&](Communicator& c) {
        const CommunicatorPtr group = borrowed(c);
        Tensor leaf = detach(x);
        leaf.set_requires_grad(true);
        const Tensor part = scatter_sequence(leaf, 1, group);
        WEFT_CHECK(part.shape() == (Shape{2, (tokens + ranks - 1) / ranks, 3}), "{}", part);
        const Tensor joined = join_sequence(part, 1, group, tokens);
        expect_close(joined, x, "joined");
        backward(joined, w);
        expect_close(leaf.grad(), w, "the gradient behind joining");

        // Every rank adds (rank + 1) x, and does so many times something with the whole.
        Tensor again = detach(x);
        again.set_requires_grad(true);
        const double mine = c.rank() + 1, all = ranks * (ranks + 1) / 2.0;
        const Tensor sum = reduce_scatter_sequence(again * mine, -2, group);
        const Tensor whole = gather_sequence(sum, -2, group, tokens);
        expect_close(whole, x * all, "the sum");
        backward(whole, w * mine);
        expect_close(again.grad(), w * (all * mine), "the gradient of the sum");
      });
    }
  }
}

TEST_CASE("blocks on 65 and 197 tokens, dealt out, equal the whole ones") {
  for (int64_t tokens : {12, 65, 197}) {
    const Tensor x = random({2, tokens, TokensNet::kWidth}, 3);
    const Tensor labels = Tensor::from(std::vector<int64_t>{6, 2}, {2});
    manual_seed(5);
    TokensNet whole;
    Tensor leaf = detach(x);
    leaf.set_requires_grad(true);
    const Tensor logits = whole(leaf);
    const Tensor loss = ops::cross_entropy(logits, labels);
    backward(loss);
    const NamedTensors expected = whole.named_parameters();
    for (int ranks : {1, 2, 3, 4}) {
      run_ranks(ranks, [&](Communicator& c) {
        const CommunicatorPtr group = borrowed(c);
        manual_seed(5 + c.rank());  // the first rank's weights count
        TokensNet net;
        TensorParallel parallel(net, group);
        net.cut(parallel);
        Tensor in = detach(x);
        in.set_requires_grad(true);
        const Tensor cut = parallel_cross_entropy(net(in), labels, 7, group);
        WEFT_CHECK(std::abs(cut.item() - loss.item()) < 1e-12, "loss {}, expected {}", cut.item(),
                   loss.item());
        backward(cut);
        expect_close(in.grad(), leaf.grad(), "the input's gradient");
        expect_gradients(net, parallel, expected, c);
        net.eval();  // the head then puts the logits together
        expect_close(net(in), logits, "logits");
      });
    }
  }
}

TEST_CASE(
    "trap: blocks that are recomputed have the tokens of their own sequence, not the last's") {
  const Tensor labels = Tensor::from(std::vector<int64_t>{6, 2}, {2});
  for (const auto& [first, second] : {std::pair(6, 5), {5, 6}, {8, 5}}) {
    const Tensor a = random({2, first, TokensNet::kWidth}, 3),
                 b = random({2, second, TokensNet::kWidth}, 4);
    manual_seed(5);
    TokensNet whole;
    backward(ops::cross_entropy(whole(a), labels) + ops::cross_entropy(whole(b), labels));
    const NamedTensors expected = whole.named_parameters();
    for (int ranks : {2, 4}) {
      run_ranks(ranks, [&](Communicator& c) {
        const CommunicatorPtr group = borrowed(c);
        manual_seed(5);
        TokensNet net;
        net.checkpoints = true;
        TensorParallel parallel(net, group);
        net.cut(parallel);
        const auto loss = [&](const Tensor& x) {
          return parallel_cross_entropy(net(x), labels, 7, group);
        };
        backward(loss(a) + loss(b));
        expect_gradients(net, parallel, expected, c);
      });
    }
  }
}

TEST_CASE("a rank keeps its own tokens for backward, of what column-parallel layers take") {
  run_ranks(4, [](Communicator& c) {
    nn::Linear whole(8, 16);
    const ColumnParallel column(whole, borrowed(c), Tokens::kDealtOut);
    Tensor x = Tensor::full({1, 2, 8}, 1);  // two of eight tokens
    x.set_requires_grad(true);
    const Tensor y = column(x);
    int64_t elements = 0;
    for (const SavedTensor& saved : y.autograd()->grad_fn->saved) elements += saved.data.numel();
    WEFT_CHECK(elements == 2 * 8 + 4 * 8, "{} elements are kept", elements);
  });
}

TEST_CASE("dropout of dealt-out tokens differs from rank to rank, dropped paths do not") {
  run_ranks(3, [](Communicator& c) {
    class Net : public nn::Module {
     public:
      Net() : begin(add<nn::Dropout>("begin", 0.5)), between(add<nn::Sequential>("between")) {
        between.append<nn::DropPath>(0.5);
        between.append<nn::Dropout>(0.5);
      }
      Tensor forward(const Tensor& x) override {
        dropped = begin(x);
        path = between[0](ops::ones(dropped.shape()));
        return between[1](ops::ones(dropped.shape()));
      }
      nn::Dropout& begin;
      nn::Sequential& between;
      Tensor dropped, path;
    } net;
    const CommunicatorPtr group = borrowed(c);
    TensorParallel parallel(net, group);
    parallel.deal_out({.begin = &net.begin, .end = &net, .between = {&net.between}});
    manual_seed(3);
    const Generator before = generator();
    const Tensor y = net(Tensor::full({32, 10, 4}, 1));  // on each rank four tokens
    const auto alike = [&](const Tensor& x) {
      const Tensor largest = ops::clone(x), smallest = ops::clone(x);
      c.all_reduce(largest, ReduceOp::kMax).wait();
      c.all_reduce(smallest, ReduceOp::kMin).wait();
      return ops::sum(ops::abs(largest - smallest)).item() == 0;
    };
    WEFT_CHECK(!alike(detach(ops::narrow(net.dropped, 1, 0, 2))), "the ranks dropped alike");
    WEFT_CHECK(alike(net.path), "the ranks dropped other samples");
    WEFT_CHECK(alike(y), "what was put together differs");
    WEFT_CHECK(generator().stream == before.stream && generator().offset > before.offset,
               "the generator stands in stream {}", generator().stream);
    const Tensor offset = Tensor::scalar(static_cast<double>(generator().offset), DType::f64);
    WEFT_CHECK(alike(offset), "the ranks drew differently many numbers");
  });
}

TEST_CASE("the loss of dealt-out classes is that of all, gradients and predictions too") {
  const int64_t rows = 9, classes = 11;
  const Tensor values = random({rows, classes}, 7);
  Tensor soft;
  {
    const NoGrad guard;
    soft = ops::abs(random({rows, classes}, 8));  // whose rows need not add up to 1
  }
  const Tensor hard = Tensor::from(std::vector<int64_t>{0, 10, 3, 4, -100, 7, 10, 2, 5}, {rows});
  // No label of theirs can be -100: all rows count.
  const Tensor bytes = Tensor::from(std::vector<uint8_t>{0, 10, 3, 4, 0, 7, 10, 2, 5}, {rows});
  for (const Tensor& labels : {hard, bytes, soft}) {
    for (double smoothing : {0.0, 0.1}) {
      Tensor z = detach(values);
      z.set_requires_grad(true);
      const Tensor loss = ops::cross_entropy(z, labels, {.label_smoothing = smoothing}) * 3.0;
      backward(loss);
      for (int ranks : {1, 2, 3, 4, 11}) {
        run_ranks(ranks, [&](Communicator& c) {
          const CommunicatorPtr group = borrowed(c);
          const Cut cut{.dim = 1, .length = classes};
          Tensor mine = part_of(values, cut, c);
          WEFT_CHECK(mine.size(1) == even_part(classes, ranks, c.rank()), "{}", mine);
          mine.set_requires_grad(true);
          const Tensor ours =
              parallel_cross_entropy(mine, labels, classes, group, {.label_smoothing = smoothing}) *
              3.0;
          WEFT_CHECK(std::abs(ours.item() - loss.item()) < 1e-12, "loss {}, expected {}",
                     ours.item(), loss.item());
          backward(ours);
          expect_close(mine.grad(), part_of(z.grad(), cut, c), "the gradient");
          const Tensor expected = ops::argmax(values, 1);
          WEFT_CHECK(parallel_argmax(mine, classes, group).to_vector() == expected.to_vector(),
                     "other predictions");
        });
      }
    }
  }
}

TEST_CASE("dealt-out classes may be hidden by logits of -inf, as those of a whole head") {
  Tensor z = Tensor::from(std::vector<double>{1, -INFINITY, 0, 2, -INFINITY, 0.5}, {2, 3});
  const Tensor labels = Tensor::from(std::vector<int64_t>{2, 0}, {2});
  z.set_requires_grad(true);
  const Tensor loss = ops::cross_entropy(z, labels);
  backward(loss);
  REQUIRE(std::isfinite(loss.item()));
  for (int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](Communicator& c) {
      const Cut cut{.dim = 1, .length = 3};
      Tensor mine = part_of(detach(z), cut, c);
      mine.set_requires_grad(true);
      const Tensor ours = parallel_cross_entropy(mine, labels, 3, borrowed(c));
      WEFT_CHECK(std::abs(ours.item() - loss.item()) < 1e-14, "loss {}, expected {}", ours.item(),
                 loss.item());
      backward(ours);
      expect_close(mine.grad(), part_of(z.grad(), cut, c), "the gradient");
    });
  }
}

TEST_CASE("of equal logits the first is predicted, on whatever rank") {
  run_ranks(3, [](Communicator& c) {
    const Tensor z = Tensor::from(std::vector<float>{1, 5, 0, 2, 5, 5, 0,  //
                                                     4, 4, 4, 4, 4, 4, 4},
                                  {2, 7});
    const Tensor mine = part_of(z, {.dim = 1, .length = 7}, c);
    const std::vector<double> predicted = parallel_argmax(mine, 7, borrowed(c)).to_vector();
    WEFT_CHECK(predicted == (std::vector<double>{1, 0}), "{} and {}", predicted[0], predicted[1]);
  });
}

TEST_CASE("in f32 the loss of dealt-out classes lies within the bound of the whole one's") {
  // The reference's bound on a row's loss holds for any order of its sums
  // (kernels/cross_entropy/cross_entropy_reference.cc). Here the target's sum and the logarithm are
  // added at the end instead of term by term, and the rows' mean is a sum of N with a weight each:
  // gamma_{N + 4} of the magnitudes covers both.
  const int64_t rows = 16, classes = 101;
  const Tensor z = random({rows, classes}, 11, DType::f32);
  std::vector<int64_t> list(rows);
  for (int64_t i = 0; i < rows; ++i) list[i] = i * 37 % classes;
  const Tensor labels = Tensor::from(list, {rows});
  for (double smoothing : {0.0, 0.1}) {
    const Tensor loss = Tensor::empty({rows}, DType::f32);
    const kernels::Expected row = kernels::cross_entropy_reference(
        {.logits = z, .labels = labels, .loss = loss, .label_smoothing = smoothing})[0];
    double mean = 0, bound = 0;
    for (int64_t i = 0; i < rows; ++i) {
      mean += row.values[i] / static_cast<double>(rows);
      bound += row.bounds[i] / static_cast<double>(rows);
    }
    bound += numerics::gamma(rows + 4.0, unit_roundoff(DType::f32)) * mean;
    for (int ranks : {1, 2, 3, 4}) {
      run_ranks(ranks, [&](Communicator& c) {
        const Tensor mine = part_of(z, {.dim = 1, .length = classes}, c);
        const double ours = parallel_cross_entropy(mine, labels, classes, borrowed(c),
                                                   {.label_smoothing = smoothing})
                                .item();
        WEFT_CHECK(std::abs(ours - mean) <= bound, "loss {}, expected {} within {}", ours, mean,
                   bound);
      });
    }
  }
}

TEST_CASE("heads and labels that cannot be are refused") {
  const auto fails = [](const std::function<void(const CommunicatorPtr&)>& body,
                        const std::string& text) {
    CHECK_THROWS_WITH(run_ranks(2, [&](Communicator& c) { body(borrowed(c)); }),
                      Catch::Matchers::Contains(text));
  };
  fails(
      [](const CommunicatorPtr& group) {
        nn::Sequential net;
        auto& head = net.append<nn::Linear>(3, 1);
        TensorParallel(net, group).cut_head(head);
      },
      "2 ranks for 1 classes");
  struct Tied : nn::Module {
    Tied() : head(add<nn::Linear>("head", 3, 4)), table(add<Table>("table", head.weight)) {}
    struct Table : nn::Module {
      explicit Table(const Tensor& weight) { parameter("weight", weight); }
    };
    nn::Linear& head;
    Table& table;
  };
  fails(
      [](const CommunicatorPtr& group) {
        Tied net;
        TensorParallel(net, group).cut_head(net.head);
      },
      "\"head.weight\" is tied to \"table.weight\"");
  fails(
      [](const CommunicatorPtr& group) {
        nn::Linear net(2, 2);
        TensorParallel(net, group).deal_out({});
      },
      "does not say where tokens are dealt out");
  const Tensor z = Tensor::zeros({1, 2});
  fails(
      [&](const CommunicatorPtr& group) {
        parallel_cross_entropy(z, Tensor::zeros({1}, DType::i64), 9, group);
      },
      "of 9 classes on 2 ranks");
  fails(
      [&](const CommunicatorPtr& group) {
        parallel_cross_entropy(z, Tensor::from(std::vector<int64_t>{4}, {1}), 4, group);
      },
      "label 4 at position 0 is not one of the 4 classes");
  fails(
      [&](const CommunicatorPtr& group) {
        parallel_cross_entropy(z, Tensor::zeros({1, 2}), 4, group);
      },
      "integers [1] or probabilities [1, 4]");
}

namespace {

/// Holds rank 1 in its first product until rank 0 has begun its second.
class Meeting : public kernels::LaunchHook {
 public:
  Meeting() { kernels::set_launch_hook(this); }
  ~Meeting() override { kernels::set_launch_hook(nullptr); }
  static void become(int rank) { this_rank() = rank; }

  void begin(std::string_view op, std::string_view, Device, const std::string&) override {
    if (op != "gemm" || this_rank() < 0) return;
    std::unique_lock lock(mutex_);
    ++products_[this_rank()];
    wake_.notify_all();
    if (this_rank() != 1 || products_[1] != 1) return;
    // Bounded, so that ranks that do not overlap fail and do not hang.
    met_ = wake_.wait_for(lock, std::chrono::seconds(5), [&] { return products_[0] >= 2; });
  }
  void end() noexcept override {}
  bool met() const { return met_; }

 private:
  static int& this_rank() {
    thread_local int rank = -1;
    return rank;
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  int products_[2] = {0, 0};
  bool met_ = false;
};

}  // namespace

TEST_CASE("the input's gradient travels while the weight's is computed") {
  // Rank 1 does not begin its part of the sum before rank 0 computes its weight's gradient: were
  // rank 0 to wait for the sum first, they would not meet.
  for (Tokens tokens : {Tokens::kWhole, Tokens::kDealtOut}) {
    Meeting meeting;
    run_ranks(2, [&](Communicator& c) {
      nn::Linear whole(4, 6);
      const ColumnParallel column(whole, borrowed(c), tokens);
      Tensor x = Tensor::full({2, 5, 4}, 1);
      x.set_requires_grad(true);
      const Tensor loss = ops::sum(column(x));
      c.barrier().wait();
      Meeting::become(c.rank());
      backward(loss);
      Meeting::become(-1);
    });
    CHECK(meeting.met());
  }
}
