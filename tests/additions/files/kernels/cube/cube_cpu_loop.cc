// One loop.
#include "kernels/cube/cube.h"

namespace weft::kernels {

void cube_cpu_loop(const CubeProblem& p) {
  visit_dtype(p.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_floating_point_v<T>) {
      const T* const x = p.x.data<T>();
      T* const y = p.y.data<T>();
      for (int64_t i = 0; i < p.x.numel(); ++i) y[i] = x[i] * x[i] * x[i];
    }
  });
}

}  // namespace weft::kernels
