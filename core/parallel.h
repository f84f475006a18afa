// Loops over all threads whose results do not depend on how many there are.
//
//   parallel_for(rows, 64, [&](int64_t begin, int64_t end) { ... });
//
// The range is cut into chunks of `grain` whatever the number of threads, so a body that computes
// each chunk alone gives the same bits on one thread and on eight.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "core/error.h"

namespace weft {

/// Threads used by kernels, oneDNN's included. At first: OMP_NUM_THREADS, or one per core.
inline int num_threads() { return omp_get_max_threads(); }
inline void set_num_threads(int threads) {
  WEFT_CHECK(threads > 0, "threads must be positive, got {}", threads);
  omp_set_num_threads(threads);
}

/// Calls body(begin, end) for the chunks [0, grain), [grain, 2*grain), ... of [0, n), each once.
/// The first exception of a body is rethrown. Nested calls run in their caller's thread.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t chunks = (n + grain - 1) / grain;
  const auto run = [&](int64_t chunk) { body(chunk * grain, std::min(n, (chunk + 1) * grain)); };
  if (chunks == 1 || num_threads() == 1 || omp_in_parallel()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) run(chunk);
    return;
  }
  std::exception_ptr failure;
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), chunks));
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    try {
      run(chunk);
    } catch (...) {
#pragma omp critical(weft_parallel_for)
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace weft
