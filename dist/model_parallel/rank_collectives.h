// Differentiable collectives: what stands where the work of a layer is dealt out to ranks and where
// it is put together again (Shoeybi et al., arXiv:1909.08053; of sequences Korthikanti et al.,
// arXiv:2205.05198). Each is differentiable once.
#pragma once

#include "dist/comm/communicator.h"

namespace weft::dist {

/// x itself; its gradient is summed over the ranks. In front of what every rank does its part of.
Tensor copy_to_ranks(const Tensor& x, const CommunicatorPtr& group);
/// The sum over ranks; the gradient of each term is the gradient of the sum.
Tensor reduce_from_ranks(const Tensor& x, const CommunicatorPtr& group);
/// The ranks' x one after another along a dimension; the gradient is this rank's part. With a
/// `length` the parts are those of even_part(), otherwise all of one size.
Tensor gather_from_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                         int64_t length = 0);

// Of sequences, dealt out in parts of ceil(T / N) that are filled up with zeros.

/// This rank's part of x along a dimension; the gradient is put together.
Tensor scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group);
/// The first `length` of the ranks' parts put together, 0 meaning all of them; the gradient is this
/// rank's part.
Tensor join_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                     int64_t length = 0);
/// The same, but every rank then does something else with the whole: the gradients are summed, each
/// rank getting its part.
Tensor gather_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                       int64_t length = 0);
/// This rank's part of the sum over ranks; the gradient is put together.
Tensor reduce_scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group);

}  // namespace weft::dist
