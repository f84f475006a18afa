#include <algorithm>
#include <limits>

#include "core/view.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {
namespace {

// As far as memory of its own is aligned: vendors' kernels take that for granted.
constexpr int64_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xA5;

template <class Make>
Tensor filled(const Shape& shape, DType dtype, Make&& make) {
  Tensor tensor = Tensor::empty(shape, dtype);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    T* data = tensor.data<T>();
    for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = from_double<T>(make(i));
  });
  return tensor;
}

double poison(DType dtype) {
  return is_floating(dtype)        ? std::numeric_limits<double>::quiet_NaN()
         : dtype == DType::boolean ? 1
                                   : 0x7f;
}

void copy_elements(const Tensor& from, const Tensor& to) {
  const size_t size = from.itemsize();
  std::vector<const char*> sources;
  sources.reserve(from.numel());
  for_each_offset(from.shape(), from.strides(),
                  [&](int64_t i) { sources.push_back(static_cast<char*>(from.raw()) + i * size); });
  auto source = sources.begin();
  for_each_offset(to.shape(), to.strides(), [&](int64_t i) {
    std::memcpy(static_cast<char*>(to.raw()) + i * size, *source++, size);
  });
}

/// Strides with a gap in every dimension, and the elements they span.
std::pair<Strides, int64_t> gapped(const Shape& shape) {
  Strides strides = Strides::filled(shape.size(), 1);
  int64_t step = 2;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step = step * std::max<int64_t>(shape[i], 1) + 1;
  }
  return {strides, step};
}

}  // namespace

uint64_t case_seed(std::string_view op, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (std::string_view part : {op, std::string_view("/"), name}) {
    for (unsigned char c : part) hash = (hash ^ c) * 0x100000001b3u;
  }
  return hash;
}

Tensor Inputs::normal(const Shape& shape, DType dtype, double scale, double shift) {
  return filled(shape, dtype, [&](int64_t) { return random_.normal() * scale + shift; });
}

Tensor Inputs::integers(const Shape& shape, DType dtype, int64_t low, int64_t high) {
  return filled(shape, dtype, [&](int64_t) {
    return static_cast<double>(low + static_cast<int64_t>(random_.below(high - low + 1)));
  });
}

Tensor Inputs::uniform(const Shape& shape, DType dtype, double low, double high) {
  return filled(shape, dtype, [&](int64_t) { return low + (high - low) * random_.uniform(); });
}

Tensor Inputs::values(const std::vector<double>& values, const Shape& shape, DType dtype) {
  return filled(shape, dtype, [&](int64_t i) { return values[i % values.size()]; });
}

Tensor Inputs::strided(const Tensor& x) {
  const auto [strides, span] = gapped(x.shape());
  Tensor buffer =
      Tensor::full({span + 1}, is_floating(x.dtype()) ? poison(x.dtype()) : 1, x.dtype());
  Tensor result = Tensor::view_of(buffer.storage(), x.shape(), strides, 1, x.dtype());
  copy_elements(x, result);
  return result;
}

Tensor Inputs::guarded(const Shape& shape, const Strides& strides, int64_t span, DType dtype) {
  const int64_t size = weft::itemsize(dtype);
  Tensor buffer = Tensor::empty({span * size + 2 * kGuardBytes}, DType::u8);
  std::memset(buffer.raw(), kGuard, buffer.nbytes());
  Tensor output = Tensor::view_of(buffer.storage(), shape, strides, kGuardBytes / size, dtype);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    const T value = from_double<T>(poison(dtype));
    for_each_offset(shape, strides, [&](int64_t i) { output.data<T>()[i] = value; });
  });
  outputs_.push_back(output);
  return output;
}

Tensor Inputs::output(const Shape& shape, DType dtype) {
  return guarded(shape, contiguous_strides(shape), weft::numel(shape), dtype);
}

Tensor Inputs::inout(const Tensor& initial) {
  Tensor result = output(initial.shape(), initial.dtype());
  copy_elements(initial, result);
  return result;
}

Tensor Inputs::strided_output(const Shape& shape, DType dtype) {
  const auto [strides, span] = gapped(shape);
  return guarded(shape, strides, span, dtype);
}

Tensor Inputs::row_strided_output(const Shape& shape, DType dtype) {
  Shape wider = shape;
  wider[wider.size() - 1] += 5;
  return guarded(shape, contiguous_strides(wider), weft::numel(wider), dtype);
}

bool Inputs::guards_are_intact() const {
  for (const Tensor& output : outputs_) {
    const auto* bytes = static_cast<const unsigned char*>(output.storage()->data());
    const size_t size = output.storage()->bytes();
    if (output.is_contiguous()) {
      const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
      const size_t first = output.offset() * output.itemsize();
      if (!std::all_of(bytes, bytes + first, is_guard) ||
          !std::all_of(bytes + first + output.nbytes(), bytes + size, is_guard)) {
        return false;
      }
      continue;
    }
    std::vector<bool> written(size, false);
    for_each_offset(output.shape(), output.strides(), [&](int64_t i) {
      const size_t first = (output.offset() + i) * output.itemsize();
      for (size_t b = 0; b < output.itemsize(); ++b) written[first + b] = true;
    });
    for (size_t b = 0; b < size; ++b) {
      if (!written[b] && bytes[b] != kGuard) return false;
    }
  }
  return true;
}

}  // namespace weft::kernels
