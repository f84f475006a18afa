// What a piece of a test says on standard error.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

namespace weft {

/// What `run` writes to this process's standard error, which gets it from no other thread
/// meanwhile.
template <class F>
std::string captured_stderr(F&& run) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int kept = dup(2);
  const auto restore = [kept] {
    std::fflush(stderr);
    dup2(kept, 2);
    close(kept);
  };
  dup2(fileno(file), 2);
  try {
    run();
  } catch (...) {
    restore();
    std::fclose(file);
    throw;
  }
  restore();
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

}  // namespace weft
