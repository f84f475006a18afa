// weft kernels sass: what the machine code of kernels holds.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/report/machine_code.h"

namespace weft::cli {

/// A program of the CUDA toolkit, "nvcc" or "nvdisasm": $WEFT_NVCC, $WEFT_NVDISASM, else in
/// $CUDA_HOME/bin, on the PATH or in /usr/local/cuda/bin. Empty where there is none.
std::string find_cuda_tool(const std::string& name);

/// The kernels of a .cu file, compiled for a GPU ("h100", "a10", ...) with the build's options.
/// root: from where headers name each other. Throws UsageError for another GPU, Error without nvcc
/// or nvdisasm and where the file does not compile.
std::vector<KernelCode> compile_kernels(const std::filesystem::path& source, std::string_view gpu,
                                        const std::filesystem::path& root);

/// weft kernels sass OP|FILE [--gpu GPU] [--kernel TEXT] [--json]
int report_machine_code(const std::vector<std::string>& words);

}  // namespace weft::cli
