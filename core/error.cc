#include "core/error.h"

namespace weft {

void throw_error(fmt::string_view format, fmt::format_args arguments) {
  throw Error(fmt::vformat(format, arguments));
}

void throw_internal_error(const char* condition, const char* file, int line) {
  throw InternalError(fmt::format("internal error at {}:{}: {} is false", file, line, condition));
}

}  // namespace weft
