#include "dist/tensor_parallel.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/memory_account.h"
#include "dist/exact_sum.h"
#include "kernels/gemm/gemm.h"
#include "nn/meta.h"

namespace weft::dist {
namespace {

Tensor summed(const Tensor& x, Communicator& group) {
  const Tensor sum = ops::clone(x);
  group.all_reduce(sum).wait();
  return sum;
}

/// Where the part of rank r begins, see even_part().
int64_t even_begin(int64_t n, int ranks, int rank) {
  return rank * (n / ranks) + std::min<int64_t>(rank, n % ranks);
}

std::vector<int64_t> even_parts(int64_t n, int ranks) {
  std::vector<int64_t> parts(ranks);
  for (int r = 0; r < ranks; ++r) parts[r] = even_part(n, ranks, r);
  return parts;
}

int64_t dimension(const Tensor& x, int64_t dim) { return dim < 0 ? dim + x.dim() : dim; }

/// The ranks' parts along a dimension on their way here: counts[r] of rank r.
class Gathering {
 public:
  Gathering(const Tensor& part, int64_t dim, std::vector<int64_t> counts, Communicator& group)
      : shape_(part.shape()), dim_(dimension(part, dim)), counts_(std::move(counts)) {
    const int64_t others = part.numel() / part.size(dim_);
    int64_t all = 0;
    for (int64_t count : counts_) {
      elements_.push_back(count * others);
      all += elements_.back();
    }
    all_ = Tensor::empty({all}, part.dtype(), part.device());
    work_ = group.all_gather(all_, ops::contiguous(part), elements_);
  }

  /// Put together, the first `length` of them.
  Tensor finish(int64_t length) {
    work_.wait();
    Tensors parts;
    int64_t begin = 0;
    for (size_t r = 0; r < counts_.size(); ++r) {
      const int64_t kept = std::min(counts_[r], length);
      length -= kept;
      Shape shape = shape_;
      shape[dim_] = counts_[r];
      const Tensor part = ops::reshape(ops::narrow(all_, 0, begin, elements_[r]), shape);
      begin += elements_[r];
      if (kept > 0) parts.push_back(ops::narrow(part, dim_, 0, kept));
    }
    return ops::cat(parts, dim_);
  }

 private:
  const Shape shape_;
  const int64_t dim_;
  const std::vector<int64_t> counts_;
  std::vector<int64_t> elements_;
  Tensor all_;
  Work work_;
};

/// Parts whose sizes differ by one at most, of `length` together.
Tensor gathered(const Tensor& x, int64_t dim, int64_t length, Communicator& group) {
  return Gathering(x, dim, even_parts(length, group.size()), group).finish(length);
}

int64_t sequence_part(int64_t length, int ranks) { return (length + ranks - 1) / ranks; }

Gathering gather_tokens(const Tensor& x, int64_t dim, Communicator& group) {
  return Gathering(x, dim, std::vector<int64_t>(group.size(), x.size(dimension(x, dim))), group);
}

/// Part r of a sequence, filled up with zeros.
Tensor tokens_of_rank(const Tensor& x, int64_t dim, int ranks, int rank) {
  const int64_t along = dimension(x, dim), length = x.size(along),
                part = sequence_part(length, ranks), begin = std::min(length, rank * part),
                count = std::min(part, length - begin);
  const Tensor mine = ops::narrow(x, along, begin, count);
  if (count == part) return mine;
  Shape rest = x.shape();
  rest[along] = part - count;
  const Tensor zeros = Tensor::zeros(rest, x.dtype(), x.device());
  return count == 0 ? zeros : ops::cat({mine, zeros}, along);
}

/// This rank's part of a sequence's sum over ranks, on its way.
class Scattering {
 public:
  Scattering(const Tensor& x, int64_t dim, Communicator& group) {
    Tensors parts;
    for (int r = 0; r < group.size(); ++r) {
      parts.push_back(tokens_of_rank(x, dim, group.size(), r));
    }
    const Tensor in = ops::stack(parts, 0);  // the parts one after another in memory
    part_ = Tensor::empty(parts[0].shape(), x.dtype(), x.device());
    work_ = group.reduce_scatter(part_, in);
  }
  Tensor finish() const {
    work_.wait();
    return part_;
  }

