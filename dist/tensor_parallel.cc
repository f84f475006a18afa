#include "dist/tensor_parallel.h"

#include <cmath>
#include <optional>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "dist/exact_sum.h"
#include "nn/meta.h"

namespace weft::dist {
namespace {

Tensor summed(const Tensor& x, Communicator& group) {
  const Tensor sum = ops::clone(x);
  group.all_reduce(sum).wait();
  return sum;
}

/// Along a dimension.
Tensor gathered(const Tensor& x, int64_t dim, Communicator& group) {
  Shape shape = x.shape();
  shape.insert(0, group.size());
  const Tensor all = Tensor::empty(shape, x.dtype());
  group.all_gather(all, ops::contiguous(x)).wait();
  Tensors parts;
  for (int r = 0; r < group.size(); ++r) parts.push_back(ops::select(all, 0, r));
  return ops::cat(parts, dim);
}

Tensor part_of(const Tensor& x, int64_t dim, const Communicator& group, std::string_view what) {
  WEFT_CHECK(x.size(dim) % group.size() == 0, "{}: {} ranks do not divide dimension {} of {}", what,
             group.size(), dim, x);
  const int64_t part = x.size(dim) / group.size();
  return ops::contiguous(ops::narrow(x, dim, group.rank() * part, part));
}

/// Each rank's part, along a dimension, of the sum over ranks.
Tensor scattered_sum(const Tensor& x, int64_t dim, Communicator& group, std::string_view what) {
  Tensors parts;
  WEFT_CHECK(x.size(dim) % group.size() == 0, "{}: {} ranks do not divide dimension {} of {}", what,
             group.size(), dim, x);
  const int64_t part = x.size(dim) / group.size();
  for (int r = 0; r < group.size(); ++r) parts.push_back(ops::narrow(x, dim, r * part, part));
  const Tensor in = ops::stack(parts, 0);  // the parts one after another in memory
  Shape shape = in.shape();
  shape.erase(0);
  const Tensor out = Tensor::empty(shape, x.dtype());
  group.reduce_scatter(out, in).wait();
  return out;
}

/// A leaf of its own with the elements of x.
Tensor own(const Tensor& x) {
  const NoGrad guard;
  return x.defined() ? ops::clone(detach(x)) : Tensor();
}

}  // namespace

Tensor copy_to_ranks(const Tensor& x, const CommunicatorPtr& group) {
  return record("copy_to_ranks", {x}, detach(x), {}, [group](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {summed(b.dy(), *group)};
  });
}

Tensor reduce_from_ranks(const Tensor& x, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = summed(x, *group);
  }
  return record("reduce_from_ranks", {x}, y, {}, [](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {b.dy()};
  });
}

Tensor gather_from_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = gathered(x, dim, *group);
  }
  return record("gather_from_ranks", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {part_of(b.dy(), dim, *group, "gather_from_ranks")};
  });
}

Tensor scatter_to_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = part_of(x, dim, *group, "scatter_to_ranks");
  }
  return record("scatter_to_ranks", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {gathered(b.dy(), dim, *group)};
  });
}

Tensor gather_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = gathered(x, dim, *group);
  }
  return record("gather_sequence", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {scattered_sum(b.dy(), dim, *group, "gather_sequence")};
  });
}

Tensor reduce_scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = scattered_sum(x, dim, *group, "reduce_scatter_sequence");
  }
  return record("reduce_scatter_sequence", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {gathered(b.dy(), dim, *group)};
  });
}

