#include "cli/run_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/command.h"

extern char** environ;

namespace weft::cli {

int run_program(const std::vector<std::string>& words,
                const std::function<void(const std::string&)>& line) {
  int ends[2];
  WEFT_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::FILE* const out = ::fdopen(ends[0], "r");
  if (error == 0) {
    char* text = nullptr;
    size_t capacity = 0;
    for (ssize_t n; (n = ::getline(&text, &capacity, out)) >= 0;) {
      line(std::string(text, text[n - 1] == '\n' ? n - 1 : n));
    }
    std::free(text);
  }
  std::fclose(out);
  WEFT_CHECK(error == 0, "cannot start {}: {}", words[0], std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kFailure;
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  words.at(0) = std::filesystem::read_symlink("/proc/self/exe");
  return words;
}

}  // namespace weft::cli
