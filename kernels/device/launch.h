// The choke point of all kernel launches: WEFT_LAUNCH of kernels/device/cuda.h ends here.
#pragma once

#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "core/emulated.h"
#include "kernels/simt/emulator.h"
#endif

namespace weft::kernels {

struct LaunchConfig {
  const char* kernel;  // its name in the source
  dim3 grid, block, cluster;
  size_t shared_bytes;  // dynamic
  void* stream;         // a cudaStream_t
};

/// Launches the kernel of that address; arguments points to a pointer to each parameter. Throws
/// Error when CUDA refuses.
void launch_on_device(const LaunchConfig& config, const void* kernel, void** arguments);

#ifndef __CUDACC__
template <class... Parameters>
struct KernelCall {
  void (*kernel)(Parameters...);
  std::tuple<std::remove_cvref_t<Parameters>...>& values;

  /// The body of an emulated thread. Not instrumented: the arguments are the host's.
  __attribute__((no_sanitize_thread)) static void run(void* call) {
    static_cast<KernelCall*>(call)->run(std::index_sequence_for<Parameters...>());
  }

 private:
  template <size_t... kIndices>
  __attribute__((no_sanitize_thread)) void run(std::index_sequence<kIndices...>) {
    kernel(std::get<kIndices>(values)...);
  }
};
#endif

template <class... Parameters, class... Arguments>
void launch(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel got too many or too few");
  std::tuple<std::remove_cvref_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
#ifdef __CUDACC__
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        launch_on_device(config, reinterpret_cast<const void*>(kernel), pointers);
      },
      values);
#else
  emulated::submit(config.stream, [config, kernel, values = std::move(values)]() mutable {
    KernelCall<Parameters...> call{kernel, values};
    simt::run_grid(config.kernel, {config.grid, config.block, config.cluster, config.shared_bytes},
                   call.run, &call, std::as_bytes(std::span(&values, 1)));
  });
#endif
}

}  // namespace weft::kernels
