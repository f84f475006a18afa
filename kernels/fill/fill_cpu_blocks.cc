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
  parallel_blocks(walk, [&](int64_t first, int64_t last) {
    BlockReader source(walk, 1, x, dtype);
    BlockWriter y(walk, 0, p.y, dtype);
    for (int64_t i = first; i < last; ++i) {
      const Block block = walk.block(i);
      std::memcpy(y.target(block), source.read(block), block.size() * itemsize(dtype));
      y.commit(block);
    }
  });
}

}  // namespace weft::kernels
