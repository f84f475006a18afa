#include "dist/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "core/parallel.h"
#include "core/transfer.h"

namespace weft::dist {
namespace {

constexpr int64_t kMask = 0xffffffff;
constexpr int64_t kCarryLimit = int64_t{1} << 29;  // additions of three 32-bit pieces fit 63 bits

}  // namespace

void ExactSum::add(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int field = static_cast<int>(bits >> 52 & 0x7ff);
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  if (field == 0x7ff) {
    ++specials_[mantissa != 0 ? 0 : bits >> 63 ? 2 : 1];
    return;
  }
  if (field != 0) mantissa |= uint64_t{1} << 52;
  const int position = field == 0 ? 0 : field - 1;  // of the mantissa's last bit, from 2^-1074
  const int limb = position >> 5, shift = position & 31;
  const int64_t low = static_cast<int64_t>((mantissa << shift) & kMask);
  const int64_t middle = static_cast<int64_t>((mantissa >> (32 - shift)) & kMask);
  const int64_t high = shift == 0 ? 0 : static_cast<int64_t>(mantissa >> (64 - shift));
  const int64_t sign = bits >> 63 ? -1 : 1;
  limbs_[limb] += sign * low;
  limbs_[limb + 1] += sign * middle;
  limbs_[limb + 2] += sign * high;
  if (++since_normalized_ >= kCarryLimit) normalize();
}

void ExactSum::normalize() {
  for (int k = 0; k + 1 < kLimbs; ++k) {
    const int64_t carry = limbs_[k] >> 32;  // towards minus infinity
    limbs_[k] &= kMask;
    limbs_[k + 1] += carry;
  }
  since_normalized_ = 1;
}

void ExactSum::add(const ExactSum& other) {
  ExactSum theirs = other;
  theirs.normalize();
  normalize();
  for (int k = 0; k < kLimbs; ++k) limbs_[k] += theirs.limbs_[k];
  for (int k = 0; k < 3; ++k) specials_[k] += theirs.specials_[k];
  ++since_normalized_;
}

void ExactSum::all_reduce(Communicator& group) {
  normalize();
  const Tensor all = Tensor::empty({kLimbs + 3}, DType::i64);
  int64_t* data = all.data<int64_t>();
  std::copy(limbs_.begin(), limbs_.end(), data);
  std::copy(specials_.begin(), specials_.end(), data + kLimbs);
  group.all_reduce(all).wait();
  std::copy(data, data + kLimbs, limbs_.begin());
  std::copy(data + kLimbs, data + kLimbs + 3, specials_.begin());
  normalize();
}

double ExactSum::value() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (specials_[0] > 0 || (specials_[1] > 0 && specials_[2] > 0)) return std::nan("");
  if (specials_[1] > 0) return kInfinity;
  if (specials_[2] > 0) return -kInfinity;
  ExactSum x = *this;
  x.normalize();
  const bool is_negative = x.limbs_[kLimbs - 1] < 0;
  if (is_negative) {
    for (int64_t& limb : x.limbs_) limb = -limb;
    x.normalize();
  }
  // All limbs are positive now: from the lowest up, what is lost lies below the last bit.
  double result = 0;
  for (int k = 0; k < kLimbs; ++k) {
    if (x.limbs_[k] != 0) result += std::ldexp(static_cast<double>(x.limbs_[k]), 32 * k - 1074);
  }
  return is_negative ? -result : result;
}

void add_squares(ExactSum& sum, const Tensor& x) {
  WEFT_CHECK(is_floating(x.dtype()) && x.is_contiguous(),
             "add_squares: expected a contiguous floating tensor, got {}", x);
  const Tensor values = to_device(x, Device{});
  std::mutex mutex;
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* data = values.data<T>();
    parallel_for(x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      ExactSum part;
      for (int64_t i = begin; i < end; ++i) {
        const double value = to_double(data[i]);
        part.add(value * value);
      }
      std::lock_guard lock(mutex);
      sum.add(part);  // in any order
    });
  });
}

double exact_norm(const std::vector<Tensor>& tensors, Communicator* group) {
  ExactSum sum;
  for (const Tensor& tensor : tensors) add_squares(sum, tensor);
  if (group) sum.all_reduce(*group);
  return std::sqrt(sum.value());
}

}  // namespace weft::dist
