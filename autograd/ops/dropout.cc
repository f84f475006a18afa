#include "kernels/dropout/dropout.h"

#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

/// The mask at the generator's place applied to x; its own gradient is the same.
Tensor masked(const Tensor& x, double p, const Generator& g, const Tensor& moved) {
  Tensor y = raw::empty_like(x);
  kernels::dropout({.x = x,
                    .y = y,
                    .p = p,
                    .seed = g.seed,
                    .stream = g.stream,
                    .offset = g.offset,
                    .moved = moved});
  return record("dropout", {x}, y, {},
                [=](const Backward& b) -> Tensors { return {masked(b.dy(), p, g, moved)}; });
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  raw::check_floating("dropout", x);
  WEFT_CHECK(p >= 0 && p <= 1, "dropout: the probability must lie in [0, 1], got {}", p);
  if (!training || p == 0) return x;
  const Tensor moved = moved_since_capture(x.device());
  const Generator place = generator();
  generator().take(x.numel());
  return masked(x, p, place, moved);
}

}  // namespace weft::ops
