#include "core/parallel.h"

#include "core/error.h"

namespace weft {

int num_threads() { return omp_get_max_threads(); }

void set_num_threads(int threads) {
  WEFT_CHECK(threads > 0, "threads must be positive, got {}", threads);
  omp_set_num_threads(threads);
}

}  // namespace weft
