#include "kernels/batch_norm/batch_norm.h"

#include "core/transfer.h"

namespace weft::kernels {

#define WEFT_OP batch_norm
#define WEFT_PROBLEM BatchNormProblem
#include "kernels/op_list_inl.h"

std::string BatchNormProblem::describe() const {
  return fmt::format("batch_norm({}, weight {}, mean {}, training={}, backward={})", x, weight,
                     mean, training, backward());
}

void update_running_statistics(const Tensor& mean, const Tensor& variance, int64_t elements,
                               double momentum, const Tensor& running_mean,
                               const Tensor& running_variance) {
  if (mean.device().type != DeviceType::cpu) {
    // A few channels' numbers: they are worked on here, which waits for the device.
    const Tensor here_mean = to_device(running_mean, Device{});
    const Tensor here_variance = to_device(running_variance, Device{});
    update_running_statistics(to_device(mean, Device{}), to_device(variance, Device{}), elements,
                              momentum, here_mean, here_variance);
    copy_same_layout(here_mean, running_mean);
    copy_same_layout(here_variance, running_variance);
    running_mean.bump_version();
    running_variance.bump_version();
    return;
  }
  const double unbiased = static_cast<double>(elements) / static_cast<double>(elements - 1);
  const auto blend = [&](const Tensor& batch, double scale, const Tensor& running) {
    const auto update = [&]<class T>(TypeTag<T>) {
      T* r = running.data<T>();
      for (int64_t c = 0; c < running.numel(); ++c) {
        r[c] = static_cast<T>((1 - momentum) * r[c] + momentum * scale * batch.data<T>()[c]);
      }
    };
    running.dtype() == DType::f64 ? update(TypeTag<double>{}) : update(TypeTag<float>{});
    running.bump_version();
  };
  blend(mean, 1, running_mean);
  blend(variance, unbiased, running_variance);
}

}  // namespace weft::kernels
