// What a device can run. For host code of every flavour.
#pragma once

namespace weft::kernels {

/// 10 * major + minor of a CUDA device: 80 for an A100, 90 for an H100. The emulator is a 90.
int compute_capability(int device);

/// Multiprocessors of a CUDA device: how many blocks a persistent kernel starts. The emulator has
/// 2, so that blocks walk over several tiles of small problems, too.
int multiprocessor_count(int device);

}  // namespace weft::kernels
