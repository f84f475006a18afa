// weft.kernels: the variants of every op, the choice among them, and others' (kernels/plugin.h).
#include "kernels/gemm/packed_weights.h"
#include "kernels/op.h"
#include "kernels/plugins/build.h"
#include "kernels/plugins/load.h"

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

/// Its op and its name. An Error says what the compiler said.
std::pair<std::string, std::string> load(const std::string& file) {
  kernels::CompilerMessages messages;
  try {
    const kernels::Plugin& plugin = kernels::load_plugin(file);
    return {plugin.op, plugin.name ? plugin.name : ""};
  } catch (const Error& error) {
    if (messages.text.empty()) throw;
    WEFT_FAIL("{}{}", messages.text, error.what());
  }
}

}  // namespace

void bind_kernels(nb::module_ m) {
  m.def(
      "variants", &variants,
      "A dict for each variant of each op, in the order of dispatch: op, name, device, dtypes and "
      "the condition on the problem.");
  m.def("_load", &load, "file"_a, Unlocked());
  m.def(
      "_plugin_home",
      [] {
        const kernels::PluginHome home = kernels::find_plugin_home();
        return std::pair(home.include.string(), home.root.string());
      },
      "Where Weft's headers lie, and the checkout's root or nothing.");
  m.def("_device_count", &runtime::device_count);
  bind_scope<kernels::ForcedVariant, std::string, std::string>(m, "_ForcedVariant");
  bind_scope<kernels::PackedWeights>(m, "_PackedWeights");
}

}  // namespace weft::python
