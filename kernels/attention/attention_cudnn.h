// When cuDNN can compute attention.
#pragma once

#include "kernels/attention/attention.h"

namespace weft::kernels {

/// f16 or bf16 on a device, with P and dS rounded to it, heads of up to 128 columns and a multiple
/// of 8 whose rows begin at multiples of 16 bytes, ieee numerics, no dropout, whose masks are
/// others there; the library was found, and has a plan.
bool attention_fits_cudnn(const AttentionProblem& problem);

}  // namespace weft::kernels
