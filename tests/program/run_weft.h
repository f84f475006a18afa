// Runs the `weft` program from a test, which names //cli:weft as its data, or WEFT_WITH_DEVICE.
//
//   Outcome outcome = run_weft("inspect " + file);   // with a shell's quoting and redirections
//   check_error(run_weft("trian"), 2, "unknown command \"trian\"");
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
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

/// The same for a directory, which is empty or absent afterwards.
inline std::string fresh_scratch(const std::string& name) {
  const std::string path = scratch(name);
  std::filesystem::remove_all(path);
  return path;
}

inline std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The program's absolute path.
inline std::string weft_program() {
  // Tests share the machine's cores: threads that wait should sleep.
  ::setenv("GOMP_SPINCOUNT", "0", 1);
  // A test starts in its runfiles; in a bundle, or by hand, it lies beside the program.
  namespace fs = std::filesystem;
  for (const char* program : {"cli/weft", "cli/weft_emulated"}) {
    if (fs::exists(program)) return fs::absolute(program);
  }
  return fs::read_symlink("/proc/self/exe").parent_path() / "weft";
}

/// A shell's command line.
inline Outcome run_shell(const std::string& text) {
  const std::string out = scratch("stdout.txt"), err = scratch("stderr.txt");
  const int status = std::system(("(" + text + ") >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

/// The program with a shell's command line behind it. It gets ten minutes: machines differ.
inline Outcome run_weft(const std::string& arguments) {
  return run_shell("timeout 600 " + weft_program() + " " + arguments);
}

/// An error is one line, on standard error alone.
inline void check_error(const Outcome& outcome, int code, const std::string& message) {
  using namespace Catch::Matchers;
  CHECK(outcome.code == code);
  CHECK(outcome.out == "");
  CHECK_THAT(outcome.err, StartsWith("weft: error: ") && Contains(message));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

/// The program in the background, its standard output read a line at a time. Its pipe holds one
/// page: it cannot run ahead of its reader by more.
class BackgroundWeft {
 public:
  explicit BackgroundWeft(const std::string& arguments) : err_(scratch("background.txt")) {
    const std::string command = "exec " + weft_program() + " " + arguments + " 2>" + err_;
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    REQUIRE(::fcntl(ends[0], F_SETPIPE_SZ, 4096) > 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    lines_ = ::fdopen(ends[0], "r");
  }
  ~BackgroundWeft() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::fclose(lines_);
  }
  BackgroundWeft(const BackgroundWeft&) = delete;
  BackgroundWeft& operator=(const BackgroundWeft&) = delete;

  /// The next line of standard output, waited for; empty at its end.
  std::string line() {
    char* text = nullptr;
    size_t capacity = 0;
    const ssize_t length = ::getline(&text, &capacity, lines_);
    std::string result(text, length > 0 ? static_cast<size_t>(length) : 0);
    std::free(text);
    return result;
  }

  void send(int signal) { REQUIRE(::kill(pid_, signal) == 0); }

  /// Waits for the end; `out` is what line() has not returned yet.
  Outcome finish() {
    Outcome outcome;
    for (std::string next = line(); !next.empty(); next = line()) outcome.out += next;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome.err = read_file(err_);
    return outcome;
  }

 private:
  const std::string err_;
  pid_t pid_ = 0;
  std::FILE* lines_ = nullptr;
};

}  // namespace weft::cli
