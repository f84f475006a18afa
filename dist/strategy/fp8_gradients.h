// Gradients in fp8: FP8-LM's level 1 (Peng et al., arXiv:2310.18313, section 2.1; MS-AMP's O1).
//
// The gradient of a matrix that products read becomes codes of e4m3 with one scale as soon as
// backward has it (autograd/resting.h): a byte an element. On several ranks, which hold the whole
// model each as under ddp, codes travel when backward is over:
//
//   1. The ranks take the smallest of their exponents of each matrix, 4 bytes each, and bring their
//      codes to it. The exponent is one of a power of two, so that only what falls below the
//      format's normal numbers is rounded again.
//   2. Each gets the other ranks' codes of its part (all_to_all) and adds them in f32, exactly.
//   3. Sums, divided by the power of two that makes room for N of them, are rounded to codes, which
//      every rank gets (all_gather).
//
// A rank sends 2 (N-1)/N bytes for an element, a quarter of ddp's. Other gradients, of vectors and
// convolutions, are summed in f32. Nothing overlaps with backward.
#pragma once

#include <memory>

#include "dist/strategy/strategy.h"

namespace weft::dist {

/// `world` null: one device.
std::unique_ptr<Strategy> make_fp8_gradients(CommunicatorPtr world);

}  // namespace weft::dist
