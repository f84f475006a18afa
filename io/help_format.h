// The form of `--help`, the same for every program (io/command_line.h): an option with what it
// takes, then a phrase, wrapped, that ends in the default.
#pragma once

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>
#include <utility>

namespace weft::io {

class HelpFormat : public CLI::Formatter {
 public:
  HelpFormat() { column_width(kTextColumn); }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    // CLI11 leaves two empty lines between groups.
    return CLI::detail::find_and_replace(CLI::Formatter::make_help(app, std::move(name), mode),
                                         "\n\n\n", "\n\n");
  }

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), kColumns) + "\n";
  }

  /// "--flip,--no-flip": CLI11 would add a flag's values in braces.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (size_t open; (open = name.find('{')) != std::string::npos;) {
      name.erase(open, name.find('}', open) + 1 - open);
    }
    return name;
  }

  /// What the option takes: "FILE"; N and X stand for whole and real numbers.
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0 || !option->nonpositional()) return "";
    // Validators' texts follow a colon: the phrase says what is allowed.
    std::string takes = option->get_type_name();
    takes = takes.substr(0, takes.find(':'));
    if (takes == "INT" || takes == "UINT") takes = "N";
    if (takes == "FLOAT") takes = "X";
    if (takes == "TEXT") takes = "NAME";
    if (option->get_expected_max() > 1) takes += option->get_delimiter() == ',' ? ",..." : " ...";
    return " " + takes;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    std::string usual = option->get_default_str();
    if (usual.starts_with('[') && usual.ends_with(']')) usual = usual.substr(1, usual.size() - 2);
    if (option->get_required()) text += " (required)";
    constexpr size_t kWidth = kColumns - kTextColumn;
    text = wrapped(text, kWidth);
    if (usual.empty()) return text;
    usual = "(default: " + usual + ")";
    const size_t last_line = text.size() - (text.rfind('\n') + 1);
    const bool fits = last_line + 1 + usual.size() <= kWidth;
    return text + (fits ? ' ' : '\n') + wrapped(usual, kWidth);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    const std::string name = "  " + command->get_display_name(true);
    const std::string indent(kTextColumn, ' ');
    std::string text =
        name.size() < kTextColumn ? name + indent.substr(name.size()) : name + '\n' + indent;
    for (const char c : wrapped(command->get_description(), kColumns - kTextColumn)) {
      text += c;
      if (c == '\n') text += indent;
    }
    return text + '\n';
  }

 private:
  static constexpr size_t kColumns = 100, kTextColumn = 30;

  /// Breaks lines between words so that none is longer than `width`, where words allow it.
  static std::string wrapped(const std::string& text, size_t width) {
    std::string result;
    size_t column = 0;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      if (column > 0) {
        const bool fits = column + 1 + word.size() <= width;
        result += fits ? ' ' : '\n';
        column = fits ? column + 1 : 0;
      }
      result += word;
      column += word.size();
    }
    return result;
  }
};

}  // namespace weft::io