 private:
  Tensor part_;
  Work work_;
};

Tensor part_of(const Tensor& x, int64_t dim, const Communicator& group, std::string_view what) {
  WEFT_CHECK(x.size(dim) % group.size() == 0, "{}: {} ranks do not divide dimension {} of {}", what,
             group.size(), dim, x);
  const int64_t part = x.size(dim) / group.size();
  return ops::contiguous(ops::narrow(x, dim, group.rank() * part, part));
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

Tensor gather_from_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                         int64_t length) {
  if (length == 0) length = x.size(dim) * group->size();
  Tensor y;
  {
    const NoGrad guard;
    y = gathered(detach(x), dim, length, *group);
  }
  return record("gather_from_ranks", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {part_of(b.dy(), {.dim = dimension(b.dy(), dim)}, *group)};
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
    return {gather_tokens(b.dy(), dim, *group).finish(b.dy().size(dim) * group->size())};
  });
}

Tensor scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = ops::contiguous(tokens_of_rank(detach(x), dim, group->size(), group->rank()));
  }
  return record("scatter_sequence", {x}, y, {},
                [=, length = x.size(dim)](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  return {gather_tokens(b.dy(), dim, *group).finish(length)};
                });
}

Tensor join_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group, int64_t length) {
  Tensor y;
  {
    const NoGrad guard;
    if (length == 0) length = x.size(dim) * group->size();
    y = gather_tokens(x, dim, *group).finish(length);
  }
  return record("join_sequence", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {ops::contiguous(tokens_of_rank(b.dy(), dim, group->size(), group->rank()))};
  });
}

Tensor gather_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group, int64_t length) {
  Tensor y;
  {
    const NoGrad guard;
    if (length == 0) length = x.size(dim) * group->size();
    y = gather_tokens(x, dim, *group).finish(length);
  }
  return record("gather_sequence", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {Scattering(b.dy(), dim, *group).finish()};
  });
}

Tensor reduce_scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = Scattering(detach(x), dim, *group).finish();
  }
  return record("reduce_scatter_sequence", {x}, y, {},
                [=, length = x.size(dim)](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  return {gather_tokens(b.dy(), dim, *group).finish(length)};
                });
}

namespace {

/// dy^T x, which leaves the product in the weight's dtype, as ops::linear's does.
Tensor weight_gradient(const Tensor& dy, const Tensor& x, DType dtype) {
  const Tensor rows = ops::reshape(ops::cast(x, dy.dtype()), {-1, x.size(-1)});
  const Tensor dw = Tensor::empty({dy.size(1), rows.size(1)}, dtype, dy.device());
  kernels::gemm({.a = ops::transpose(dy, 0, 1), .b = rows, .c = dw});
  return dw;
}

/// In fp8 the parts of a layer's tensors have the scale of the whole.
bool is_fp8(const Tensor& weight, const CommunicatorPtr& group) {
  Fp8Scaling* const scaling = fp8_in_force();
  if (!scaling) return false;
  scaling->share(weight,
                 [group](const Tensor& amax) { group->all_reduce(amax, ReduceOp::kMax).wait(); });
  return true;
}

/// x W^T + b with the gradient of x summed over the ranks; that sum travels while dW is computed.
/// Of dealt-out tokens, `length` together, only this rank's are kept for backward: the others come
/// again while dx is computed.
Tensor column_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const CommunicatorPtr& group, Tokens tokens, int64_t length = 0) {
  const bool is_dealt_out = tokens == Tokens::kDealtOut;
  if (is_fp8(weight, group)) {
    const Tensor whole =
        is_dealt_out ? gather_sequence(x, -2, group, length) : copy_to_ranks(x, group);
    return ops::linear(whole, weight, bias);
  }
  Tensor y;
  {
    const NoGrad guard;
    if (length == 0 && is_dealt_out) length = x.size(-2) * group->size();
    const Tensor whole =
        is_dealt_out ? gather_tokens(detach(x), -2, *group).finish(length) : detach(x);
    y = ops::linear(whole, weight, bias);
  }
  return record("column_parallel_linear", {x, weight, bias}, y, {x, weight},
                [=, has_bias = bias.defined()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor mine = b.saved(0), weight = b.saved(1);
                  Shape shape = mine.shape();
                  if (is_dealt_out) shape[mine.dim() - 2] = length;
                  const Tensor dy = ops::reshape(b.dy(), {-1, weight.size(0)});
                  Tensor dx, dw, db;
                  std::optional<Gathering> others;
                  if (is_dealt_out && b.needs(1)) others.emplace(gather_tokens(mine, -2, *group));
                  Work travels;
                  std::optional<Scattering> scattered;
                  if (b.needs(0)) {
                    dx = ops::contiguous(ops::matmul(dy, ops::cast(weight, dy.dtype())));
                    dx = ops::reshape(dx, shape);
                    if (is_dealt_out) {
                      scattered.emplace(dx, -2, *group);
                    } else {
                      travels = group->all_reduce(dx);
                    }
                  }
                  if (b.needs(1)) {
                    const Tensor x = others ? others->finish(length) : mine;
                    dw = weight_gradient(dy, x, weight.dtype());
                  }
                  if (has_bias && b.needs(2)) db = ops::sum(ops::cast(dy, weight.dtype()), {0});
                  travels.wait();
                  if (scattered) dx = scattered->finish();
                  if (dx.defined()) dx = ops::cast(dx, mine.dtype());
                  return {dx, dw, db};
                });
}

