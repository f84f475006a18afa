// The generated main of an op's test and bench.
#pragma once

#include "kernels/testing/op_table.h"

#define WEFT_OP_MAIN(op)                                                        \
  int main(int argc, char** argv) {                                             \
    return weft::kernels::run_op_main(weft::kernels::op##_table(), argc, argv); \
  }
