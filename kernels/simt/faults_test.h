// Kernels with a fault each, and their sound counterparts; faults_test.cc says what must be found.
#pragma once

#include <cstddef>

namespace weft::kernels {

/// Launches the kernel of that name. `data`: 4096 floats of device memory.
void run_fault_kernel(const char* name, bool faulty, float* data);

}  // namespace weft::kernels
