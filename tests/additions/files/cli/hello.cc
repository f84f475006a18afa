// weft hello: says so.
#include <fmt/core.h>

#include "cli/command.h"

namespace weft::cli {

void add_hello(Command& app, Action& action) {
  app.subcommand("hello", "Say hello").on_parsed([&action] {
    action = [] {
      fmt::print("hello\n");
      return 0;
    };
  });
}

}  // namespace weft::cli