namespace {

/// x W^T + b with the gradient of x summed over the ranks; that sum travels while dW is computed.
Tensor column_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const CommunicatorPtr& group, Tokens tokens) {
  // Of tokens that are dealt out the gradient is summed where it is dealt out again.
  if (tokens == Tokens::kDealtOut) return ops::linear(gather_sequence(x, -2, group), weight, bias);
  Tensor y;
  {
    const NoGrad guard;
    y = ops::linear(x, weight, bias);
  }
  return record("column_parallel_linear", {x, weight, bias}, y, {x, weight},
                [=, has_bias = bias.defined()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor x = b.saved(0), weight = b.saved(1);
                  const Tensor dy = ops::reshape(b.dy(), {-1, weight.size(0)});
                  Tensor dx, dw, db;
                  Work travels;
                  if (b.needs(0)) {
                    dx = ops::contiguous(ops::matmul(dy, ops::cast(weight, dy.dtype())));
                    travels = group->all_reduce(dx);
                  }
                  if (b.needs(1)) {
                    const Tensor rows = ops::reshape(ops::cast(x, dy.dtype()), {-1, x.size(-1)});
                    dw = ops::cast(ops::matmul(ops::transpose(dy, 0, 1), rows), weight.dtype());
                  }
                  if (has_bias && b.needs(2)) db = ops::cast(ops::sum(dy, {0}), weight.dtype());
                  travels.wait();
                  if (dx.defined()) dx = ops::cast(ops::reshape(dx, x.shape()), x.dtype());
                  return {dx, dw, db};
                });
}

/// x W^T summed over the ranks, + b.
Tensor row_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const CommunicatorPtr& group, Tokens tokens) {
  const Tensor partial = ops::linear(x, weight);
  if (tokens == Tokens::kWhole) {
    const Tensor y = reduce_from_ranks(partial, group);
    return bias.defined() ? y + ops::cast(bias, y.dtype()) : y;
  }
  const Tensor y = reduce_scatter_sequence(partial, -2, group);
  // Each rank adds the bias to its tokens: its gradient is a sum over the ranks.
  return bias.defined() ? y + ops::cast(copy_to_ranks(bias, group), y.dtype()) : y;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const nn::Linear& whole, CommunicatorPtr group,
                                           bool gather_output, Tokens tokens)
    : group_(std::move(group)), gather_output_(gather_output), tokens_(tokens) {
  weight = parameter("weight", own(part_of(detach(whole.weight), 0, *group_, "column parallel")));
  if (whole.bias.defined()) {
    bias = parameter("bias", own(part_of(detach(whole.bias), 0, *group_, "column parallel")));
  }
}

Tensor ColumnParallelLinear::forward(const Tensor& x) {
  const Tensor y = column_linear(x, weight, bias, group_, tokens_);
  return gather_output_ ? gather_from_ranks(y, -1, group_) : y;
}

RowParallelLinear::RowParallelLinear(const nn::Linear& whole, CommunicatorPtr group,
                                     bool input_is_parallel, Tokens tokens)
    : group_(std::move(group)), input_is_parallel_(input_is_parallel), tokens_(tokens) {
  weight = parameter("weight", own(part_of(detach(whole.weight), 1, *group_, "row parallel")));
  bias = parameter("bias", own(whole.bias));
}

Tensor RowParallelLinear::forward(const Tensor& x) {
  return row_linear(input_is_parallel_ ? x : scatter_to_ranks(x, -1, group_), weight, bias, group_,
                    tokens_);
}

namespace {

/// This rank's rows of q, of k and of v, one after another as in the whole.
Tensor heads_of(const Tensor& in_proj, const Communicator& group) {
  Tensors parts;
  for (const Tensor& third : ops::chunk(detach(in_proj), 3, 0)) {
    parts.push_back(part_of(third, 0, group, "attention"));
  }
  return ops::cat(parts, 0);
}

nn::Linear& checked_heads(const nn::MultiheadAttention& whole, const Communicator& group) {
  WEFT_CHECK(whole.heads % group.size() == 0, "attention: {} ranks do not divide {} heads",
             group.size(), whole.heads);
  return whole.out_proj;
}

}  // namespace

ParallelAttention::ParallelAttention(const nn::MultiheadAttention& whole, CommunicatorPtr group,
                                     Tokens tokens)
    : out_proj(
          add<RowParallelLinear>("out_proj", checked_heads(whole, *group), group, true, tokens)),
      group_(std::move(group)),
      heads_(whole.heads / group_->size()),
      tokens_(tokens) {
  in_proj_weight = parameter("in_proj_weight", own(heads_of(whole.in_proj_weight, *group_)));
  if (whole.in_proj_bias.defined()) {
    in_proj_bias = parameter("in_proj_bias", own(heads_of(whole.in_proj_bias, *group_)));
  }
}

