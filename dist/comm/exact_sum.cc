#include "dist/comm/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "autograd/ops.h"
#include "core/parallel.h"
#include "core/transfer.h"

namespace weft::dist {

void all_reduce(ExactSum& sum, Communicator& group) {
  const Tensor words = Tensor::empty({ExactSum::kWords}, DType::i64);
  std::ranges::copy(sum.words(), words.data<int64_t>());
  group.all_reduce(words).wait();
  sum =
      ExactSum(std::span<const int64_t, ExactSum::kWords>(words.data<int64_t>(), ExactSum::kWords));
}

void add_squares(ExactSum& sum, const Tensor& x) {
  WEFT_CHECK(is_floating(x.dtype()), "add_squares: expected a floating tensor, got {}", x);
  const NoGrad guard;
  const Tensor values = to_device(ops::contiguous(x), Device{});
  std::mutex mutex;
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) {
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
  if (group) all_reduce(sum, *group);
  return std::sqrt(sum.value());
}

}  // namespace weft::dist
