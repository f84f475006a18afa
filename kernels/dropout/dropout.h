// Dropout (Srivastava et al., JMLR 2014), inverted: y = keep ? x / (1 - p) : 0.
//
// keep of the row-major element i: uniform_from_bits(w) >= p, where w is word i % 4 of
// philox4x32(seed, stream, offset + i / 4). The mask is a function of (seed, stream, offset) and
// the element's index alone, so it is never stored: the gradient is the same problem with dy as x.
// Where `moved` is given, offset stands for offset + *moved: a captured graph repeats its
// arguments, and draws other masks where the host has put another number there.
//
// x, y: the same shape and dtype (f64 f32 f16 bf16), any strides, y without repeated elements; y is
// assigned (=) and may be x itself. p in [0, 1]; p = 1 gives zeros. The factor 1 / (1 - p) is
// rounded to f32 (f64 for f64), the product to it and then to y's dtype.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/op.h"

namespace weft::kernels {

struct DropoutProblem {
  Tensor x, y;
  double p = 0;  // probability of a zero
  uint64_t seed = 0, stream = 0, offset = 0;
  Tensor moved;  // i64 of one element on the device of x; optional

  /// On a CPU, where `moved` can be read.
  uint64_t drawn_offset() const {
    return offset + (moved.defined() ? static_cast<uint64_t>(*moved.data<int64_t>()) : 0);
  }
  /// Blocks of the stream that the problem uses: the next draw starts at offset + blocks().
  uint64_t blocks() const { return (x.numel() + 3) / 4; }
  double factor() const { return p < 1 ? 1 / (1 - p) : 0; }
  /// uniform_from_bits(w) = ((w >> 9) + 1/2) 2^-23 >= p where w >> 9 is not below this.
  uint32_t threshold() const {
    return static_cast<uint32_t>(std::max(0.0, std::ceil(p * 0x1p23 - 0.5)));
  }
  DType dtype() const { return x.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const {
    return fmt::format("dropout({}, p={}, seed={}, stream={}, offset={})", x, p, seed, stream,
                       offset);
  }
};

WEFT_DECLARE_OP(dropout, DropoutProblem);

}  // namespace weft::kernels
