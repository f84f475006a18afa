// The program of an op in the kernel lab; the build writes its main.
#pragma once

#include <string>

namespace weft::kernels {

struct OpTable;  // kernels/testing/op_table.h

/// The program behind every op's test and bench:
///   list                           the variants, and how many cases each fits
///   check [--variant V] [--case C] every variant on every case; exit status 1 on a failure
///         [--device D]             the variants of this device alone
///         [--small]                without the cases that are benchmarked too
///         [--few N]                N cases of each variant
///         [--tile W] [--cluster N] where a variant chooses among widths of a tile, this one;
///                                  clusters of N blocks
///         [--instruction-set S]    kernels/instruction_set.h
///         [--tensor-core GPU] [--traffic]   kernels/testing/emulation.h
///   bench ...                      kernels/testing/bench.h
/// check comes without being asked for. On the emulated device it leaves out the timed cases that
/// move more than 1 MiB or compute more than 4 MFLOP, unless one is named.
///
/// With --plugin FILE (kernels/plugins/load.h) a variant from there stands first, and check takes
/// that one unless another is named. Without a table the op is the one that the plugin brings.
///
/// Mistakes in the arguments are one line and exit status 2.
int run_op_main(const std::string& op, OpTable (*table)(), int argc, char** argv);

}  // namespace weft::kernels

/// Defines op_lab_table(), the table of an op's cases.
#define WEFT_OP_TABLE(op)                           \
  namespace weft::kernels {                         \
  OpTable op##_lab_table() { return op##_table(); } \
  }

/// The main of an op's program.
#define WEFT_OP_MAIN(op)                                                               \
  namespace weft::kernels {                                                            \
  OpTable op##_lab_table();                                                            \
  }                                                                                    \
  int main(int argc, char** argv) {                                                    \
    return weft::kernels::run_op_main(#op, weft::kernels::op##_lab_table, argc, argv); \
  }
