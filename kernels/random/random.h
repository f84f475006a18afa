// Random tensors. The row-major element i is a function of (seed, stream, offset, i) alone: with
// block = philox4x32(seed, stream, offset + i / 4) it takes the word w = block[i % 4], and
// U = (w + 1/2) 2^-32.
//
//   uniform       low + (high - low) U, rounded down where it would round up to high
//   normal        mean + std Z, Z by Box and Muller, "A note on the generation of random normal
//                 deviates", 1958: elements 2k and 2k+1 are sqrt(-2 log U') times cos and sin of
//                 2 pi U'', where U' and U'' are theirs
//   trunc_normal  mean + std Z kept inside [low, high] by inversion of the normal distribution
//   bernoulli     1 with probability p, else 0: U < p
//   integers      low + floor(U (high - low)), low <= y < high: probabilities within 2^-32 of equal
//
// y: any strides, without repeated elements; assigned (=). bernoulli and integers take any dtype,
// the others floats. Arithmetic is in f64 and the result is rounded once to y's dtype.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

enum class Distribution : uint8_t { kUniform, kNormal, kTruncNormal, kBernoulli, kIntegers };

inline std::string_view name(Distribution distribution) {
  static constexpr std::string_view kNames[] = {"uniform", "normal", "trunc_normal", "bernoulli",
                                                "integers"};
  return kNames[static_cast<size_t>(distribution)];
}

struct RandomProblem {
  Tensor y;
  Distribution distribution = Distribution::kUniform;
  double low = 0, high = 1;  // uniform, trunc_normal, integers; low < high
  double mean = 0, std = 1;  // normal, trunc_normal; std > 0
  double p = 0.5;            // bernoulli
  uint64_t seed = 0, stream = 0, offset = 0;

  /// Blocks of the stream that the problem uses: the next draw starts at offset + blocks().
  uint64_t blocks() const { return (y.numel() + 3) / 4; }
  DType dtype() const { return y.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const {
    return fmt::format("random({}, {}, seed={}, stream={}, offset={})", y, name(distribution), seed,
                       stream, offset);
  }
};

inline bool random_fits_cuda(const RandomProblem& p) {
  return p.distribution != Distribution::kTruncNormal;
}

WEFT_DECLARE_OP(random, RandomProblem);

}  // namespace weft::kernels
