// weft.kernels: the variants of every op, and the choice among them.
#include "kernels/op.h"

#include "python/bindings.h"
#include "python/casters.h"
#include "python/kernel_ops.h"
#include "python/scope.h"

namespace weft::python {
namespace {

/// A dict for each row of an op's list, best first.
template <class Problem>
void append_rows(nb::list& rows, const kernels::Op<Problem>& op) {
  for (const kernels::Variant<Problem>& variant : op.variants) {
    nb::list dtypes;
    for (const DType dtype : kAllDTypes) {
      if (variant.dtypes.contains(dtype)) dtypes.append(dtype_object(dtype));
    }
    nb::dict row;
    row["op"] = op.name;
    row["name"] = variant.name;
    row["device"] = name(variant.device);
    row["dtypes"] = dtypes;
    row["condition"] = variant.condition;
    rows.append(row);
  }
}

nb::list variants() {
  nb::list rows;
#define WEFT_OP(name) append_rows(rows, kernels::name##_op());
  WEFT_OPS
#undef WEFT_OP
  return rows;
}

}  // namespace

void bind_kernels(nb::module_ m) {
  m.def(
      "variants", &variants,
      "A dict for each variant of each op, in the order of dispatch: op, name, device, dtypes and "
      "the condition on the problem.");
  bind_scope<kernels::ForcedVariant, std::string, std::string>(m, "_ForcedVariant");
}

}  // namespace weft::python
