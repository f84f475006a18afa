#include "kernels/dropout/dropout.h"

#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

/// The mask of (seed, stream, offset) applied to x; its own gradient is the same.
Tensor masked(const Tensor& x, double p, uint64_t seed, uint64_t stream, uint64_t offset) {
  Tensor y = raw::empty_like(x);
  kernels::dropout({.x = x, .y = y, .p = p, .seed = seed, .stream = stream, .offset = offset});
  return record("dropout", {x}, y, {}, [=](const Backward& b) -> Tensors {
    return {masked(b.dy(), p, seed, stream, offset)};
  });
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  raw::check_floating("dropout", x);
  WEFT_CHECK(p >= 0 && p <= 1, "dropout: the probability must lie in [0, 1], got {}", p);
  if (!training || p == 0) return x;
  Generator& g = generator();
  return masked(x, p, g.seed, g.stream, g.take(x.numel()));
}

}  // namespace weft::ops
