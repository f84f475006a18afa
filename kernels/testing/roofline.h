// The two ceilings of a device, measured: how fast it copies memory and how fast a vendor's library
// multiplies matrices. Williams, Waterman, Patterson: "Roofline", CACM 52 (2009).
//
//   seconds of a kernel >= max(bytes / copy rate, floating-point operations / matrix rate)
//
// The roofline program measures and prints one JSON line; the benches of all ops read it:
//
//   {"roofline": {"device": "cpu", "name": "AMD EPYC", "threads": 2, "copy_gb_s": 21.4,
//                 "copy_bytes": 268435456, "matmul_size": 1024,
//                 "matmul_tflop_s": {"f32": 0.2, "bf16": 0.6},
//                 "matmul_variant": {"f32": "gemm_cpu_onednn", "bf16": "gemm_cpu_onednn"}}}
#pragma once

#include <map>
#include <string>

#include "core/dtype.h"

namespace weft::kernels {

struct Roofline {
  std::string device, name;
  double copy_gb_s = 0;  // both directions counted
  std::map<std::string, double> matmul_tflop_s;

  /// TFLOP/s of matrices of a dtype; those of f32 where the dtype was not measured.
  double peak(DType dtype) const;
  /// The least seconds that so much work can take.
  double seconds(double flops, double bytes, DType dtype) const;
  /// Whether the bytes take longer than the operations.
  bool is_memory_bound(double flops, double bytes, DType dtype) const;
};

/// Reads what the roofline program wrote. Throws Error naming the file and what is wrong with it.
Roofline read_roofline(const std::string& path);

}  // namespace weft::kernels