/// x W^T summed over the ranks, + b.
Tensor row_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const CommunicatorPtr& group, Tokens tokens) {
  is_fp8(weight, group);
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

int64_t even_part(int64_t n, int ranks, int rank) { return n / ranks + (rank < n % ranks ? 1 : 0); }

int64_t Cut::elements(int64_t whole, int ranks, int rank) const {
  return whole / length * sections * even_part(length / sections, ranks, rank);
}

Tensor part_of(const Tensor& whole, const Cut& cut, const Communicator& group) {
  const NoGrad guard;
  Tensors parts;
  for (const Tensor& section : ops::chunk(detach(whole), cut.sections, cut.dim)) {
    const int64_t n = section.size(cut.dim);
    parts.push_back(
        ops::contiguous(ops::narrow(section, cut.dim, even_begin(n, group.size(), group.rank()),
                                    even_part(n, group.size(), group.rank()))));
  }
  return parts.size() == 1 ? parts[0] : ops::cat(parts, cut.dim);
}

Tensor whole_of(const Tensor& part, const Cut& cut, Communicator& group) {
  const NoGrad guard;
  Tensors sections;
  for (const Tensor& section : ops::chunk(detach(part), cut.sections, cut.dim)) {
    sections.push_back(gathered(section, cut.dim, cut.length / cut.sections, group));
  }
  return sections.size() == 1 ? sections[0] : ops::cat(sections, cut.dim);
}

namespace {

/// Parameters that are there, with the lengths of their dimensions.
Cuts defined_ones(Cuts cuts) {
  std::erase_if(cuts, [](const auto& entry) { return !entry.first.defined(); });
  for (auto& [parameter, cut] : cuts) cut.length = parameter.size(cut.dim);
  return cuts;
}

}  // namespace

Cuts cuts_of(const nn::MultiheadAttention& attention) {
  return defined_ones({{attention.in_proj_weight, {.dim = 0, .sections = 3}},
                       {attention.in_proj_bias, {.dim = 0, .sections = 3}},
                       {attention.out_proj.weight, {.dim = 1}}});
}

Cuts cuts_of(const nn::Linear& first, const nn::Linear& second) {
  return defined_ones(
      {{first.weight, {.dim = 0}}, {first.bias, {.dim = 0}}, {second.weight, {.dim = 1}}});
}

Cuts cuts_of_head(const nn::Linear& head) {
  return defined_ones({{head.weight, {.dim = 0}}, {head.bias, {.dim = 0}}});
}

namespace {

/// Random numbers that differ between the ranks of a group, or, called again, that do not: all go
/// on from one place afterwards, since all draw equally many.
void switch_streams(const Communicator& group) {
  // The word "tp" keeps these streams apart from others.
  constexpr uint64_t kTensorParallel = 0x7470;
  generator().stream ^= (kTensorParallel + static_cast<uint64_t>(group.rank()) + 1) << 48;
}

/// The other streams for as long as it lives, if `is_needed`.
class OtherStreams {
 public:
  OtherStreams(const Communicator& group, bool is_needed) : group_(is_needed ? &group : nullptr) {
    if (group_) switch_streams(*group_);
  }
  ~OtherStreams() {
    if (group_) switch_streams(*group_);
  }
  OtherStreams(const OtherStreams&) = delete;
  OtherStreams& operator=(const OtherStreams&) = delete;

 private:
  const Communicator* const group_;
};

}  // namespace

/// What the cut layers have to know of the tokens around them.
struct TensorParallel::Sequence {
  std::unordered_set<const nn::Module*> holds;  // who works on dealt-out tokens
  int64_t length = 0;                           // of the latest sequence

  Tokens of(const nn::Module& module) const {
    return holds.contains(&module) ? Tokens::kDealtOut : Tokens::kWhole;
  }
};

TensorParallel::TensorParallel(nn::Module& module, CommunicatorPtr group)
    : group_(std::move(group)), sequence_(std::make_shared<Sequence>()) {
  nn::materialize(module);
  for (const auto& [name, tensor] : module.state_dict()) group_->broadcast(tensor).wait();
  for (const auto& [name, tensor] : module.named_parameters()) names_[tensor.id()] = name;
}

const Cut* TensorParallel::cut_of(const std::string& name) const {
  const auto found = cuts_.find(name);
  return found == cuts_.end() ? nullptr : &found->second;
}

void TensorParallel::cut_parameters(const Cuts& cuts) {
  for (auto [parameter, cut] : cuts) {
    const auto name = names_.find(parameter.id());
    WEFT_CHECK(name != names_.end(), "tensor parallelism: {} is no parameter of the model",
               parameter);
    WEFT_CHECK(cuts_.try_emplace(name->second, cut).second,
               "tensor parallelism: \"{}\" was cut already", name->second);
    const MemoryScope scope(MemoryKind::kParameters);
    parameter.set_data(own(part_of(parameter, cut, *group_)));
  }
}

void TensorParallel::cut(nn::MultiheadAttention& attention) {
  checked_heads(attention, *group_);
  cut_parameters(cuts_of(attention));
  if (attention.out_proj.bias.defined()) row_biases_.insert(attention.out_proj.bias.id());
  attention.set_stand_in([&attention, group = group_, sequence = sequence_](const Tensor& x) {
    const Tokens tokens = sequence->of(attention);
    const Tensor qkv = column_linear(x, attention.in_proj_weight, attention.in_proj_bias, group,
                                     tokens, sequence->length);
    Tensor mixed;
    {
      const OtherStreams region(*group, tokens == Tokens::kWhole);
      const double dropout = attention.is_training() ? attention.options.dropout : 0;
      mixed = ops::self_attention(qkv, attention.heads / group->size(),
                                  {.causal = attention.options.causal, .dropout = dropout});
    }
    return row_linear(mixed, attention.out_proj.weight, attention.out_proj.bias, group, tokens);
  });
}

void TensorParallel::cut(nn::Linear& first, nn::Linear& second) {
  WEFT_CHECK(first.weight.size(0) == second.weight.size(1),
             "tensor parallelism: a layer of {} features in front of one that takes {}",
             first.weight.size(0), second.weight.size(1));
  WEFT_CHECK(first.weight.size(0) % group_->size() == 0,
             "tensor parallelism: {} ranks do not divide the {} features of \"{}\"", group_->size(),
             first.weight.size(0), names_[first.weight.id()]);
  cut_parameters(cuts_of(first, second));
  if (second.bias.defined()) row_biases_.insert(second.bias.id());
  // The cut region begins behind the first layer and ends in front of the second. Of dealt-out
  // tokens random numbers differ already.
  first.set_stand_in([&first, group = group_, sequence = sequence_](const Tensor& x) {
    const Tokens tokens = sequence->of(first);
    const Tensor y = column_linear(x, first.weight, first.bias, group, tokens, sequence->length);
    if (tokens == Tokens::kWhole) switch_streams(*group);
    return y;
  });
  second.set_stand_in([&second, group = group_, sequence = sequence_](const Tensor& x) {
    const Tokens tokens = sequence->of(second);
    if (tokens == Tokens::kWhole) switch_streams(*group);
    return row_linear(x, second.weight, second.bias, group, tokens);
  });
}

void TensorParallel::cut_head(nn::Linear& head) {
  const int64_t classes = head.weight.size(0);
  WEFT_CHECK(classes >= group_->size(), "parallel head: {} ranks for {} classes", group_->size(),
             classes);
  cut_parameters(cuts_of_head(head));
  head.set_stand_in([&head, group = group_, classes](const Tensor& x) {
    const Tensor mine = column_linear(x, head.weight, head.bias, group, Tokens::kWhole);
    return head.is_training() ? mine : gather_from_ranks(mine, -1, group, classes);
  });
}

void TensorParallel::deal_out(const TokenRegion& region) {
  WEFT_CHECK(region.begin && region.end,
             "sequence parallelism: the model's structure does not say where tokens are dealt out "
             "and where they are put together");
  for (nn::Module* part : region.between) {
    for (const auto& [name, module] : part->named_modules()) {
      sequence_->holds.insert(module);
      if (auto* drop_path = dynamic_cast<nn::DropPath*>(module)) {
        drop_path->set_stand_in([drop_path, group = group_](const Tensor& x) {
          const OtherStreams common(*group, true);
          return drop_path->forward(x);
        });
      }
    }
    for (const auto& [name, parameter] : part->named_parameters()) {
      const auto known = names_.find(parameter.id());
      WEFT_CHECK(known != names_.end(), "sequence parallelism: \"{}\" is no parameter of the model",
                 name);
      // Those behind row-parallel layers are summed there.
      if (cut_of(known->second) || row_biases_.contains(parameter.id())) continue;
      if (!parameter.requires_grad()) continue;
      register_hook(parameter,
                    [group = group_](const Tensor& gradient) { return summed(gradient, *group); });
    }
  }
  region.begin->set_stand_in(
      [begin = region.begin, group = group_, sequence = sequence_](const Tensor& x) {
        sequence->length = x.size(-2);
        switch_streams(*group);
        return begin->forward(scatter_sequence(x, -2, group));
      });
  region.end->set_stand_in(
      [end = region.end, group = group_, sequence = sequence_](const Tensor& x) {
        const Tensor y = end->forward(x);
        switch_streams(*group);
        return join_sequence(y, -2, group, sequence->length);
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

namespace {

/// Where this rank's classes begin.
int64_t first_class(const Tensor& logits, int64_t classes, const Communicator& group) {
  const int64_t mine = even_part(classes, group.size(), group.rank());
  WEFT_CHECK(logits.dim() == 2 && logits.size(1) == mine,
             "parallel head: expected logits [N, {}] of {} classes on {} ranks, got {}", mine,
             classes, group.size(), logits);
  return even_begin(classes, group.size(), group.rank());
}

/// [N, 1]: ones, or zeros for rows that do not count.
Tensor counted_rows(const Tensor& labels, int64_t classes, DType dtype, int64_t ignore_index) {
  const int64_t rows = labels.size(0);
  if (is_floating(labels.dtype())) return ops::ones({rows, 1}, dtype, labels.device());
  if (labels.device().type == DeviceType::cpu) {
    const Tensor list = ops::contiguous(ops::cast(labels, DType::i64));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t c = list.data<int64_t>()[i];
      WEFT_CHECK(c == ignore_index || (c >= 0 && c < classes),
                 "parallel_cross_entropy: label {} at position {} is not one of the {} classes", c,
                 i, classes);
    }
  }
  const Tensor ignored =
      ops::full({}, static_cast<double>(ignore_index), labels.dtype(), labels.device());
  return ops::reshape(ops::cast(ops::ne(labels, ignored), dtype), {rows, 1});
}

}  // namespace

Tensor parallel_cross_entropy(const Tensor& logits, const Tensor& labels, int64_t classes,
                              const CommunicatorPtr& group,
                              const ops::CrossEntropyOptions& options) {
  const int64_t first = first_class(logits, classes, *group), rows = logits.size(0),
                mine = logits.size(1);
  const bool is_hard = !is_floating(labels.dtype());
  WEFT_CHECK(labels.shape() == (is_hard ? Shape{rows} : Shape{rows, classes}),
             "parallel_cross_entropy: labels must be integers [{}] or probabilities [{}, {}], got "
             "{}",
             rows, rows, classes, labels);
  const double smoothing = options.label_smoothing;
  WEFT_CHECK(smoothing >= 0 && smoothing <= 1,
             "parallel_cross_entropy: label_smoothing must lie in [0, 1], got {}", smoothing);
  const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor loss, softmax, target, total_target, row_scale;
  {
    const NoGrad guard;
    const Tensor counts = counted_rows(labels, classes, wide, options.ignore_index);
    // Of this rank's classes, and the sum over all: (1 - s) label + s / C.
    Tensor label;
    if (is_hard) {
      const Tensor indices = ops::to(ops::arange(first, first + mine), labels.device());
      const Tensor column = ops::reshape(ops::cast(labels, DType::i64), {rows, 1});
      label = ops::cast(ops::eq(column, indices), wide);
      total_target = counts;
    } else {
      label = ops::narrow(ops::cast(labels, wide), 1, first, mine);
      total_target = ops::sum(ops::cast(labels, wide), {1}, true) * (1 - smoothing) + smoothing;
    }
    target = (label * (1 - smoothing) + smoothing / static_cast<double>(classes)) * counts;

    const Tensor z = ops::cast(detach(logits), wide);
    const Tensor largest = ops::max(z, {1}, true);
    group->all_reduce(largest, ReduceOp::kMax).wait();
    const Tensor shifted = z - largest, e = ops::exp(shifted);
    // Together, for the latency of one.
    const Tensor sums =
        ops::stack({ops::sum(e, {1}, true), ops::sum(target * shifted, {1}, true)}, 0);
    group->all_reduce(sums).wait();
    const Tensor total = ops::select(sums, 0, 0), chosen = ops::select(sums, 0, 1);
    softmax = e / total;
    // 0/0 = NaN when every row is ignored, as in ops::cross_entropy.
    row_scale = counts / ops::sum(counts);
    loss = ops::sum((total_target * ops::log(total) - chosen) * row_scale);
  }
  return record("parallel_cross_entropy", {logits}, loss,
                {softmax, target, total_target, row_scale},
                [dtype = logits.dtype()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor d = b.saved(0) * b.saved(2) - b.saved(1);
                  return {ops::cast(d * b.saved(3) * b.dy(), dtype)};
                });
}

Tensor parallel_argmax(const Tensor& logits, int64_t classes, const CommunicatorPtr& group) {
  const NoGrad guard;
  const int64_t first = first_class(logits, classes, *group);
  const int ranks = group->size();
  const Tensor z = detach(logits);
  const Tensor best = ops::max(z, {1}, true);
  const Tensor index = ops::reshape(ops::argmax(z, 1), {-1, 1}) +
                       ops::full({}, static_cast<double>(first), DType::i64, logits.device());
  const std::vector<int64_t> one_each(ranks, 1);
  Gathering values(best, 1, one_each, *group), indices(index, 1, one_each, *group);
  // The first of equals is on the first of their ranks.
  const Tensor winner = ops::argmax(values.finish(ranks), 1);
  const Tensor mask =
      ops::eq(ops::reshape(winner, {-1, 1}), ops::to(ops::arange(0, ranks), logits.device()));
  return ops::sum(ops::cast(mask, DType::i64) * indices.finish(ranks), {1});
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
