#include "autograd/resting.h"

#include <cmath>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/view.h"
#include "kernels/binary/binary.h"
#include "kernels/fill/fill.h"
#include "kernels/fp8_quantize/fp8_quantize.h"

namespace weft {
namespace {

constexpr int kMostExponent = 126;  // 2^126 and 2^-126 are normal numbers of f32

double largest_of(DType format) { return format == DType::f16 ? 65504 : kernels::fp8_max(format); }

/// y = x 2^exponent in f32, rounded to y's dtype.
void scale_into(const Tensor& x, int exponent, const Tensor& y) {
  const double factor = exponent == LowBits::kNotFinite ? NAN : std::ldexp(1.0, exponent);
  const Tensor scalar = Tensor::empty({}, DType::f32, x.device());
  kernels::fill({.y = scalar, .value = factor});
  kernels::binary(
      {.op = kernels::BinaryOp::kMul, .a = x, .b = view::expand(scalar, x.shape()), .y = y});
}

/// A tensor that rests. Its storage owns it.
struct Rest {
  std::mutex mutex;  // of those that wake it at once
  LowBits bits;
  MemoryKind kind;
  uint64_t version = 0;  // of the numbers that the codes were made of
};

/// Of the storages that rest, while they live.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const Storage*, std::weak_ptr<Rest>> rests;
};

Registry& registry() {
  static Registry* const all = new Registry;  // storages may go when the program ends
  return *all;
}

std::shared_ptr<Rest> rest_of(const Tensor& x) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.rests.find(x.storage().get());
  return found == all.rests.end() ? nullptr : found->second.lock();
}

void widen(Rest& rest, const std::shared_ptr<Storage>& storage) {
  const std::lock_guard lock(rest.mutex);
  if (storage->is_resident()) return;
  const MemoryScope scope(MemoryKind::kGathered);
  const Tensor& codes = rest.bits.codes;
  const Tensor numbers = Tensor::empty(codes.shape(), DType::f32, codes.device());
  scale_into(codes,
             rest.bits.exponent == LowBits::kNotFinite ? LowBits::kNotFinite : -rest.bits.exponent,
             numbers);
  storage->take(*numbers.storage());
}

void check(DType format, const Tensor& x) {
  WEFT_CHECK(format == DType::f16 || format == DType::f8e4m3,
             "resting: expected the format f16 or f8e4m3, got {}", format);
  WEFT_CHECK(x.dtype() == DType::f32 && x.is_contiguous(),
             "resting: expected a contiguous f32 tensor, got {}", x);
}

}  // namespace

LowBits to_low_bits(DType format, const Tensor& x) {
  check(format, x);
  const Tensor amax = Tensor::empty({}, DType::f32, x.device());
  kernels::fp8_quantize({.x = x, .amax = amax});
  const double largest = amax.item();
  LowBits bits{Tensor::empty(x.shape(), format, x.device())};
  if (!std::isfinite(largest)) {
    bits.exponent = LowBits::kNotFinite;
  } else if (largest > 0) {
    const int exponent = std::ilogb(largest_of(format) / largest);
    bits.exponent = std::min(kMostExponent, std::max(-kMostExponent, exponent));
  }
  scale_into(x, bits.exponent, bits.codes);
  return bits;
}

void write_codes(const LowBits& bits, int exponent, const Tensor& target) {
  const bool is_finite = exponent != LowBits::kNotFinite && bits.exponent != LowBits::kNotFinite;
  scale_into(bits.codes, is_finite ? exponent - bits.exponent : LowBits::kNotFinite, target);
}

void rest_as(const LowBits& bits, Tensor x, MemoryKind kind) {
  check(bits.codes.dtype(), x);
  WEFT_ASSERT(bits.codes.shape() == x.shape() && bits.codes.is_contiguous());
  assign_memory(bits.codes, kind);
  if (const auto rest = rest_of(x)) {
    if (x.storage()->is_resident()) x.storage()->free();
    rest->bits = bits;
    rest->kind = kind;
    x.bump_version();
    rest->version = x.version();
    return;
  }
  const auto rest = std::make_shared<Rest>();
  rest->bits = bits;
  rest->kind = kind;
  // The storage knows itself by `place`, which it fills as soon as it is there.
  const auto place = std::make_shared<std::weak_ptr<Storage>>();
  const auto storage = std::make_shared<Storage>(nbytes(x.shape(), DType::f32), x.device(),
                                                 [rest, place] { widen(*rest, place->lock()); });
  *place = storage;
  rest->version = storage->version();
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.rests, [](const auto& entry) { return entry.second.expired(); });
    all.rests[storage.get()] = rest;
  }
  x.set_data(Tensor::view_of(storage, x.shape(), contiguous_strides(x.shape()), 0, DType::f32));
}

void rest_in(DType format, Tensor x, MemoryKind kind) { rest_as(to_low_bits(format, x), x, kind); }

bool rests(const Tensor& x) { return rest_of(x) != nullptr; }

void wake(const Tensor& x) {
  if (const auto rest = rest_of(x)) widen(*rest, x.storage());
}

void rest(const Tensor& x) {
  const auto rest = rest_of(x);
  if (!rest || !x.storage()->is_resident()) return;
  rest->bits = to_low_bits(rest->bits.codes.dtype(), x);
  assign_memory(rest->bits.codes, rest->kind);
  rest->version = x.version();
  x.storage()->free();
}

void let_go(const Tensor& x) {
  const auto rest_here = rest_of(x);
  if (!rest_here || !x.storage()->is_resident()) return;
  if (rest_here->version != x.version()) return rest(x);
  x.storage()->free();
}

LowBits low_bits(const Tensor& x) {
  rest(x);
  const auto rest = rest_of(x);
  return rest ? rest->bits : LowBits();
}

LowBits current_bits(DType format, const Tensor& x) {
  const auto rest = rest_of(x);
  if (!rest || rest->bits.codes.dtype() != format) return {};
  return x.storage()->is_resident() && rest->version != x.version() ? LowBits() : rest->bits;
}

}  // namespace weft
