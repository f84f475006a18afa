// The labs of all ops in one program, as they are installed: called softmax_lab it is that op's,
// called plugin_lab that of ops which plugins bring.
#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/testing/op_main.h"

namespace weft::kernels {

#define WEFT_OP(name) OpTable name##_lab_table();
#include "kernels/ops.inc"
#undef WEFT_OP

namespace {

struct Lab {
  std::string_view op;
  OpTable (*table)();
};

constexpr Lab kLabs[] = {
#define WEFT_OP(name) {#name, name##_lab_table},
#include "kernels/ops.inc"
#undef WEFT_OP
};

int run_lab(int argc, char** argv) {
  const std::string program = std::filesystem::path(argv[0]).filename();
  for (const auto& [op, table] : kLabs) {
    if (program == std::string(op) + "_lab") return run_op_main(std::string(op), table, argc, argv);
  }
  return run_op_main("kernels", nullptr, argc, argv);
}

}  // namespace
}  // namespace weft::kernels

int main(int argc, char** argv) { return weft::kernels::run_lab(argc, argv); }
