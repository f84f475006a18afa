#include "nn/meta.h"

namespace weft::nn {
namespace {

thread_local bool is_meta = false;

}  // namespace

Tensor meta(const Shape& shape, DType dtype, Device device) {
  const auto storage = std::make_shared<Storage>(nbytes(shape, dtype), device, [] {
    WEFT_FAIL("a tensor on the meta device has no elements; what wraps its module gives it some");
  });
  return Tensor::view_of(storage, shape, contiguous_strides(shape), 0, dtype);
}

MetaScope::MetaScope() : ScopedValue(is_meta, true) {}

Tensor blank(const Shape& shape, DType dtype) {
  return is_meta ? meta(shape, dtype, {}) : Tensor::empty(shape, dtype);
}

bool has_memory(const Tensor& x) { return x.storage()->is_resident(); }

void materialize(Tensor x) {
  if (!has_memory(x)) x.set_data(Tensor::empty(x.shape(), x.dtype(), x.device()));
}

void materialize(const Module& module) {
  for (const auto& [name, tensor] : module.named_parameters()) materialize(tensor);
  for (const auto& [name, tensor] : module.named_buffers()) materialize(tensor);
}

void dematerialize(Tensor x) { x.set_data(meta(x.shape(), x.dtype(), x.device())); }

}  // namespace weft::nn
