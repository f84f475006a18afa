#include "kernels/testing/emulation.h"

namespace weft::kernels {

void use_schedule(int) {}
void watch_accesses(bool) {}
void use_gpu(std::string_view) {}
void use_tensor_core(std::string_view) {}
void count_traffic(bool) {}
std::vector<AccessTraffic> take_traffic() { return {}; }

}  // namespace weft::kernels
