#include "autograd/autocast.h"

#include <unordered_map>

#include "autograd/narrow_copies.h"
#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft {
namespace {

/// A leaf's data as they were when they were cast.
class Source {
 public:
  Source() = default;
  explicit Source(const Tensor& x)
      : leaf_(x.autograd_handle()),
        storage_(x.storage()),
        version_(x.version()),
        offset_(x.offset()),
        shape_(x.shape()),
        strides_(x.strides()) {}
  bool is(const Tensor& x) const {
    return version_ == x.version() && offset_ == x.offset() && shape_ == x.shape() &&
           strides_ == x.strides() && storage_.lock() == x.storage() &&
           leaf_.lock() == x.autograd_handle();
  }

 private:
  std::weak_ptr<AutogradMeta> leaf_;
  std::weak_ptr<Storage> storage_;
  uint64_t version_ = 0;
  int64_t offset_ = 0;
  Shape shape_;
  Strides strides_;
};

struct CachedCast {
  Source source;
  Tensor cast;
};

/// A cast that the tape alone holds, and lets go of as backward comes by.
struct TapesCast {
  Source source;
  std::weak_ptr<Storage> cast;
  DType dtype = DType::f32;
};

struct State {
  DType dtype = DType::f32;
  int depth = 0;
  // A weight's casts, by its metadata: recorded ones for ops that see an ordinary tensor, raw ones
  // for those that return its gradient themselves.
  std::unordered_map<const void*, CachedCast> recorded, raw;
  std::unordered_map<const void*, TapesCast> tapes;
};

thread_local State state;

bool is_parameter(const Tensor& x) { return x.autograd() && x.autograd()->requires_grad; }

bool is_current(const CachedCast& entry, const Tensor& x, DType dtype) {
  return entry.cast.defined() && entry.cast.dtype() == dtype && entry.source.is(x);
}

/// The cast of a leaf, made at most once per version of its data.
template <class Make>
Tensor cached(std::unordered_map<const void*, CachedCast>& cache, const Tensor& x, DType dtype,
              Make make) {
  CachedCast& entry = cache[x.autograd()];
  if (!is_current(entry, x, dtype)) {
    const Source source(x);
    entry = {source, make()};
  }
  return entry.cast;
}

/// The raw cast of a leaf, made anew where no tape holds it.
Tensor from_tape(const Tensor& x, DType dtype) {
  TapesCast& entry = state.tapes[x.autograd()];
  const std::shared_ptr<Storage> held = entry.cast.lock();
  if (held && entry.dtype == dtype && entry.source.is(x)) {
    return Tensor::view_of(held, x.shape(), contiguous_strides(x.shape()), 0, dtype);
  }
  const Tensor cast = raw::contiguous(x, dtype);
  entry = {Source(x), cast.storage(), dtype};
  return cast;
}

bool is_castable(const Tensor& x) {
  return x.dtype() == DType::f32 || x.dtype() == DType::f16 || x.dtype() == DType::bf16;
}

}  // namespace

Autocast::Autocast(DType dtype) : ScopedValue(state.dtype, dtype) {
  WEFT_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
             "Autocast: expected bf16, f16 or f32, got {}", dtype);
  ++state.depth;
}

Autocast::~Autocast() {
  if (--state.depth > 0) return;
  state.recorded.clear();
  state.raw.clear();
  state.tapes.clear();
}

DType autocast_dtype() { return state.dtype; }

Tensor autocast_cast(const Tensor& x) {
  if (state.dtype == DType::f32 || x.dtype() == state.dtype || !is_castable(x)) return x;
  // A cast made while nothing is recorded carries no history: it must not serve a recorded use.
  if (!is_parameter(x) || !grad_enabled()) return ops::cast(x, state.dtype);
  return cached(state.recorded, x, state.dtype, [&] { return ops::cast(x, state.dtype); });
}

DType autocast_products(const Tensor& x, const Tensor& weight) {
  const DType low = state.dtype, own = promote(x.dtype(), weight.dtype());
  return low == DType::f32 || own == DType::f64 ? own : low;
}

Tensor autocast_f32(const Tensor& x) {
  if (state.dtype == DType::f32 || !is_castable(x)) return x;
  return ops::cast(x, DType::f32);
}

Tensor autocast_weight(const Tensor& weight, DType dtype) {
  if (weight.dtype() == dtype) return detach(weight);
  // A view's metadata go with it, and the next view's may lie in their place.
  if (state.depth == 0 || !weight.autograd() || !is_leaf(weight)) {
    return raw::contiguous(weight, dtype);
  }
  if (const Tensor copy = narrow_copy(weight, dtype)) return copy;
  // On a CPU a cast costs little beside the products, and memory is at its most in backward.
  const auto kept = state.raw.find(weight.autograd());
  const bool is_kept = kept != state.raw.end() && is_current(kept->second, weight, dtype);
  if (weight.device().type == DeviceType::cpu && grad_enabled() && !is_kept) {
    return from_tape(weight, dtype);
  }
  return cached(state.raw, weight, dtype, [&] { return raw::contiguous(weight, dtype); });
}

}  // namespace weft
