// Exact sums over tensors and ranks. Gradient norms over shards are formed so that they depend
// neither on where shards begin nor on how many there are: squares of f32, f16 and bf16 are exact
// in f64, and their sum is rounded once.
#pragma once

#include <vector>

#include "dist/comm/communicator.h"
#include "numerics/exact_sum.h"

namespace weft::dist {

using numerics::ExactSum;

/// Makes `sum` the sum over the ranks of a group.
void all_reduce(ExactSum& sum, Communicator& group);

/// Adds the squares of all elements, each rounded to f64 (exact but for f64 itself).
void add_squares(ExactSum& sum, const Tensor& x);

/// The 2-norm of tensors of which every rank of `group` holds a part (null: all on this rank).
double exact_norm(const std::vector<Tensor>& tensors, Communicator* group);

}  // namespace weft::dist
