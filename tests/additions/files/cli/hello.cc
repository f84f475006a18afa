// weft hello: says so.
#include <fmt/core.h>

#include "cli/command.h"

namespace weft::cli {

void add_hello(CLI::App& app, Action& action) {
  app.add_subcommand("hello", "Say hello")->callback([&action] {
    action = [] {
      fmt::print("hello\n");
      return 0;
    };
  });
}

}  // namespace weft::cli
