#include "cli/torture/child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/error.h"

namespace weft::cli {
namespace {

using Clock = std::chrono::steady_clock;

int children = 0;

std::string text_of(const io::Path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::string ChildEnd::last_words() const {
  size_t begin = err.find("weft: error: ");
  if (begin == err.npos) begin = err.find_last_of('\n', err.find_last_not_of("\n ")) + 1;
  return err.substr(begin, err.find('\n', begin) - begin);
}

Child::Child(const io::Path& scratch, const std::vector<std::string>& arguments,
             const std::map<std::string, std::string>& environment)
    : out_(scratch / "out"),
      err_(scratch / "err"),
      mark_(fmt::format("{}-{}", ::getpid(), ++children)) {
  io::make_directories(scratch);
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<char*> words = {program.data()};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_ = ::fork();
  WEFT_CHECK(pid_ >= 0, "torture: cannot start a process: {}", std::strerror(errno));
  if (pid_ == 0) {
    ::setenv("WEFT_TORTURE", mark_.c_str(), 1);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    const io::Path* const files[] = {&out_, &err_};
    for (int i = 0; i < 2; ++i) {
      const int descriptor = ::open(files[i]->c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      if (descriptor < 0 || ::dup2(descriptor, i + 1) < 0) ::_exit(126);
      ::close(descriptor);
    }
    ::execv(words[0], words.data());
    ::_exit(127);
  }
}

Child::~Child() {
  if (!has_ended_) wait(0);
  kill_all();
}

void Child::signal(int number) const {
  if (!has_ended_) ::kill(pid_, number);
}

void Child::kill() {
  const io::Path program = std::filesystem::read_symlink("/proc/self/exe");
  // mpirun sees its ranks die, and takes their shared memory away.
  const auto patience = Clock::now() + std::chrono::seconds(10);
  // Who starts others may do so while they are looked for.
  while (!has_ended(0) || !family().empty()) {
    for (const pid_t pid : family()) {
      std::error_code gone;
      const bool is_ours =
          std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), gone) == program;
      if (is_ours || Clock::now() > patience) ::kill(pid, SIGKILL);
    }
    pause();
  }
}

void Child::pause() const { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

bool Child::has_ended(double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!has_ended_) {
    if (::waitpid(pid_, &status_, WNOHANG) == pid_) {
      has_ended_ = true;
    } else if (Clock::now() >= end) {
      break;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  return has_ended_;
}

ChildEnd Child::wait(double seconds) {
  ChildEnd end;
  end.is_late = !has_ended(seconds);
  if (end.is_late) {
    kill_all();
    has_ended(60);
  }
  end.code = WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  end.out = text_of(out_);
  end.err = text_of(err_);
  return end;
}

std::vector<pid_t> Child::family(const std::string& variable) const {
  std::vector<pid_t> pids;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    // A zombie's environment is empty.
    const std::string environment = '\0' + text_of(entry.path() / "environ");
    const auto has = [&](const std::string& entry) {
      return environment.find('\0' + entry + '\0') != environment.npos;
    };
    if (has("WEFT_TORTURE=" + mark_) && (variable.empty() || has(variable))) pids.push_back(pid);
  }
  return pids;
}

void Child::kill_all() const {
  for (const pid_t pid : family()) ::kill(pid, SIGKILL);
}

int64_t process_status(pid_t pid, const std::string& field) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(field + ":")) continue;
    const int64_t number = std::strtoll(line.c_str() + field.size() + 1, nullptr, 10);
    return line.ends_with(" kB") ? number * 1024 : number;
  }
  return 0;
}

int64_t open_files(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator files(fmt::format("/proc/{}/fd", pid), error);
  return error ? 0 : std::distance(begin(files), end(files));
}

}  // namespace weft::cli
