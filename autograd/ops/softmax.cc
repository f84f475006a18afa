#include "kernels/softmax/softmax.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

Tensor compute(std::string_view name, const Tensor& input, int64_t dim, bool log) {
  raw::check_floating(name, input);
  const Tensor x = autocast_f32(input);
  const int axis = wrap_dim(dim, x.dim(), name);
  Tensor y = raw::empty_like(x);
  kernels::softmax({.x = x, .y = y, .axis = axis, .log = log});
  return record(name, {x}, y, {y}, [axis, log](const Backward& b) -> Tensors {
    const Tensor y = b.saved(0);
    const Tensor& dy = b.dy();
    if (b.create_graph()) {
      if (log) return {sub(dy, mul(exp(y), sum(dy, {axis}, true)))};
      return {mul(y, sub(dy, sum(mul(dy, y), {axis}, true)))};
    }
    Tensor dx = raw::empty_like(y);
    kernels::softmax({.y = y, .dy = cast(dy, y.dtype()), .dx = dx, .axis = axis, .log = log});
    return {dx};
  });
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) { return compute("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return compute("log_softmax", x, dim, true); }

}  // namespace weft::ops
