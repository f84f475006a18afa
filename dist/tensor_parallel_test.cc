#include "dist/tensor_parallel.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "dist/in_process.h"
#include "dist/testing/oracle.h"
#include "optim/clip.h"

using namespace weft;
using namespace weft::dist;

namespace {

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
        SequenceParallelLayerNorm norm_cut(*whole.norm, group);
        nn::LayerNorm norm_whole(24);
        norm_whole.to(DType::f64);
        norm_whole.load_state_dict(whole.norm->state_dict());
        const Tokens tokens = sequence ? Tokens::kDealtOut : Tokens::kWhole;
        ParallelAttention attention(*whole.attention, group, tokens);
        ColumnParallelLinear fc1(*whole.fc1, group, false, tokens);
        RowParallelLinear fc2(*whole.fc2, group, true, tokens);
        ColumnParallelLinear head(*whole.head, group);
        Tensor in = sequence ? part(x, 1, c) : detach(x);
        in.set_requires_grad(true);
        const Tensor h = in + attention(sequence ? norm_cut(in) : norm_whole(in));
        Tensor y = h + fc2(ops::gelu(fc1(h)));
        if (sequence) y = gather_from_ranks(y, 1, group);
        const Tensor cut = parallel_cross_entropy(head(ops::mean(y, {1})), labels, group);
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
        const nn::Module& n = sequence ? static_cast<nn::Module&>(norm_cut) : norm_whole;
        for (size_t i = 0; i < 2; ++i) {
          expect_close(n.parameters()[i].grad(), whole.norm->parameters()[i].grad(), "norm");
        }
        expect_close(in.grad(), sequence ? part(x.grad(), 1, c) : x.grad(), "x");
        // Trap: replicated parameters count once in the norm.
        const double together = parallel_grad_norm(
            {fc1.weight, fc1.bias, fc2.weight, head.weight, attention.in_proj_weight,
             attention.in_proj_bias, attention.out_proj.weight},
            {fc2.bias, attention.out_proj.bias, n.parameters()[0], n.parameters()[1]}, c);
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
    RowParallelLinear row(whole, group, true, Tokens::kDealtOut);
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
    const auto refuse = [](const std::function<void()>& function, const std::string& text) {
      try {
        function();
      } catch (const Error& error) {
        WEFT_CHECK(std::string(error.what()).find(text) != std::string::npos, "{}", error.what());
        return;
      }
      WEFT_FAIL("expected an error with \"{}\"", text);
    };
    const CommunicatorPtr group = borrowed(c);
    nn::Linear odd(4, 3);
    refuse([&] { ColumnParallelLinear(odd, group); }, "2 ranks do not divide dimension 0");
    nn::MultiheadAttention three(6, 3);
    refuse([&] { ParallelAttention(three, group); }, "2 ranks do not divide 3 heads");
  });
}

TEST_CASE("column and row parallel linear with whole inputs and outputs") {
  const Tensor x = make_input();
  run_ranks(3, [&](Communicator& c) {
    const CommunicatorPtr group = borrowed(c);
    manual_seed(2);
    nn::Linear whole(24, 9);
    whole.to(DType::f64);
    ColumnParallelLinear column(whole, group, true);
    RowParallelLinear row(whole, group, false);
    const Tensor expected = whole(x);
    expect_close(column(x), expected, "column");
    expect_close(row(x), expected, "row");
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
      RowParallelLinear row(second, group, false);
      const int64_t wrong = exceed(row(x), y, bound_of(x, second.weight, second.bias));
      WEFT_CHECK(wrong == 0, "{} results lie outside of the bound", wrong);
      ColumnParallelLinear column(first, group);
      Tensor mine = detach(h);
      mine.set_requires_grad(true);
      backward(column(mine), part(x, 1, c));
      const Tensor transposed = ops::transpose(detach(first.weight), 0, 1);
      const int64_t wrong_dx = exceed(mine.grad(), h.grad(), bound_of(x, transposed, {}));
      WEFT_CHECK(wrong_dx == 0, "{} gradients lie outside of the bound", wrong_dx);
    });
  }
}