Tensor ParallelAttention::forward(const Tensor& x) {
  const Tensor qkv = column_linear(x, in_proj_weight, in_proj_bias, group_, tokens_);
  return out_proj(ops::self_attention(qkv, heads_));
}

Tensor part_of(const Tensor& whole, const Cut& cut, const Communicator& group) {
  const NoGrad guard;
  Tensors parts;
  for (const Tensor& section : ops::chunk(detach(whole), cut.sections, cut.dim)) {
    parts.push_back(part_of(section, cut.dim, group, "tensor parallelism"));
  }
  return parts.size() == 1 ? parts[0] : ops::cat(parts, cut.dim);
}

Tensor whole_of(const Tensor& part, const Cut& cut, Communicator& group) {
  const NoGrad guard;
  Tensors sections;
  for (const Tensor& section : ops::chunk(detach(part), cut.sections, cut.dim)) {
    sections.push_back(gathered(section, cut.dim, group));
  }
  return sections.size() == 1 ? sections[0] : ops::cat(sections, cut.dim);
}

namespace {

/// Lets random numbers differ between the ranks of a group, for as long as it lives; all go on from
/// one place afterwards, since all draw equally many.
class CutRegion {
 public:
  explicit CutRegion(const Communicator& group) : stream_(generator().stream) {
    // The word "tp" keeps these streams apart from others.
    constexpr uint64_t kTensorParallel = 0x7470;
    generator().stream ^= (kTensorParallel + static_cast<uint64_t>(group.rank()) + 1) << 48;
  }
  ~CutRegion() { generator().stream = stream_; }
  CutRegion(const CutRegion&) = delete;
  CutRegion& operator=(const CutRegion&) = delete;

 private:
  const uint64_t stream_;
};

}  // namespace

TensorParallel::TensorParallel(nn::Module& module, CommunicatorPtr group)
    : group_(std::move(group)) {
  nn::materialize(module);
  for (const auto& [name, tensor] : module.state_dict()) group_->broadcast(tensor).wait();
  for (const auto& [name, tensor] : module.named_parameters()) names_[tensor.id()] = name;
}

const Cut* TensorParallel::cut_of(const std::string& name) const {
  const auto found = cuts_.find(name);
  return found == cuts_.end() ? nullptr : &found->second;
}

void TensorParallel::cut_parameter(Tensor parameter, const Cut& cut) {
  if (!parameter.defined()) return;
  const auto name = names_.find(parameter.id());
  WEFT_CHECK(name != names_.end(), "tensor parallelism: {} is no parameter of the model",
             parameter);
  WEFT_CHECK(cuts_.try_emplace(name->second, cut).second,
             "tensor parallelism: \"{}\" was cut already", name->second);
  parameter.set_data(own(part_of(parameter, cut, *group_)));
}

void TensorParallel::cut(nn::MultiheadAttention& attention) {
  checked_heads(attention, *group_);
  cut_parameter(attention.in_proj_weight, {.dim = 0, .sections = 3});
  cut_parameter(attention.in_proj_bias, {.dim = 0, .sections = 3});
  cut_parameter(attention.out_proj.weight, {.dim = 1});
  attention.set_stand_in([&attention, group = group_](const Tensor& x) {
    const Tensor qkv =
        column_linear(x, attention.in_proj_weight, attention.in_proj_bias, group, Tokens::kWhole);
    Tensor mixed;
    {
      const CutRegion region(*group);
      const double dropout = attention.is_training() ? attention.options.dropout : 0;
      mixed = ops::self_attention(qkv, attention.heads / group->size(),
                                  {.causal = attention.options.causal, .dropout = dropout});
    }
    return row_linear(mixed, attention.out_proj.weight, attention.out_proj.bias, group,
                      Tokens::kWhole);
  });
}

