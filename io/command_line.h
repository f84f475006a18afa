// What a program's command line may say: commands and their options, each bound to the value that
// it fills. A façade of CLI11, which takes seconds to include.
//
//   io::Command weft("weft", "Tensors and automatic differentiation");
//   io::Command& train = weft.subcommand("train", "Train a model");
//   train.option("--epochs", epochs, "Passes over the training images", {.check = io::positive()});
//   train.option("--output", path, "Directory of the run", {.takes = "DIR", .usual = "runs/N"});
//
//     --epochs N                Passes over the training images (default: 10)
//     --output DIR              Directory of the run (default: runs/N)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace weft::io {

/// What must hold for an option's value, or for each of a list.
using Check = std::shared_ptr<const CLI::Validator>;
Check positive();
Check non_negative();
Check in_range(int least, int most);
Check in_range(double least, double most);
Check one_of(const std::vector<std::string>& names);
Check existing_file();
/// Of a text: one that is not empty, as that of an unset variable of a shell is.
Check not_empty();

/// What an option may have besides its name, its value and its help.
struct OptionForm {
  Check check = {};
  std::string takes = {};                 // "FILE", where the value's type does not say it
  std::optional<std::string> usual = {};  // the default in help, where the value does not say it
  bool required = false;
  char delimiter = 0;                             // ',': takes a list, "a,b"
  std::optional<std::pair<int, int>> count = {};  // fewest and most values; of 0, `usual` is taken
  std::vector<std::string> excludes = {};  // options declared before, not to go with this one
  std::vector<std::string> needs = {};     // options declared before, that must go with this one
  std::string environment = {};            // a variable that stands in for the option
  std::function<void()> then = {};         // called once the command line has set the value
};

/// A mistake in the command line: the option's name, the value, what was expected; of an unknown
/// name the nearest known one.
class ParseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A program, or a command of one. Values must live until the command line is parsed.
class Command {
 public:
  /// A program.
  Command(const std::string& name, const std::string& description);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// Adds a command, which lives as long as this one. `group` is its heading in this one's help.
  Command& subcommand(const std::string& name, const std::string& description,
                      const std::string& group = "Subcommands");
  /// One of them must be named; without this, at most one may be.
  void require_subcommand();

  /// The heading of the options that follow; an empty one hides them.
  void group(const std::string& heading);
  /// `name` begins with "--", or is that of a positional: "FILE". The value is the default.
  template <class T>
  void option(const std::string& name, T& value, const std::string& help,
              const OptionForm& form = {}) {
    add(name, &value, help, form);
  }
  /// Of the form, `usual`, `excludes` and `then` apply. "--flip,!--no-flip" can be switched off,
  /// too.
  void flag(const std::string& name, bool& value, const std::string& help,
            const OptionForm& form = {});
  /// True or absent.
  void flag(const std::string& name, std::optional<bool>& value, const std::string& help);
  /// Those that are declared, by their first names: "--epochs".
  std::vector<std::string> options() const;
  /// One more check of an option that there is.
  void add_check(const std::string& option, const Check& check);
  /// --version prints `text`.
  void version(const std::string& text);
  /// What help ends in.
  void footer(const std::string& text);

  /// Called when the command line is parsed and names this command.
  void on_parsed(std::function<void()> callback);
  /// Whether the command line named this command.
  bool is_parsed() const;
  /// Leaves the words behind the command's own to remaining(), whatever they are.
  void leave_remaining();
  std::vector<std::string> remaining() const;

  /// Sets the values. Returns what is to be printed instead of running: of --help and --version.
  /// `words` are without the program's name. Throws ParseError.
  std::optional<std::string> parse(std::vector<std::string> words);
  std::optional<std::string> parse(int argc, const char* const* argv);
  std::string help() const;

 private:
  using Value =
      std::variant<int*, int64_t*, uint64_t*, double*, std::string*, std::optional<int64_t>*,
                   std::optional<double>*, std::vector<int>*, std::vector<int64_t>*,
                   std::vector<double>*, std::vector<std::string>*>;

  Command(std::shared_ptr<CLI::App> app, std::shared_ptr<std::vector<std::string>> words)
      : app_(std::move(app)), words_(std::move(words)) {}
  void add(const std::string& name, Value value, const std::string& help, const OptionForm& form);

  std::shared_ptr<CLI::App> app_;
  std::shared_ptr<std::vector<std::string>> words_;  // of the command line
  std::vector<std::unique_ptr<Command>> subcommands_;
};

}  // namespace weft::io
