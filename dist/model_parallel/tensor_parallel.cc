#include "dist/model_parallel/tensor_parallel.h"

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/memory_account.h"
#include "dist/model_parallel/parallel_layers.h"
#include "dist/model_parallel/rank_collectives.h"
#include "nn/meta.h"

namespace weft::dist {
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
    const NoGrad guard;
    parameter.set_data(ops::clone(part_of(parameter, cut, *group_)));  // the whole is given back
  }
}

void TensorParallel::cut(nn::MultiheadAttention& attention) {
  WEFT_CHECK(attention.heads % group_->size() == 0, "attention: {} ranks do not divide {} heads",
             group_->size(), attention.heads);
  cut_parameters(cuts_of(attention));
  if (attention.out_proj.bias.defined()) row_biases_.insert(attention.out_proj.bias.id());
  attention.set_stand_in([&attention, group = group_, sequence = sequence_](const Tensor& x) {
    const Tokens tokens = sequence->of(attention);
    const Tensor qkv = column_parallel_linear(x, attention.in_proj_weight, attention.in_proj_bias,
                                              group, tokens, sequence->length);
    // The cut region. Of dealt-out tokens random numbers differ already.
    if (tokens == Tokens::kWhole) switch_streams(*group);
    const Tensor mixed =
        ops::self_attention(qkv, attention.heads / group->size(), attention.current_options());
    if (tokens == Tokens::kWhole) switch_streams(*group);
    return row_parallel_linear(mixed, attention.out_proj.weight, attention.out_proj.bias, group,
                               tokens);
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
  // The cut region begins behind the first layer and ends in front of the second.
  first.set_stand_in([&first, group = group_, sequence = sequence_](const Tensor& x) {
    const Tokens tokens = sequence->of(first);
    const Tensor y =
        column_parallel_linear(x, first.weight, first.bias, group, tokens, sequence->length);
    if (tokens == Tokens::kWhole) switch_streams(*group);
    return y;
  });
  second.set_stand_in([&second, group = group_, sequence = sequence_](const Tensor& x) {
    const Tokens tokens = sequence->of(second);
    if (tokens == Tokens::kWhole) switch_streams(*group);
    return row_parallel_linear(x, second.weight, second.bias, group, tokens);
  });
}

void TensorParallel::cut_head(nn::Linear& head) {
  const int64_t classes = head.weight.size(0);
  WEFT_CHECK(classes >= group_->size(), "parallel head: {} ranks for {} classes", group_->size(),
             classes);
  cut_parameters(cuts_of_head(head));
  head.set_stand_in([&head, group = group_, classes](const Tensor& x) {
    const Tensor mine = column_parallel_linear(x, head.weight, head.bias, group, Tokens::kWhole);
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
          switch_streams(*group);
          const Tensor y = drop_path->forward(x);
          switch_streams(*group);
          return y;
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

}  // namespace weft::dist
