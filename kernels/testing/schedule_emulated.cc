#include "kernels/simt/emulator.h"
#include "kernels/testing/schedule.h"

namespace weft::kernels {

void use_schedule(int run) {
  simt::Options& options = simt::options();
  options.order = run == 0  ? simt::Order::forward
                  : run % 2 ? simt::Order::random
                            : simt::Order::reverse;
  options.seed = static_cast<uint64_t>(run);
  options.completion = run % 2 ? simt::Completion::on_wait : simt::Completion::eager;
}

}  // namespace weft::kernels
