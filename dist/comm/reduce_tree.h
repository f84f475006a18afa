// The one order in which contributions of ranks are combined.
//
//   tree(lo, hi) = tree(lo, mid) op tree(mid, hi)
//   mid = lo + the largest power of two below hi - lo
//
// For each element alone, so that it does not matter how a buffer is cut. For powers of two the
// tree of 2N leaves is the tree of N pairs: micro-batches summed in this order give the same bits
// however many ranks hold them.
#pragma once

#include <span>

#include "dist/comm/communicator.h"

namespace weft::dist {

/// out[i] = op over inputs of inputs[r][i], for i in [0, n); out may be one of the inputs. f16 and
/// bf16 are combined in f32. kMean divides by the number of inputs. NaN wins in max and min.
void reduce_tree(DType dtype, ReduceOp op, std::span<const void* const> inputs, void* out,
                 int64_t n);

}  // namespace weft::dist
