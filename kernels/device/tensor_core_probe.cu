#include <cuda_runtime.h>

#include <cstring>

#include "core/error.h"
#include "core/runtime.h"
#include "kernels/device/tensor_core_probe.h"

namespace weft::kernels {
namespace {

// A row of operands is 32 bytes for every format. In the fragments of m16n8k16 (16 bits), k8 (tf32)
// and k32 (fp8), lane q of the first four holds words q and q + 4 of row 0 of A in registers 0 and
// 2, and of column 0 of B in registers 0 and 1 (PTX ISA, "Matrix fragments for mma").
constexpr int kWords = 8;

enum class Kind { kF16F32, kF16F16, kBf16F32, kTf32F32, kE4m3F32, kE4m3F16, kE5m2F32, kE5m2F16 };

#define WEFT_MMA_F32(instruction)                                       \
  asm volatile("mma.sync.aligned." instruction                          \
               " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])         \
               : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1))
#define WEFT_MMA_F16(instruction)                                                           \
  asm volatile("mma.sync.aligned." instruction " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};" \
               : "+r"(h[0]), "+r"(h[1])                                                     \
               : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1))

/// One warp per row. c and d: bits of an f32, or of an f16 in the lower half.
template <Kind kKind>
__global__ void __launch_bounds__(32)
    dot_kernel(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d_out) {
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const bool first = lane < 4;
  const uint32_t* const x = a + row * kWords;
  const uint32_t* const y = b + row * kWords;
  const uint32_t a0 = first ? x[lane] : 0, a2 = first ? x[lane + 4] : 0;
  const uint32_t b0 = first ? y[lane] : 0, b1 = first ? y[lane + 4] : 0;
  const uint32_t start = lane == 0 ? c[row] : 0;
  [[maybe_unused]] float d[4] = {__uint_as_float(start), 0, 0, 0};
  [[maybe_unused]] uint32_t h[2] = {start, 0};
  constexpr bool kHalf =
      kKind == Kind::kF16F16 || kKind == Kind::kE4m3F16 || kKind == Kind::kE5m2F16;
  if constexpr (kKind == Kind::kF16F32) {
    WEFT_MMA_F32("m16n8k16.row.col.f32.f16.f16.f32");
  } else if constexpr (kKind == Kind::kF16F16) {
    WEFT_MMA_F16("m16n8k16.row.col.f16.f16.f16.f16");
  } else if constexpr (kKind == Kind::kBf16F32) {
    WEFT_MMA_F32("m16n8k16.row.col.f32.bf16.bf16.f32");
  } else if constexpr (kKind == Kind::kTf32F32) {
    WEFT_MMA_F32("m16n8k8.row.col.f32.tf32.tf32.f32");
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (kKind == Kind::kE4m3F32) WEFT_MMA_F32("m16n8k32.row.col.f32.e4m3.e4m3.f32");
    if constexpr (kKind == Kind::kE4m3F16) WEFT_MMA_F16("m16n8k32.row.col.f16.e4m3.e4m3.f16");
    if constexpr (kKind == Kind::kE5m2F32) WEFT_MMA_F32("m16n8k32.row.col.f32.e5m2.e5m2.f32");
    if constexpr (kKind == Kind::kE5m2F16) WEFT_MMA_F16("m16n8k32.row.col.f16.e5m2.e5m2.f16");
#endif
  }
  if (lane == 0) d_out[row] = kHalf ? h[0] & 0xffffu : __float_as_uint(d[0]);
}

void check(cudaError_t error) {
  WEFT_CHECK(error == cudaSuccess, "tensor core probe: {}", cudaGetErrorString(error));
}

/// Device memory that holds a copy of host words, or so many unset ones.
class DeviceWords {
 public:
  explicit DeviceWords(size_t count) { check(cudaMalloc(&data_, count * sizeof(uint32_t))); }
  explicit DeviceWords(const std::vector<uint32_t>& words) : DeviceWords(words.size()) {
    check(cudaMemcpy(data_, words.data(), words.size() * sizeof(uint32_t), cudaMemcpyHostToDevice));
  }
  ~DeviceWords() { cudaFree(data_); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;
  uint32_t* get() const { return data_; }

 private:
  uint32_t* data_ = nullptr;
};

/// The values in the format's own bytes, row after row.
std::vector<uint32_t> packed(std::span<const float> values, DType dtype) {
  std::vector<uint32_t> words(values.size() * itemsize(dtype) / sizeof(uint32_t));
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (size_t i = 0; i < values.size(); ++i) {
      const T x = from_double<T>(values[i]);
      std::memcpy(reinterpret_cast<char*>(words.data()) + i * sizeof(T), &x, sizeof(T));
    }
  });
  return words;
}

auto kernel_of(DType input, DType output) {
  const bool half = output == DType::f16;
  switch (input) {
    case DType::f16:
      return half ? dot_kernel<Kind::kF16F16> : dot_kernel<Kind::kF16F32>;
    case DType::bf16:
      return dot_kernel<Kind::kBf16F32>;
    case DType::tf32:
      return dot_kernel<Kind::kTf32F32>;
    case DType::f8e4m3:
      return half ? dot_kernel<Kind::kE4m3F16> : dot_kernel<Kind::kE4m3F32>;
    case DType::f8e5m2:
      return half ? dot_kernel<Kind::kE5m2F16> : dot_kernel<Kind::kE5m2F32>;
    default:
      WEFT_FAIL("tensor core probe: no instruction for {} operands", input);
  }
}

}  // namespace

int tensor_core_probe_k(DType input) {
  return kWords * static_cast<int>(sizeof(uint32_t) / itemsize(input));
}

std::vector<float> tensor_core_probe(int device, DType input, DType output,
                                     std::span<const float> a, std::span<const float> b,
                                     std::span<const float> c) {
  const auto kernel = kernel_of(input, output);
  const runtime::DeviceGuard guard(device);
  const size_t rows = c.size();
  WEFT_CHECK(a.size() == rows * tensor_core_probe_k(input) && b.size() == a.size(),
             "tensor core probe: {} and {} values for {} rows", a.size(), b.size(), rows);
  if (rows == 0) return {};
  std::vector<uint32_t> starts(rows);
  for (size_t i = 0; i < rows; ++i) {
    starts[i] = output == DType::f16 ? f16(c[i]).bits : std::bit_cast<uint32_t>(c[i]);
  }
  const DeviceWords device_a(packed(a, input)), device_b(packed(b, input)), device_c(starts);
  const DeviceWords device_d(rows);
  kernel<<<static_cast<unsigned>(rows), 32>>>(device_a.get(), device_b.get(), device_c.get(),
                                              device_d.get());
  check(cudaGetLastError());
  std::vector<uint32_t> bits(rows);
  check(cudaMemcpy(bits.data(), device_d.get(), rows * sizeof(uint32_t), cudaMemcpyDeviceToHost));
  std::vector<float> d(rows);
  for (size_t i = 0; i < rows; ++i) {
    d[i] = output == DType::f16 ? static_cast<float>(f16::from_bits(static_cast<uint16_t>(bits[i])))
                                : std::bit_cast<float>(bits[i]);
  }
  return d;
}

}  // namespace weft::kernels
