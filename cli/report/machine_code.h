// What ptxas made of kernels, as nvdisasm and ptxas's -v tell it: the one place that reads either.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::cli {

/// What an instruction works on; the order of a table's columns.
enum class Pipe : uint8_t {
  kTensor,  // HGMMA, HMMA, ...
  kFloat,   // f32 and packed f16
  kDouble,
  kSpecial,  // MUFU
  kConvert,
  kInteger,  // addresses, moves, predicates; the uniform datapath's too
  kGlobal,   // loads and stores of global memory
  kShared,
  kAsync,    // copies and their barriers
  kLocal,    // spills
  kControl,  // branches, barriers, shuffles, calls
};
inline constexpr std::array<std::string_view, 11> kPipeNames = {
    "tensor", "float",  "double", "special", "convert", "integer",
    "global", "shared", "async",  "local",   "control"};
/// Of an opcode, "FFMA" or "LDG.E.128".
Pipe pipe_of(std::string_view opcode);

/// Instructions that a backward branch repeats, those of inner loops left out.
struct CodeLoop {
  int begin = 0, end = 0;  // the first and the last, by number in the kernel
  int depth = 0;           // loops around it
  int instructions = 0;
  std::array<int, kPipeNames.size()> mix = {};
  int exponentials = 0;                    // MUFU.EX2: of a GELU's loop, its elements
  int loaded_bytes = 0, stored_bytes = 0;  // of global memory, a thread's
  int calls = 0;

  double per_exponential() const {
    return static_cast<double>(instructions) / exponentials;  // NaN or infinite without one
  }
};

struct KernelCode {
  std::string name;  // demangled, without namespaces and parameters
  int instructions = 0;
  int registers = 0, shared_bytes = 0, stack_bytes = 0;  // of a thread, of a block, of a thread
  int spilled_bytes = 0;                                 // stores and loads
  int most_registers = 0;       // of a thread after setmaxnreg; 0 where there is none
  std::vector<CodeLoop> loops;  // by their begin

  /// Share of a multiprocessor's warps that registers leave room for.
  double occupancy(int warps_of_multiprocessor) const;
};

/// Kernels of a cubin: `disassembly` is what `nvdisasm -c` prints, `ptxas` what -Xptxas=-v does.
std::vector<KernelCode> read_machine_code(const std::string& disassembly, const std::string& ptxas);

}  // namespace weft::cli
