// Runs the `weft` program from a test, which names //cli:weft as its data.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace weft::cli {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

/// A path of the test's own for a scratch file.
inline std::string scratch(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return std::string(directory ? directory : "/tmp") + "/" + name;
}

/// The program with a shell's command line behind it.
inline Outcome run_weft(const std::string& arguments) {
  // A test starts in its runfiles; by hand, from the repository root.
  const std::string program =
      std::filesystem::exists("cli/weft") ? "cli/weft" : "bazel-bin/cli/weft";
  const std::string out = scratch("stdout.txt"), err = scratch("stderr.txt");
  const std::string command = "(" + program + " " + arguments + ") >" + out + " 2>" + err;
  const int status = std::system(command.c_str());
  const auto read = [](const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
}

}  // namespace weft::cli
