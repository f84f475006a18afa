// What a plugin says of itself, written by hand: edited by the test, to be refused.
#include <weft/kernels/plugin.h>
#include <weft/kernels/softmax/softmax.h>

namespace weft::kernels {

void softmax_cpu_none(const SoftmaxProblem&) {}

constexpr Variant<SoftmaxProblem> row = {"softmax_cpu_none", DeviceType::cpu, kAnyType, fits_any,
                                         softmax_cpu_none};

extern "C" {
extern const Plugin weft_plugin;
const Plugin weft_plugin = {
    .format = kPluginFormat,
    .abi = WEFT_PLUGIN_ABI,
    .op = "softmax",
    .name = "softmax_cpu_none",
    .variant = &row,
    .problem_bytes = sizeof(SoftmaxProblem),
    .table = nullptr,
};
}

}  // namespace weft::kernels
