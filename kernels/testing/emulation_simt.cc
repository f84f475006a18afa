#include "core/emulated.h"
#include "kernels/simt/emulator.h"
#include "kernels/simt/memory.h"
#include "kernels/testing/emulation.h"
#include "numerics/tensor_core.h"

namespace weft::kernels {

void use_schedule(int run) {
  simt::Options& options = simt::options();
  options.order = run == 0  ? simt::Order::kForward
                  : run % 2 ? simt::Order::kRandom
                            : simt::Order::kReverse;
  options.seed = static_cast<uint64_t>(run);
  options.completion = run % 2 ? simt::Completion::kOnWait : simt::Completion::kEager;
}

void watch_accesses(bool watches) { simt::options().races = watches && !sanitizer::is_linked(); }

void use_gpu(std::string_view gpu) { emulated::use_gpu(gpu); }

void use_tensor_core(std::string_view gpu) {
  // The model's own name, which lives on; all have one for f16.
  simt::options().tensor_core =
      gpu.empty() ? gpu : numerics::tensor_core_model(gpu, DType::f16).gpu;
}

void count_traffic(bool counts) { simt::options().traffic = counts; }

std::vector<AccessTraffic> take_traffic() {
  std::vector<AccessTraffic> result;
  for (const simt::Traffic& t : simt::take_traffic()) {
    const char* const kind = t.access == simt::Access::kRead    ? "read"
                             : t.access == simt::Access::kWrite ? "write"
                                                                : "atomic";
    result.push_back({t.place, t.is_shared, kind, t.executions, t.transactions, t.ideal});
  }
  return result;
}

}  // namespace weft::kernels
