#include "autograd/random.h"

namespace weft {

Generator& generator() {
  thread_local Generator instance;
  return instance;
}

void manual_seed(uint64_t seed) { generator() = Generator{.seed = seed}; }

}  // namespace weft
