// How the products of matrices are rounded, in this thread: by the CPU's own arithmetic, exactly,
// or as a GPU's tensor cores do. Every matrix product asks: linear layers, attention, convolutions.
// A problem takes the settings when it is made, and keeps them in the threads that share its work.
//
//   MatmulScope scope({.accumulation = Accumulation::kH100});   // a training as on an H100
//   MatmulScope scope({.allow_tf32 = true});                   // f32 products on TF32 operands
//
//   ieee        sums in f32 (f64 for f64), each step rounded to nearest even, in any order
//   exact       one rounding, to nearest even, of the exact sum of exact products, bias and old C
//               included
//   v100 ...    numerics/tensor_core.h's model for f16, bf16, fp8 and, where TF32 is allowed, f32
//               operands; bias and old C are added to its f32 result, as a kernel's epilogue does.
//               Other f32 operands run on a GPU's ordinary cores: ieee.
//
// f64 operands are always multiplied in ieee.
//
// TF32 is a mode of f32 operands: their low 13 bits are cut off (truncated, as the tensor core
// reads them, or rounded to nearest, ties away, as cvt.rna.tf32.f32 does beforehand), then they are
// multiplied and summed as the accumulation says. It has PyTorch's two switches:
// torch.backends.cuda.matmul.allow_tf32, off by default, and torch.backends.cudnn.allow_tf32, on by
// default. A CPU has no TF32 units, so the second has no effect there by itself: convolutions take
// TF32 where it is on and TF32 is simulated at all, because matrix products have it or because a
// GPU that has it is modelled.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/scoped_value.h"

namespace weft::kernels {

enum class Accumulation : uint8_t { kIeee, kExact, kV100, kA100, kAda, kH100, kB200 };

/// What becomes of f32 operands.
enum class Tf32 : uint8_t { kOff, kTruncate, kNearest };

/// The rounding of one product.
struct MatmulNumerics {
  Accumulation accumulation = Accumulation::kIeee;
  Tf32 tf32 = Tf32::kOff;

  friend bool operator==(const MatmulNumerics&, const MatmulNumerics&) = default;
};

/// A thread's settings.
struct MatmulSettings {
  Accumulation accumulation = Accumulation::kIeee;
  bool allow_tf32 = false;      // matrix products and attention
  bool conv_allow_tf32 = true;  // convolutions
  Tf32 tf32_rounding = Tf32::kTruncate;

  friend bool operator==(const MatmulSettings&, const MatmulSettings&) = default;
};

MatmulSettings matmul_settings();
/// What the settings come to for matrix products and attention, and for convolutions.
MatmulNumerics matmul_numerics();
MatmulNumerics conv_numerics(DeviceType device = DeviceType::cpu);

/// Replaces this thread's settings for as long as it lives.
class MatmulScope : ScopedValue<MatmulSettings> {
 public:
  explicit MatmulScope(const MatmulSettings& settings);
};

/// "ieee", "exact", "h100", ...
std::string_view name(Accumulation accumulation);
/// "ieee", "h100 tf32", "ieee tf32 nearest", ...
std::string to_string(const MatmulNumerics& numerics);
/// By name, or by the alias of a GPU with the same tensor cores: a2 is a100, l40s ada, h200 h100.
/// Throws Error listing all.
Accumulation parse_accumulation(std::string_view name);
/// All names, aliases included.
const std::vector<std::string>& accumulation_names();

inline bool is_gpu(Accumulation a) { return a != Accumulation::kIeee && a != Accumulation::kExact; }
/// Whether that GPU's tensor cores take TF32 operands.
inline bool has_tf32(Accumulation a) { return is_gpu(a) && a != Accumulation::kV100; }

}  // namespace weft::kernels
