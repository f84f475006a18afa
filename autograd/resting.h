// Tensors that rest in fewer bits: f32 while somebody computes with them, codes of f16 or f8e4m3
// with one scale in between.
//
//   rest_in(DType::f16, weight);       // from here on 2 bytes an element
//   optimizer.step();                  // who touches it finds f32: value = code / 2^exponent
//   rest(weight);                      // what it became is rounded to codes again
//
// The scale of a tensor is the power of two that brings its largest magnitude into the upper half
// of the format's range. So numbers change by the format's rounding alone, and codes made of
// decoded numbers are the same codes. The scaled tensors of FP8-LM (Peng et al., arXiv:2310.18313,
// section 2) are this.
//
// A tensor with an infinite or NaN element comes back as NaNs, all of it: nothing hides in codes.
#pragma once

#include <vector>

#include "core/memory_account.h"
#include "core/tensor.h"

namespace weft {

/// What a tensor rests as.
struct LowBits {
  Tensor codes;      // contiguous, in the format and the tensor's shape
  int exponent = 0;  // in [-126, 126], or kNotFinite

  static constexpr int kNotFinite = -1000;
};

/// Of an f32 tensor. `format`: f16 or f8e4m3.
LowBits to_low_bits(DType format, const Tensor& x);
/// The codes of the same numbers at another exponent, rounded anew where they become smaller, into
/// a tensor of their format and shape.
void write_codes(const LowBits& bits, int exponent, const Tensor& target);

/// Makes a contiguous f32 tensor, and every handle on it, rest in the format. Codes are counted as
/// memory of `kind`, numbers at hand as kGathered. Throws Error for another tensor or format.
void rest_in(DType format, Tensor x, MemoryKind kind = MemoryKind::kActivations);
/// The same, with these codes instead of the tensor's numbers; of one that rests already, instead
/// of its codes, also for those who look on without history.
void rest_as(const LowBits& bits, Tensor x, MemoryKind kind = MemoryKind::kActivations);

/// Whether it was made to; the others here do nothing to a tensor that was not.
bool rests(const Tensor& x);
/// Has the numbers at hand, as touching an element does.
void wake(const Tensor& x);
/// Rounds the numbers at hand to codes and lets their memory go.
void rest(const Tensor& x);
/// Lets the numbers' memory go; rounds them to codes if an op changed them in place.
void let_go(const Tensor& x);
/// Its codes, brought up to date; undefined where it does not rest.
LowBits low_bits(const Tensor& x);
/// The same of one that rests in this format, if they are up to date; otherwise undefined. Numbers
/// at hand stay there.
LowBits current_bits(DType format, const Tensor& x);

}  // namespace weft
