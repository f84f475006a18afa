#include "dist/model_parallel/rank_collectives.h"

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "dist/model_parallel/rank_parts.h"

namespace weft::dist {
namespace {

/// The first `length` tokens of all ranks together, 0 meaning all.
Tensor whole_sequence(const Tensor& x, int64_t dim, Communicator& group, int64_t length) {
  const NoGrad guard;
  if (length == 0) length = x.size(dim) * group.size();
  return gather_tokens(x, dim, group).finish(length);
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
    y = gather_even_parts(detach(x), dim, length, *group);
  }
  return record("gather_from_ranks", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {part_of(b.dy(), {.dim = wrap_dim(dim, b.dy().dim(), "gather_from_ranks")}, *group)};
  });
}

Tensor scatter_to_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  Tensor y;
  {
    const NoGrad guard;
    y = equal_part(x, dim, *group, "scatter_to_ranks");
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
  const Tensor y = whole_sequence(x, dim, *group, length);
  return record("join_sequence", {x}, y, {}, [=](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {ops::contiguous(tokens_of_rank(b.dy(), dim, group->size(), group->rank()))};
  });
}

Tensor gather_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group, int64_t length) {
  const Tensor y = whole_sequence(x, dim, *group, length);
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

}  // namespace weft::dist
