// Command lines that a test runs: another program, or its own again.
#pragma once

#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

namespace weft {

struct CommandOutcome {
  int code = -1;     // the shell's; -1 when a signal ended it
  std::string text;  // of standard output and standard error, as they came
};

/// Runs a shell's command line to its end. Whoever writes it bounds its time: `timeout 60 ...`.
inline CommandOutcome run_command(const std::string& command) {
  std::FILE* const pipe = ::popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  CommandOutcome outcome;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.text.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace weft
