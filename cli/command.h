// What a subcommand of `weft` is: a function that declares its options and says what to run.
//
//   void add_train(Command& app, Action& action) {
//     const auto [command, a] = add_command<Arguments>(app, action, run_train, "train",
//                                                      "Train a model", kTrainingCommands);
//     command.group("Learning");
//     command.option("--epochs", a.epochs, "Passes over the images", {.check = positive()});
//   }
//
// --help shows a new Arguments' values as the defaults, where `.usual` says nothing else. What else
// an option may have: io/command_line.h.
//
// A library of its own that defines it, and a line of cli/commands.bzl.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "cli/commands.h"     // IWYU pragma: export
#include "core/error.h"       // IWYU pragma: export
#include "io/command_line.h"  // IWYU pragma: export

namespace weft::cli {

using io::Command, io::existing_file, io::in_range, io::non_negative, io::not_empty, io::one_of,
    io::positive;

// Exit codes: 0 done; 1 an error, told in one line on standard error; 2 a mistake in the command
// line, told likewise. Commands with other meanings of 1 and 2 say so in their help.
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

/// Groups of commands in `weft --help`.
inline constexpr const char* kTrainingCommands = "Train and use a model";
inline constexpr const char* kFileCommands = "Look at data and weights";
inline constexpr const char* kMeasuringCommands = "Measure speed, memory and rounding";
inline constexpr const char* kDeviceCommands = "Devices";

/// What --model takes, where its names are not listed.
inline constexpr const char* kModelHelp = "Name of a model; weft train --help lists them";

/// What --json does, said alike by all commands.
inline constexpr const char* kJsonObject = "Print the result as one JSON object";
inline constexpr const char* kJsonLines = "Print JSON objects, one a line, instead of text";

/// A mistake in the command line that only the command itself can see: unknown recipe, ...
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <class... Parts>
  explicit UsageError(fmt::format_string<Parts...> text, Parts&&... parts)
      : std::runtime_error(fmt::format(text, std::forward<Parts>(parts)...)) {}
};

/// Throws UsageError, with a message in fmt's syntax, unless the command line is right.
template <class... Parts>
void check_usage(bool is_right, fmt::format_string<Parts...> text, Parts&&... parts) {
  if (!is_right) throw UsageError(text, std::forward<Parts>(parts)...);
}

/// Runs f, which checks what the command line says, and makes its Error a UsageError: an unknown
/// GPU, a setting out of range. `option`, where the message does not name one: "--device".
template <class F>
auto as_usage(F&& f, const std::string& option = "") {
  try {
    return f();
  } catch (const Error& error) {
    throw UsageError("{}{}{}", option, option.empty() ? "" : ": ", error.what());
  }
}

/// Adds a command that runs run(arguments), whose options the caller makes fill `arguments`.
template <class Arguments, class Run>
std::pair<Command&, Arguments&> add_command(Command& parent, Action& action, Run run,
                                            const std::string& name, const std::string& description,
                                            const std::string& group = "Subcommands") {
  Command& command = parent.subcommand(name, description, group);
  const auto arguments = std::make_shared<Arguments>();
  command.on_parsed([=, &action] { action = [=] { return run(*arguments); }; });
  return {command, *arguments};
}

}  // namespace weft::cli
