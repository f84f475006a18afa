#include "kernels/testing/timing.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/runtime.h"
#include "core/stream.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace weft::kernels {
namespace {

// Twice the second-level cache of a B200, the largest of any GPU.
constexpr int64_t kDeviceSweepBytes = int64_t{256} << 20;
constexpr int64_t kLine = 64;

}  // namespace

ColdCache::ColdCache(Device device) : device_(device) {
  bool flushes_lines = false;
#ifdef __x86_64__
  flushes_lines = device.type == DeviceType::cpu;
#endif
  if (!flushes_lines) sweep_ = Tensor::empty({kDeviceSweepBytes}, DType::u8, device);
}

void ColdCache::evict(const std::vector<Tensor>& memory) const {
  if (device_.type == DeviceType::cuda) {
    runtime::set_bytes(device_.index, sweep_.raw(), 0, sweep_.nbytes(),
                       current_stream_handle(device_));
    return;
  }
#ifdef __x86_64__
  for (const Tensor& tensor : memory) {
    const auto* const bytes = static_cast<const char*>(tensor.raw());
    parallel_for(static_cast<int64_t>(tensor.nbytes()), int64_t{1} << 20,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; i += kLine) _mm_clflush(bytes + i);
                 });
  }
  _mm_mfence();
#else
  static_cast<void>(memory);
  auto* const bytes = static_cast<char*>(sweep_.raw());
  parallel_for(kDeviceSweepBytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLine) ++bytes[i];
  });
#endif
}

Spread spread_of(std::vector<double> samples) {
  WEFT_ASSERT(!samples.empty());
  std::ranges::sort(samples);
  const auto quantile = [&](double part) {
    const double at = part * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, samples.size() - 1);
    return std::lerp(samples[below], samples[above], at - static_cast<double>(below));
  };
  return {samples.front(), quantile(0.25), quantile(0.5), quantile(0.75)};
}

}  // namespace weft::kernels
