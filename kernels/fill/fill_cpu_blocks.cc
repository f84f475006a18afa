// A block of the converted value, written block by block (kernels/elementwise). Memory-bound.
#include "core/view.h"
#include "kernels/elementwise/block_io.h"
#include "kernels/fill/fill.h"

namespace weft::kernels {

void fill_cpu_blocks(const FillProblem& p) {
  const DType dtype = p.dtype();
  const Tensor value = Tensor::empty({}, dtype);
  convert(&p.value, DType::f64, value.raw(), dtype, 1);
  const Tensor x = view::expand(value, p.y.shape());
  const Walk walk({p.y, x});
  transform_blocks(walk, {p.y, dtype}, {{x, dtype}}, [&](const void* x, void* y, int64_t n) {
    std::memcpy(y, x, n * itemsize(dtype));
  });
}

}  // namespace weft::kernels
