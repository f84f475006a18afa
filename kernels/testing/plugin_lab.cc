// The lab of ops that plugins bring: weft kernels check --plugin DIR.
#include "kernels/testing/op_main.h"

int main(int argc, char** argv) {
  return weft::kernels::run_op_main("kernels", nullptr, argc, argv);
}
