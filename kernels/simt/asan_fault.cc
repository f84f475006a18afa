// asan_fault KERNEL sound|faulty: runs a kernel of faults_test.cu on emulated device memory.
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/runtime.h"
#include "kernels/simt/faults_test.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  constexpr size_t kBytes = 4096 * sizeof(float);
  const std::vector<float> zeros(4096);
  auto* const data = static_cast<float*>(weft::runtime::allocate(0, kBytes));
  weft::runtime::copy(0, data, zeros.data(), kBytes, nullptr);
  weft::kernels::run_fault_kernel(argv[1], std::strcmp(argv[2], "faulty") == 0, data);
  std::puts("nothing found");
  weft::runtime::deallocate(0, data);
  return 0;
}
