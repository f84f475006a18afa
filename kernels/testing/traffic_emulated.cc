#include "kernels/simt/emulator.h"
#include "kernels/simt/memory.h"
#include "kernels/testing/traffic.h"

namespace weft::kernels {

void count_traffic(bool counts) { simt::options().traffic = counts; }

std::vector<AccessTraffic> take_traffic() {
  std::vector<AccessTraffic> result;
  for (const simt::Traffic& t : simt::take_traffic()) {
    const char* const kind = t.access == simt::Access::read    ? "read"
                             : t.access == simt::Access::write ? "write"
                                                               : "atomic";
    result.push_back({t.place, t.is_shared, kind, t.executions, t.transactions, t.ideal});
  }
  return result;
}

}  // namespace weft::kernels
