// Which commands a program has: a table that the build writes from cli/commands.bzl, so that a
// program may hold all of them, or one and nothing of the others.
#pragma once

#include <functional>
#include <vector>

namespace CLI {
class App;
}

namespace weft::cli {

/// What the chosen subcommand does; its value is the program's exit code.
using Action = std::function<int()>;

/// Adds a subcommand to `app` whose callback sets `action`.
using AddCommand = void (*)(CLI::App& app, Action& action);

/// In the order of the program's help.
std::vector<AddCommand> commands();

}  // namespace weft::cli
