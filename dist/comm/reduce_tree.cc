#include "dist/comm/reduce_tree.h"

#include <algorithm>
#include <bit>
#include <type_traits>

namespace weft::dist {
namespace {

constexpr int64_t kBlock = 512;  // elements; a block per level of the tree lies on the stack

template <class T, class... Others>
constexpr bool kIsOneOf = (std::is_same_v<T, Others> || ...);

template <class T>
using Wide = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

/// a = a op b.
template <class A>
void combine(ReduceOp op, A* a, const A* b, int64_t n) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_integral_v<A>) {
          using U = std::make_unsigned_t<A>;  // wraps around
          a[i] = static_cast<A>(static_cast<U>(a[i]) + static_cast<U>(b[i]));
        } else {
          a[i] += b[i];
        }
      }
      return;
    case ReduceOp::kMax:
      for (int64_t i = 0; i < n; ++i) a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];
      return;
    case ReduceOp::kMin:
      for (int64_t i = 0; i < n; ++i) a[i] = b[i] < a[i] || b[i] != b[i] ? b[i] : a[i];
      return;
  }
}

template <class T>
void tree(ReduceOp op, std::span<const void* const> inputs, int64_t first, int64_t n,
          Wide<T>* out) {
  if (inputs.size() == 1) {
    const T* x = static_cast<const T*>(inputs[0]) + first;
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Wide<T>>(x[i]);
    return;
  }
  const size_t half = std::bit_floor(inputs.size() - 1);
  tree<T>(op, inputs.first(half), first, n, out);
  Wide<T> right[kBlock];
  tree<T>(op, inputs.subspan(half), first, n, right);
  combine(op, out, right, n);
}

}  // namespace

void reduce_tree(DType dtype, ReduceOp op, std::span<const void* const> inputs, void* out,
                 int64_t n) {
  const auto run = [&]<class T>(TypeTag<T>) {
    Wide<T> block[kBlock];
    for (int64_t first = 0; first < n; first += kBlock) {
      const int64_t count = std::min(kBlock, n - first);
      tree<T>(op, inputs, first, count, block);
      T* y = static_cast<T*>(out) + first;
      const Wide<T> ranks = static_cast<Wide<T>>(inputs.size());
      for (int64_t i = 0; i < count; ++i) {
        y[i] = static_cast<T>(op == ReduceOp::kMean ? static_cast<Wide<T>>(block[i] / ranks)
                                                    : block[i]);
      }
    }
  };
  visit_dtype(dtype, [&]<class T>(TypeTag<T> tag) {
    if constexpr (kIsOneOf<T, double, float, f16, bf16, int64_t, int32_t>) {
      run(tag);
    } else {
      WEFT_FAIL("reduce: cannot combine elements of {}", dtype);
    }
  });
}

}  // namespace weft::dist
