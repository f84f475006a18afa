#include "io/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <type_traits>

#include "io/help_format.h"
#include "io/nearest.h"

namespace weft::io {
namespace {

void take_form(CLI::Option& option, const OptionForm& form) {
  if (form.check) option.check(*form.check);
  if (!form.takes.empty()) option.type_name(form.takes);
  if (form.usual) option.default_str(*form.usual);
  if (form.delimiter != 0) option.delimiter(form.delimiter);
  if (form.count) option.expected(form.count->first, form.count->second);
  for (const std::string& other : form.excludes) option.excludes(other);
  for (const std::string& other : form.needs) option.needs(other);
  if (!form.environment.empty()) option.envname(form.environment);
  option.required(form.required);
}

/// "" where it holds, else what was expected.
Check expecting(const std::string& expected, const std::function<bool(double)>& holds) {
  const auto check = [=](const std::string& word) {
    double value = 0;
    const bool is_right = CLI::detail::lexical_cast(word, value) && holds(value);
    return is_right ? std::string() : fmt::format("expected {}, got {}", expected, word);
  };
  return std::make_shared<CLI::Validator>(check, "");
}

template <class T>
T element(const T*);
template <class T>
T element(const std::optional<T>*);
template <class T>
T element(const std::vector<T>*);

/// Makes a word the whole number that it is, in decimal digits: CLI11 would take 010 for 8. Says
/// what was expected of one that is none.
template <class Element>
std::string take_whole_number(std::string& word) {
  const bool has_plus = word.starts_with('+') && !word.starts_with("+-");
  const char *const begin = word.data() + has_plus, *const end = word.data() + word.size();
  Element value = 0;
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error == std::errc() && rest == end) {
    word = std::to_string(value);
    return {};
  }
  const bool is_too_large = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
  return fmt::format(
      "expected a whole number{}{}, got {}", std::is_unsigned_v<Element> ? ", 0 or more" : "",
      is_too_large ? fmt::format(", at most {}", std::numeric_limits<Element>::max()) : "", word);
}

/// Numbers are numbers, which CLI11 finds out too late to say what was expected. A text is anything
/// but the next option, unless it is joined to its own: "--prompt=--x". `words`: those that are
/// parsed.
template <class T>
void check_type(CLI::Option& option, const T* target,
                const std::shared_ptr<const std::vector<std::string>>& words) {
  using Element = decltype(element(target));
  if constexpr (std::is_integral_v<Element>) {
    option.transform(CLI::Validator(take_whole_number<Element>, ""));
  } else if constexpr (std::is_floating_point_v<Element>) {
    option.check([](const std::string& word) {
      Element value;
      errno = 0;
      const bool is_right = CLI::detail::lexical_cast(word, value) && errno != ERANGE;
      return is_right ? std::string() : fmt::format("expected a number, got {}", word);
    });
  } else if (option.nonpositional()) {
    option.check([words](const std::string& word) {
      const bool is_joined = std::ranges::any_of(*words, [&](const std::string& given) {
        return given.starts_with("--") && given.ends_with("=" + word);
      });
      return is_joined || !word.starts_with("--") ? std::string()
                                                  : fmt::format("expected a value, got {}", word);
    });
  }
}

/// The command that the words have named.
const CLI::App& named_command(const CLI::App& program) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

/// What is wrong with the number of an option's values, of which CLI11 says `what`; "": nothing
/// that its own words do not say.
std::string fault_of_count(const CLI::App& program, const std::string& what) {
  const std::string name = what.substr(0, what.find(':'));
  const CLI::Option* const option = named_command(program).get_option_no_throw(name);
  if (!option) return {};
  if (what.ends_with(" missing")) return name + ": expected a value, got none";
  if (option->get_items_expected_max() > 1) return {};
  return fmt::format("{}: expected once, got {} times", name, option->count());
}

/// The first of the given words that no command knows; "": all are known. Where only options can be
/// unknown, they come first: what seems to be an argument may be the value of one.
std::string unknown_word(const CLI::App& program, const std::vector<std::string>& given,
                         bool has_commands) {
  std::vector<std::string> unknown = program.remaining(true);
  std::erase(unknown, "--");
  if (unknown.empty() || has_commands) return unknown.empty() ? "" : unknown[0];
  const auto end = std::ranges::find(given, "--");  // behind it nothing is an option
  const auto option = std::find_if(given.begin(), end, [&](const std::string& word) {
    return word.starts_with('-') && std::ranges::count(unknown, word) > 0;
  });
  return option == end ? unknown[0] : *option;
}

/// The first option with a value that is joined to none, "--epochs="; "": there is no such. CLI11
/// would take the next word, or what the option means without a value.
std::string joined_to_nothing(const CLI::App& program, const std::vector<std::string>& given) {
  const CLI::App& command = named_command(program);
  if (command.get_prefix_command()) return {};
  const auto end = std::ranges::find(given, "--");
  for (auto word = given.begin(); word != end; ++word) {
    if (!word->starts_with("--") || word->find('=') + 1 != word->size()) continue;
    const std::string name = word->substr(0, word->size() - 1);
    const CLI::Option* const option = command.get_option_no_throw(name);
    if (option && option->get_items_expected_max() > 0) return name;
  }
  return {};
}

/// What is wrong with the first word that no command knows; "": all are known.
std::string fault_of_words(const CLI::App& program, const std::vector<std::string>& given) {
  const CLI::App& command = named_command(program);
  if (command.get_prefix_command()) return {};
  std::vector<std::string> known;
  for (const CLI::App* other : command.get_subcommands({})) known.push_back(other->get_name());
  std::string word = unknown_word(program, given, !known.empty());
  if (word.empty()) return {};
  const char* kind = known.empty() ? "argument" : "command";
  const auto end = std::ranges::find(given, "--");  // behind it nothing is an option
  if (word.starts_with('-') && std::find(given.begin(), end, word) != end) {
    kind = "option";
    word = word.substr(0, word.find('='));
    known.clear();
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  return fmt::format("unknown {} \"{}\"{}", kind, word, did_you_mean(word, known));
}

}  // namespace

Check positive() {
  return expecting("a positive number",
                   [](double x) { return x > 0 && x <= std::numeric_limits<double>::max(); });
}
Check non_negative() {
  return expecting("a number that is not negative",
                   [](double x) { return x >= 0 && x <= std::numeric_limits<double>::max(); });
}
Check in_range(int least, int most) {
  return in_range(static_cast<double>(least), static_cast<double>(most));
}
Check in_range(double least, double most) {
  return expecting(fmt::format("{} to {}", least, most),
                   [=](double x) { return x >= least && x <= most; });
}
Check one_of(const std::vector<std::string>& names) {
  const auto check = [names](const std::string& word) {
    return std::ranges::find(names, word) != names.end()
               ? std::string()
               : fmt::format("expected one of {}, got \"{}\"{}", fmt::join(names, ", "), word,
                             did_you_mean(word, names));
  };
  return std::make_shared<CLI::Validator>(check, "");
}
Check not_empty() {
  const auto check = [](const std::string& word) {
    return std::string(word.empty() ? "expected a value, got none" : "");
  };
  return std::make_shared<CLI::Validator>(check, "");
}
Check existing_file() { return std::make_shared<CLI::Validator>(CLI::ExistingFile); }

Command::Command(const std::string& name, const std::string& description)
    : app_(std::make_shared<CLI::App>(description, name)),
      words_(std::make_shared<std::vector<std::string>>()) {
  app_->formatter(std::make_shared<HelpFormat>());
  app_->option_defaults()->always_capture_default();  // commands inherit it
  app_->require_subcommand(0, 1);
}

Command& Command::subcommand(const std::string& name, const std::string& description,
                             const std::string& group) {
  CLI::App* const command = app_->add_subcommand(name, description);
  // Not this one's, which CLI11 hands down.
  command->group(group)->footer("");
  command->option_defaults()->group("Options");
  subcommands_.emplace_back(new Command(app_->get_subcommand_ptr(command), words_));
  return *subcommands_.back();
}

void Command::require_subcommand() { app_->require_subcommand(1); }

void Command::group(const std::string& heading) { app_->option_defaults()->group(heading); }

void Command::add(const std::string& name, Value value, const std::string& help,
                  const OptionForm& form) {
  CLI::Option* const option = std::visit(
      [&]<class T>(T* target) {
        const auto set = [target, then = form.then](const T& given) {
          *target = given;
          then();
        };
        CLI::Option* const added = form.then ? app_->add_option_function<T>(name, set, help)
                                             : app_->add_option(name, *target, help);
        check_type(*added, target, words_);
        return added;
      },
      value);
  take_form(*option, form);
}

void Command::flag(const std::string& name, bool& value, const std::string& help,
                   const OptionForm& form) {
  const auto set = [&value, then = form.then](int64_t count) {
    value = count > 0;
    then();
  };
  take_form(
      form.then ? *app_->add_flag_function(name, set, help) : *app_->add_flag(name, value, help),
      form);
}

void Command::flag(const std::string& name, std::optional<bool>& value, const std::string& help) {
  app_->add_flag_callback(
      name, [&value] { value = true; }, help);
}

std::vector<std::string> Command::options() const {
  std::vector<std::string> names;
  for (const CLI::Option* const option : app_->get_options()) {
    if (!option->nonpositional() || option == app_->get_help_ptr()) continue;
    names.push_back("--" + option->get_lnames().front());
  }
  return names;
}

void Command::add_check(const std::string& option, const Check& check) {
  app_->get_option(option)->check(*check);
}

void Command::version(const std::string& text) {
  app_->set_version_flag("--version", text, "Print the version and exit");
}

void Command::footer(const std::string& text) { app_->footer(text); }

void Command::on_parsed(std::function<void()> callback) { app_->callback(std::move(callback)); }

bool Command::is_parsed() const { return app_->parsed(); }

void Command::leave_remaining() { app_->prefix_command(); }

std::vector<std::string> Command::remaining() const { return app_->remaining(); }

std::optional<std::string> Command::parse(std::vector<std::string> words) {
  *words_ = words;
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app_->parse(std::move(words));
    const std::string empty = joined_to_nothing(*app_, *words_);
    if (empty.empty()) return {};
    throw ParseError(empty + ": expected a value, got none; see --help");
  } catch (const CLI::CallForHelp&) {
    return help();
  } catch (const CLI::CallForVersion& version) {
    return std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
    const bool may_be_unknown =
        code == CLI::ExitCodes::ExtrasError || code == CLI::ExitCodes::RequiredError;
    std::string fault = may_be_unknown ? fault_of_words(*app_, *words_) : "";
    if (code == CLI::ExitCodes::ArgumentMismatch) fault = fault_of_count(*app_, error.what());
    if (fault.empty()) fault = error.what();
    throw ParseError(fault.ends_with('?') ? fault : fault + "; see --help");
  }
}

std::optional<std::string> Command::parse(int argc, const char* const* argv) {
  return parse(std::vector<std::string>(argv + 1, argv + argc));
}

std::string Command::help() const { return app_->help(); }

}  // namespace weft::io
