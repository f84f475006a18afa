// The `weft` program: finds the subcommand, runs it, turns errors into one line and an exit code.

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "core/signal_stack.h"
#include "core/version.h"
#include "io/files.h"
#include "kernels/instruction_set.h"

namespace weft::cli {
namespace {

int report(std::string message, int code) {
  std::ranges::replace(message, '\n', ' ');
  fmt::print(stderr, "weft: error: {}\n", message);
  return code;
}

int run(int argc, char** argv) {
  Command app("weft", "Weft: tensors, automatic differentiation and vision transformers.");
  app.require_subcommand();
  app.version("weft " WEFT_VERSION);
  Action action;
  for (const AddCommand add : commands()) add(app, action);
  app.footer(
      "weft COMMAND --help lists a command's options. Flags, which take no value, are off by "
      "default.\n"
      "./weft test [--all] runs the tests; ./weft install [--prefix DIR] makes a library for other "
      "programs;\n"
      "./weft --flavor host|cuda COMMAND says what to build; --device emulated runs a command's "
      "CUDA\n"
      "kernels on an emulated GPU.");
  try {
    if (const auto text = app.parse(argc, argv)) {
      fmt::print("{}", *text);
      return 0;
    }
  } catch (const io::ParseError& error) {
    return report(error.what(), kUsage);
  }
  return action();
}

/// A closed descriptor 0, 1 or 2 would become the next file's, and what is printed would land
/// there.
void open_standard_descriptors() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

/// A file that is mapped and then cut short faults where it is read.
void report_bus_error(int) {
  constexpr std::string_view kMessage =
      "weft: error: a file was cut short while it was being read (SIGBUS)\n";
  [[maybe_unused]] const ssize_t written = ::write(2, kMessage.data(), kMessage.size());
  ::_exit(kFailure);
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) {
  weft::cli::open_standard_descriptors();
  // A file that grows beyond the process's limit is then an error of write(), as on a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  try {
    weft::ensure_signal_stack();
    struct sigaction action = {};
    action.sa_handler = weft::cli::report_bus_error;
    action.sa_flags = SA_ONSTACK;
    ::sigaction(SIGBUS, &action, nullptr);
    weft::kernels::apply_instruction_set_of_environment();
    weft::io::apply_file_fault_of_environment();
    const int code = weft::cli::run(argc, argv);
    // Standard output may be a full disk or a closed pipe: what was promised there is then missing.
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
      return weft::cli::report("cannot write to standard output", weft::cli::kFailure);
    }
    return code;
  } catch (const weft::cli::UsageError& error) {
    return weft::cli::report(error.what(), weft::cli::kUsage);
  } catch (const std::exception& error) {
    return weft::cli::report(error.what(), weft::cli::kFailure);
  }
}
