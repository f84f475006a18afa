// libFuzzer target: any words, one a line, are a command line of weft or a mistake in one. Nothing
// is run.
#include <string>
#include <vector>

#include "cli/command.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::cli;
  static Action action;
  static Command& app = [&]() -> Command& {
    static Command weft("weft", "fuzzed");
    weft.require_subcommand();
    for (const AddCommand add : commands()) add(weft, action);
    return weft;
  }();
  std::vector<std::string> words(1);
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      words.emplace_back();
    } else if (data[i] != 0) {
      words.back() += static_cast<char>(data[i]);
    }
  }
  try {
    app.parse(words);
  } catch (const weft::io::ParseError&) {
  } catch (const UsageError&) {
  } catch (const weft::Error&) {
  }
  return 0;
}
