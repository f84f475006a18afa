#include "kernels/scan/scan.h"

namespace weft::kernels {

#define WEFT_OP scan
#define WEFT_PROBLEM ScanProblem
#include "kernels/op_list_inl.h"

std::string ScanProblem::describe() const {
  return fmt::format("scan({} to {}, axis={}{})", x, y.dtype(), axis, reverse ? ", reverse" : "");
}

}  // namespace weft::kernels
