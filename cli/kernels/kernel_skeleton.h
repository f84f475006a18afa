#pragma once

#include <string>
#include <vector>

namespace weft::cli {

/// weft kernels new OP DIR [--cuda]: of a known op a variant, of another name the whole op, written
/// to DIR from kernels/plugins/templates. What is written passes its check as it is.
int write_kernel_skeleton(std::vector<std::string> words);

}  // namespace weft::cli
