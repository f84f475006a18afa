// A function of 16-bit floats as a table: its value for each of the 65536 codes.
#pragma once

#include <cstdint>
#include <mutex>
#include <numeric>
#include <vector>

#include "core/tensor.h"

namespace weft::kernels {

template <class T>
class CodeTable {
 public:
  /// make(x) is the function's value, a tensor of T's, for x, the numbers of all codes of a dtype
  /// in their order. It is called once, in whichever thread comes first.
  template <class Make>
  const T* values(DType dtype, Make&& make) {
    std::call_once(once_, [&] {
      constexpr int64_t kCodes = 1 << 16;
      const Tensor x = Tensor::empty({kCodes}, dtype);
      auto* const codes = static_cast<uint16_t*>(x.raw());
      std::iota(codes, codes + kCodes, uint16_t{0});
      const Tensor y = make(x);
      const auto* const values = static_cast<const T*>(y.raw());
      values_.assign(values, values + kCodes);
    });
    return values_.data();
  }

 private:
  std::once_flag once_;
  std::vector<T> values_;
};

}  // namespace weft::kernels
