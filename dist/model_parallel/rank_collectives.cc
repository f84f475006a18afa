#include "dist/model_parallel/rank_collectives.h"

#include <functional>
#include <utility>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "dist/model_parallel/rank_parts.h"

namespace weft::dist {
namespace {

using Function = std::function<Tensor(const Tensor&)>;

/// function(x), recorded with what its gradient becomes for x.
Tensor recorded(const char* name, const Tensor& x, const Function& function, Function gradient) {
  Tensor y;
  {
    const NoGrad guard;
    y = function(detach(x));
  }
  return record(name, {x}, y, {}, [gradient = std::move(gradient)](const Backward& b) -> Tensors {
    b.require_no_graph();
    return {gradient(b.dy())};
  });
}

/// The first `length` tokens of all ranks together, 0 meaning all.
Function gathering(int64_t dim, const CommunicatorPtr& group, int64_t length) {
  return [=](const Tensor& x) {
    const int64_t all = length == 0 ? x.size(dim) * group->size() : length;
    return gather_tokens(x, dim, *group).finish(all);
  };
}

/// This rank's tokens of x, or of the sum of the ranks' x.
Function own_tokens(int64_t dim, const CommunicatorPtr& group) {
  return [=](const Tensor& x) {
    return ops::contiguous(tokens_of_rank(x, dim, group->size(), group->rank()));
  };
}
Function own_sums(int64_t dim, const CommunicatorPtr& group) {
  return [=](const Tensor& x) { return Scattering(x, dim, *group).finish(); };
}

Function sum_over(const CommunicatorPtr& group) {
  return [=](const Tensor& x) { return summed(x, *group); };
}
Tensor identity(const Tensor& x) { return x; }

}  // namespace

Tensor copy_to_ranks(const Tensor& x, const CommunicatorPtr& group) {
  return recorded("copy_to_ranks", x, identity, sum_over(group));
}

Tensor reduce_from_ranks(const Tensor& x, const CommunicatorPtr& group) {
  return recorded("reduce_from_ranks", x, sum_over(group), identity);
}

Tensor gather_from_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                         int64_t length) {
  if (length == 0) length = x.size(dim) * group->size();
  return recorded(
      "gather_from_ranks", x,
      [&](const Tensor& part) { return gather_even_parts(part, dim, length, *group); },
      [=](const Tensor& dy) {
        return part_of(dy, {.dim = wrap_dim(dim, dy.dim(), "gather_from_ranks")}, *group);
      });
}

Tensor scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  return recorded("scatter_sequence", x, own_tokens(dim, group),
                  gathering(dim, group, x.size(dim)));
}

Tensor join_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group, int64_t length) {
  return recorded("join_sequence", x, gathering(dim, group, length), own_tokens(dim, group));
}

Tensor gather_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group, int64_t length) {
  return recorded("gather_sequence", x, gathering(dim, group, length), own_sums(dim, group));
}

Tensor reduce_scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group) {
  return recorded("reduce_scatter_sequence", x, own_sums(dim, group),
                  gathering(dim, group, x.size(dim)));
}

}  // namespace weft::dist