void TensorParallel::cut(nn::Linear& first, nn::Linear& second) {
  WEFT_CHECK(first.weight.size(0) == second.weight.size(1),
             "tensor parallelism: a layer of {} features in front of one that takes {}",
             first.weight.size(0), second.weight.size(1));
  WEFT_CHECK(first.weight.size(0) % group_->size() == 0,
             "tensor parallelism: {} ranks do not divide the {} features of \"{}\"", group_->size(),
             first.weight.size(0), names_[first.weight.id()]);
  cut_parameter(first.weight, {.dim = 0});
  cut_parameter(first.bias, {.dim = 0});
  cut_parameter(second.weight, {.dim = 1});
  // The cut region begins behind the first layer and ends in front of the second.
  const auto region = std::make_shared<std::optional<CutRegion>>();
  first.set_stand_in([&first, group = group_, region](const Tensor& x) {
    const Tensor y = column_linear(x, first.weight, first.bias, group, Tokens::kWhole);
    region->emplace(*group);
    return y;
  });
  second.set_stand_in([&second, group = group_, region](const Tensor& x) {
    region->reset();
    return row_linear(x, second.weight, second.bias, group, Tokens::kWhole);
  });
}

SequenceParallelLayerNorm::SequenceParallelLayerNorm(const nn::LayerNorm& whole,
                                                     CommunicatorPtr group)
    : group_(std::move(group)), eps_(whole.eps) {
  weight = parameter("weight", own(whole.weight));
  bias = parameter("bias", own(whole.bias));
}

Tensor SequenceParallelLayerNorm::forward(const Tensor& x) {
  return ops::layer_norm(x, copy_to_ranks(weight, group_), copy_to_ranks(bias, group_), eps_);
}

Tensor parallel_cross_entropy(const Tensor& logits, const Tensor& labels,
                              const CommunicatorPtr& group) {
  WEFT_CHECK(
      logits.dim() == 2 && labels.shape() == (Shape{logits.size(0)}) &&
          labels.dtype() == DType::i64,
      "parallel_cross_entropy: expected logits [N, C / ranks] and labels i64 [N], got {} and "
      "{}",
      logits, labels);
  const int64_t rows = logits.size(0), classes = logits.size(1), first = group->rank() * classes;
  Tensor loss, softmax, mine;
  {
    const NoGrad guard;
    const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Tensor z = ops::cast(logits, wide);
    const Tensor largest = ops::max(z, {1}, true);
    group->all_reduce(largest, ReduceOp::kMax).wait();
    const Tensor shifted = z - largest;
    const Tensor e = ops::exp(shifted);
    const Tensor total = ops::sum(e, {1}, true);
    group->all_reduce(total).wait();
    softmax = e / total;
    // Ones where a label is one of this rank's classes.
    mine = Tensor::zeros({rows, classes}, wide);
    const std::vector<double> label = labels.to_vector();
    for (int64_t i = 0; i < rows; ++i) {
      const auto c = static_cast<int64_t>(label[i]);
      WEFT_CHECK(c >= 0 && c < classes * group->size(),
                 "parallel_cross_entropy: label {} of {} classes", c, classes * group->size());
      if (c < first || c >= first + classes) continue;
      const int64_t at = i * classes + c - first;
      wide == DType::f64 ? mine.data<double>()[at] = 1 : mine.data<float>()[at] = 1;
    }
    const Tensor chosen = ops::sum(shifted * mine, {1}, true);
    group->all_reduce(chosen).wait();
    loss = ops::mean(ops::log(total) - chosen);
  }
  return record("parallel_cross_entropy", {logits}, loss, {softmax, mine},
                [rows, dtype = logits.dtype()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor d = (b.saved(0) - b.saved(1)) * (1.0 / static_cast<double>(rows));
                  return {ops::cast(d * b.dy(), dtype)};
                });
}

double parallel_grad_norm(const Tensors& cut, const Tensors& whole, Communicator& group) {
  ExactSum sum;
  const auto add = [&](const Tensors& parameters) {
    for (const Tensor& p : parameters) {
      if (p.grad().defined()) add_squares(sum, p.grad());
    }
  };
  add(cut);
  if (group.rank() == 0) add(whole);
  sum.all_reduce(group);
  return std::sqrt(sum.value());
}

}  // namespace weft::dist
