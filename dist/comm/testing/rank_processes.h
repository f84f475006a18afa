// Tests whose ranks are processes: a test starts its own program again, and each rank runs one of
// its cases, with the tag [.rank], which hides it from the test itself.
#pragma once

#include <fmt/ranges.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "core/error.h"
#include "dist/comm/processes/launch.h"
#include "tests/shell.h"

namespace weft::dist {

/// This program, for commands that it runs.
inline std::string this_program() { return fmt::format("/proc/{}/exe", ::getpid()); }

/// The case under mpirun, a minute at most. `before` stands before the command: variables, or
/// nsenter.
inline CommandOutcome run_under_mpirun(const LaunchOptions& options, const std::string& name,
                                       const std::string& before = "") {
  return run_command(fmt::format("{} timeout -k 5 60 {} {} '{}'", before,
                                 fmt::join(mpirun_command(options), " "), this_program(), name));
}

/// The case as processes with torchrun's variables, each `seconds` at most. `variables` are more of
/// them, in which $r is the rank. The outcome's code is the number of ranks that failed.
inline CommandOutcome run_joined_ranks(int ranks, const std::string& name,
                                       const std::string& variables, int seconds) {
  return run_command(
      fmt::format("pids=''; for r in $(seq 0 {}); do env {} RANK=$r WORLD_SIZE={} LOCAL_RANK=$r "
                  "timeout -k 5 {} {} '{}' & pids=\"$pids $!\"; done; "
                  "code=0; for p in $pids; do wait $p || code=$((code + 1)); done; exit $code",
                  ranks - 1, variables, ranks, seconds, this_program(), name));
}

/// f(), whose error the rank says where the test reads it, and fails of.
template <class F>
void say_error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    fmt::print("{}\n", error.what());
    std::fflush(stdout);
    throw;
  }
}

}  // namespace weft::dist
