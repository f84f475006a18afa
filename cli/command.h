// What a subcommand of `weft` is: a function that declares its options and says what to run.
//
//   void add_train(CLI::App& app, Action& action) {
//     const auto [command, a] = add_command<Arguments>(app, action, run_train, "train",
//                                                      "Train a model", kTrainingCommands);
//     command.add_option("--epochs", a.epochs, "Passes over the training images");
//   }
//
// --help shows a new Arguments' values as the defaults, where default_str() says nothing else.
//
// A library of its own that defines it, and a line of cli/commands.bzl.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "cli/commands.h"  // IWYU pragma: export
#include "core/error.h"    // IWYU pragma: export

namespace weft::cli {

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

/// Adds a subcommand that runs run(arguments), whose options the caller makes fill `arguments`.
template <class Arguments, class Run>
std::pair<CLI::App&, Arguments&> add_command(CLI::App& parent, Action& action, Run run,
                                             const std::string& name,
                                             const std::string& description,
                                             const char* group = nullptr) {
  CLI::App& command = *parent.add_subcommand(name, description);
  if (group) command.group(group);
  const auto arguments = std::make_shared<Arguments>();
  command.callback([=, &action] { action = [=] { return run(*arguments); }; });
  return {command, *arguments};
}

/// What an option may have besides its name, its value and its help.
struct OptionForm {
  std::optional<CLI::Validator> check = {};
  std::string takes = {};                 // "FILE", where the value's type does not say it
  std::optional<std::string> usual = {};  // the default, where the value does not say it
};

template <class T>
CLI::Option* add_option(CLI::App& command, const std::string& name, T& value,
                        const std::string& help, const OptionForm& form) {
  CLI::Option* option = command.add_option(name, value, help);
  if (form.check) option->check(*form.check);
  if (!form.takes.empty()) option->type_name(form.takes);
  if (form.usual) option->default_str(*form.usual);
  return option;
}

}  // namespace weft::cli
