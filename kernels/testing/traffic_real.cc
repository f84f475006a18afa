#include "kernels/testing/traffic.h"

namespace weft::kernels {

void count_traffic(bool) {}
std::vector<AccessTraffic> take_traffic() { return {}; }

}  // namespace weft::kernels
