#include "io/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "io/help_format.h"

namespace weft::io {
namespace {

void take_form(CLI::Option& option, const OptionForm& form) {
  if (form.check) option.check(*form.check);
  if (!form.takes.empty()) option.type_name(form.takes);
  if (form.usual) option.default_str(*form.usual);
  if (form.delimiter != 0) option.delimiter(form.delimiter);
  if (form.count) option.expected(form.count->first, form.count->second);
  for (const std::string& other : form.excludes) option.excludes(other);
  if (!form.environment.empty()) option.envname(form.environment);
  option.required(form.required);
}

}  // namespace

Check positive() { return std::make_shared<CLI::Validator>(CLI::PositiveNumber); }
Check non_negative() { return std::make_shared<CLI::Validator>(CLI::NonNegativeNumber); }
Check in_range(int least, int most) {
  return std::make_shared<CLI::Validator>(CLI::Range(least, most));
}
Check in_range(double least, double most) {
  return std::make_shared<CLI::Validator>(CLI::Range(least, most));
}
Check one_of(const std::vector<std::string>& names) {
  return std::make_shared<CLI::Validator>(CLI::IsMember(names));
}
Check existing_file() { return std::make_shared<CLI::Validator>(CLI::ExistingFile); }

Command::Command(const std::string& name, const std::string& description)
    : app_(std::make_shared<CLI::App>(description, name)) {
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
  subcommands_.emplace_back(new Command(app_->get_subcommand_ptr(command)));
  return *subcommands_.back();
}

void Command::require_subcommand() { app_->require_subcommand(1); }

bool Command::has_subcommand(const std::string& name) const {
  return std::ranges::any_of(subcommands_, [&](const std::unique_ptr<Command>& command) {
    return command->app_->get_name() == name;
  });
}

void Command::group(const std::string& heading) { app_->option_defaults()->group(heading); }

void Command::add(const std::string& name, Value value, const std::string& help,
                  const OptionForm& form) {
  CLI::Option* const option = std::visit(
      [&]<class T>(T* target) {
        if (!form.then) return app_->add_option(name, *target, help);
        const auto set = [target, then = form.then](const T& given) {
          *target = given;
          then();
        };
        return app_->add_option_function<T>(name, set, help);
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
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app_->parse(std::move(words));
    return {};
  } catch (const CLI::CallForHelp&) {
    return help();
  } catch (const CLI::CallForVersion& version) {
    return std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    throw ParseError(error.what());
  }
}

std::optional<std::string> Command::parse(int argc, const char* const* argv) {
  return parse(std::vector<std::string>(argv + 1, argv + argc));
}

std::string Command::help() const { return app_->help(); }

}  // namespace weft::io
