// The precisions of a run: the dtypes of its weights and products, and the devices that have them.
//
//   name       Fabric's            weights, optimizer  operands of linear, attention, convolution
//   fp32       32-true             f32                 f32
//   tf32                           f32                 f32 cut to 10 mantissa bits
//   bf16       bf16-mixed          f32                 bf16 under Autocast
//   fp16       16-mixed            f32                 f16 under Autocast, the loss scaled
//   bf16-true  bf16-true           bf16                bf16
//   fp16-true  16-true             f16                 f16
//   fp64       64-true             f64                 f64
//   fp8        transformer-engine  f32                 linear: scaled e4m3, gradients e5m2;
//                                                      the rest bf16 under Autocast
//
// Products are summed in f32 (f64 for f64), or as --matmul-numerics says. Under Autocast softmax,
// normalisation and losses are in f32; in the -true precisions they are computed in f32 and rounded
// to the weights' dtype.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "core/device.h"
#include "kernels/gemm/matmul_numerics.h"

namespace weft::train {

struct Precision {
  std::string_view name;
  std::string_view fabric;        // Fabric's name; empty: it has none
  DType products = DType::f32;    // what the device multiplies: f64 f32 tf32 f16 bf16 f8e4m3
  DType autocast = DType::f32;    // f32: no Autocast
  DType parameters = DType::f32;  // of weights, and of whatever follows its inputs

  bool is_tf32() const { return products == DType::tf32; }
  bool is_fp8() const { return products == DType::f8e4m3; }
  /// What every product rounds f32 weights to, bf16 or f16, so that they may travel in it; else
  /// f32. (fp8 scales them as they are.)
  DType rounds_weights_to() const { return is_fp8() ? DType::f32 : autocast; }
  /// Small gradients vanish unless the loss is scaled, and f32 weights take what was scaled.
  bool scales_loss() const { return autocast == DType::f16; }
};

/// All of them, in the order above.
const std::vector<Precision>& precisions();
/// By our name or Fabric's, also by its short forms 16, 32 and 64. Throws Error listing all.
const Precision& find_precision(std::string_view name);
/// "fp32, tf32, bf16, ...".
std::string precision_names();

/// Enters a precision on this thread, with its matrix products as `accumulation` says, for as long
/// as it lives. fp8 needs the scaling's state. Convolutions keep their own TF32 switch
/// (kernels/gemm/matmul_numerics.h).
class PrecisionScope {
 public:
  PrecisionScope(const Precision& precision, kernels::Accumulation accumulation,
                 Fp8Scaling* fp8 = nullptr, kernels::Tf32 rounding = kernels::Tf32::kTruncate);

 private:
  kernels::MatmulScope numerics_;
  Autocast autocast_;
  std::optional<Fp8Scope> fp8_;
};

/// The formats that a device multiplies. (f32 and f64 all do.)
struct Capabilities {
  std::string device;  // for messages
  bool tf32 = true, f16 = true, bf16 = true, fp8 = true;
};

/// The CPU computes every format, natively or simulated; a CUDA device those of its compute
/// capability: f16 from 7.0, bf16 and TF32 from 8.0, fp8 from 8.9 on. Throws Error when there is no
/// such device.
Capabilities capabilities_of(Device device);
/// Those of the GPU whose tensor cores --matmul-numerics names; ieee and exact have all.
Capabilities capabilities_of(kernels::Accumulation accumulation);
Capabilities capabilities_of_compute_capability(std::string device, int ten_major_plus_minor);
bool has(const Capabilities& device, const Precision& precision);
/// Throws Error naming the device and the precision to use instead: bf16 for fp8, fp16 for bf16 and
/// the other way round, fp32 for tf32 and where nothing nearer is there.
void check_supported(const Precision& precision, const Capabilities& device);

/// Whether the CPU has bf16 multiplications of its own: AVX-512 BF16 or AMX.
bool cpu_has_bf16_instructions();

/// A model's output in f32 (f64 for f64 models).
inline Tensor widened(const Tensor& output, const Precision& precision) {
  if (!output.defined() || !is_floating(output.dtype())) return output;
  return ops::cast(output, precision.parameters == DType::f64 ? DType::f64 : DType::f32);
}

/// The model's output on images, widened; images are brought to the weights' dtype. `model` is a
/// module or another function of a tensor. To be called in a PrecisionScope.
template <class Model>
Tensor forward_logits(Model&& model, const Tensor& images, const Precision& precision) {
  const bool is_cast = is_floating(images.dtype()) || images.dtype() == DType::u8;
  return widened(model(is_cast ? ops::cast(images, precision.parameters) : images), precision);
}

}  // namespace weft::train
