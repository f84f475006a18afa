#pragma once

#include <functional>
#include <string>
#include <vector>

namespace weft::cli {

/// Runs a program with its arguments, found as a shell finds it; `line` gets each line of its
/// standard output. Returns its exit status, kFailure where a signal ended it. Throws Error when it
/// cannot be started.
int run_program(const std::vector<std::string>& words,
                const std::function<void(const std::string&)>& line);

/// The words that this process was started with, the program by its path: to start it again.
std::vector<std::string> own_command_line();

}  // namespace weft::cli
