// Side-by-side memory of one dtype: memcpy. Everything else block by block: gathered or taken in
// place, converted, scattered or written in place (kernels/elementwise). Memory-bound but where
// fp8 or rare pairs of dtypes are converted one by one.
#include <cstring>

#include "kernels/copy/copy.h"
#include "kernels/elementwise/block_io.h"

namespace weft::kernels {

void copy_cpu_blocks(const CopyProblem& p) {
  const Walk walk({p.y, p.x});
  const DType from = p.x.dtype(), to = p.y.dtype();
  if (from == to && walk.numel() > 0 && walk.is_dense(0) && walk.is_dense(1)) {
    if (p.x.raw() == p.y.raw()) return;
    constexpr int64_t kBytesPerTask = 1 << 18;
    parallel_for(p.x.nbytes(), kBytesPerTask, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(p.y.raw()) + begin, static_cast<char*>(p.x.raw()) + begin,
                  end - begin);
    });
    return;
  }
  transform_blocks(walk, {p.y, to}, {{p.x, from}},
                   [&](const void* x, void* y, int64_t n) { convert(x, from, y, to, n); });
}

}  // namespace weft::kernels
