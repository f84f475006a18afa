// One thread for four numbers: what counts is that no host waits for them.
#include "core/stream.h"
#include "kernels/device/cuda.h"
#include "kernels/loss_scale/loss_scale.h"

namespace weft::kernels {
namespace {

__global__ void __launch_bounds__(1)
    loss_scale_kernel(LossScaleRule rule, float* scale, int64_t* trackers, float* inverse,
                      const float* found_inf) {
  const LossScaleState next =
      next_loss_scale(rule, {*scale, trackers[0], trackers[1]}, *found_inf != 0);
  *scale = next.scale;
  trackers[0] = next.growth_tracker;
  trackers[1] = next.hysteresis_left;
  *inverse = inverse_loss_scale(next.scale);
}

}  // namespace

void loss_scale_cuda_thread(const LossScaleProblem& p) {
  WEFT_LAUNCH(loss_scale_kernel, 1, 1, 0, current_stream_handle(p.device()), p.rule,
              p.scale.data<float>(), p.trackers.data<int64_t>(), p.inverse.data<float>(),
              p.found_inf.data<float>());
}

}  // namespace weft::kernels
