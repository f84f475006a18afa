// Which commands a program has: a table that the build writes from cli/commands.bzl, so that a
// program may hold all of them, or one and nothing of the others.
#pragma once

#include <functional>
#include <vector>

namespace weft::io {
class Command;
}

namespace weft::cli {

/// What the chosen subcommand does; its value is the program's exit code.
using Action = std::function<int()>;

/// Adds a command to the program, which sets `action` where the command line names it.
using AddCommand = void (*)(io::Command& app, Action& action);

/// In the order of the program's help.
std::vector<AddCommand> commands();

}  // namespace weft::cli
