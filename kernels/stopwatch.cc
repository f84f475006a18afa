#include "kernels/stopwatch.h"

#include <chrono>

#include "core/stream.h"

namespace weft::kernels {

double time_run(Device device, const std::function<void()>& run) {
  if (device.type == DeviceType::cpu) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  const Stream stream = current_stream(device);
  Event begin(device), end(device);
  begin.record(stream);
  run();
  end.record(stream);
  end.synchronize();
  return 1e-3 * end.ms_since(begin);
}

}  // namespace weft::kernels
