// ZeRO with whole tensors in fp8: FP8-LM's level 3 (Peng et al., arXiv:2310.18313, section 2.3;
// MS-AMP's O3).
//
// As fp8_gradients.h, but each matrix that products read has an owner among the ranks. Scales are
// of whole tensors, and so are what a rank owns: the largest matrix goes to the rank that has
// least, and so on (the paper's algorithm 1).
//
//   every rank   the weight that products read, e4m3
//   its owner    the gradient's sum over the ranks, e4m3; the master weight, f16; what the
//                optimizer keeps
//
//   1. When backward is over, codes of gradients go to the owner, which adds them as
//      fp8_gradients.h says (all_to_all).
//   2. The optimizer of a rank updates the masters that the rank owns.
//   3. Their codes of e4m3 go to all (all_gather), with an exponent each.
//
// A rank sends 2 (N-1)/N bytes for an element, as without owners, and the more the less evenly the
// matrices can be shared out. A device alone owns all. Checkpoints hold the masters.
#pragma once

#include "dist/strategy/strategy.h"

namespace weft::dist {

/// `world` null: one device.
std::unique_ptr<Strategy> make_fp8_zero(CommunicatorPtr world);

}  // namespace weft::dist
