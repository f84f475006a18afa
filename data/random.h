// Random numbers of the data pipeline: one Philox stream per (seed, purpose, epoch, index).
//
// What happens to a sample depends on these four alone, never on which worker prepares it, when, or
// what was drawn before. `index` is a sample's or a batch's; each owns 2^24 Philox blocks.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/philox.h"

namespace weft::data {

enum class Purpose : uint64_t {
  kShuffle = 1,
  kAugment = 2,
  kMix = 3,
  kHoldOut = 4,
  kBuiltin = 5,
  kText = 6,
  kGrammar = 7,
  kMirror = 8,
};

inline Philox random_stream(uint64_t seed, Purpose purpose, int64_t epoch, int64_t index = 0) {
  // The word "data" keeps these streams apart from those of initialisers and dropout.
  constexpr uint64_t kData = 0x64617461u;
  const uint64_t stream =
      kData << 32 | static_cast<uint64_t>(purpose) << 28 | static_cast<uint64_t>(epoch);
  return Philox(seed, stream, static_cast<uint64_t>(index) << 24);
}

/// A sample in an epoch: what its augmentation is drawn from.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t sample = 0;
};

/// True with the given probability.
inline bool chance(Philox& random, double probability) { return random.uniform() < probability; }

/// The logarithm of a Gamma(shape, 1) variable: Marsaglia and Tsang, "A Simple Method for
/// Generating Gamma Variables", 2000. In logarithms, so that shapes near 0 do not underflow.
inline double log_gamma_variable(Philox& random, double shape) {
  if (shape < 1) {
    const double boosted = log_gamma_variable(random, shape + 1);
    return boosted + std::log(random.uniform()) / shape;
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = random.normal(), v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log(random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return std::log(d * v);
    }
  }
}

/// A Beta(alpha, alpha) variable, in [0, 1].
inline double beta_variable(Philox& random, double alpha) {
  const double x = log_gamma_variable(random, alpha), y = log_gamma_variable(random, alpha);
  return 1 / (1 + std::exp(y - x));
}

}  // namespace weft::data
