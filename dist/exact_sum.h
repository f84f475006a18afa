// Sums without rounding: the same bits for any order, any cut, any number of ranks.
//
// A fixed-point number wide enough for every double, in limbs of 32 bits held in 64 so that carries
// wait (Neal: "Fast Exact Summation Using Small and Large Superaccumulators", arXiv:1505.05571).
// Rounded once, when it is read. Gradient norms over shards are formed so: squares of f32, f16 and
// bf16 are exact in f64, so the norm depends neither on where shards begin nor on how many there
// are.
#pragma once

#include <array>
#include <cstdint>

#include "dist/communicator.h"

namespace weft::dist {

class ExactSum {
 public:
  void add(double x);
  void add(const ExactSum& other);
  /// The sum over the ranks of a group.
  void all_reduce(Communicator& group);
  /// The sum, to within one unit in the last place, a function of the exact value alone. NaN and
  /// infinities as IEEE addition has them.
  double value() const;

 private:
  void normalize();

  static constexpr int kLimbs = 70;
  std::array<int64_t, kLimbs> limbs_{};  // limb k counts 2^(32 k - 1074)
  std::array<int64_t, 3> specials_{};    // NaN, +infinity, -infinity
  int64_t since_normalized_ = 0;
};

/// Adds the squares of all elements, each rounded to f64 (exact but for f64 itself).
void add_squares(ExactSum& sum, const Tensor& x);

/// The 2-norm of tensors of which every rank of `group` holds a part (null: all on this rank).
double exact_norm(const std::vector<Tensor>& tensors, Communicator* group);

}  // namespace weft::dist
