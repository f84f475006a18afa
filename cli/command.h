// What a subcommand of `weft` is: a function that declares its options and says what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>

#include "core/error.h"

namespace weft::cli {

/// What the chosen subcommand does; its value is the program's exit code.
using Action = std::function<int()>;

// Exit codes: 0 done; 1 an error, told in one line on standard error; 2 a mistake in the command
// line, told likewise. Commands with other meanings of 1 and 2 say so in their help.
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

/// The most that --threads takes.
inline constexpr int kMostThreads = 1024;

/// A mistake in the command line that only the command itself can see: unknown recipe, ...
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs f, which checks what the command line says, and makes its Error a UsageError: an unknown
/// GPU, a setting out of range. `option`, where the message does not name one: "--device".
template <class F>
auto as_usage(F&& f, const std::string& option = "") {
  try {
    return f();
  } catch (const Error& error) {
    throw UsageError(option.empty() ? error.what() : option + ": " + error.what());
  }
}

// One file each. They add a subcommand to `app` whose callback sets `action`.
void add_bench(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_devices(CLI::App& app, Action& action);
void add_diff(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_images(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_launch(CLI::App& app, Action& action);
void add_numerics(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_predict(CLI::App& app, Action& action);
void add_profile(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);

}  // namespace weft::cli
