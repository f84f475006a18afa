#include "cli/compare/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "core/error.h"

extern char** environ;

namespace weft::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  return last.substr(0, 300);
}

}  // namespace

WorkerProcess::WorkerProcess(std::string name, const std::vector<std::string>& command,
                             std::string log, double timeout_seconds)
    : name_(std::move(name)), log_(std::move(log)), timeout_seconds_(timeout_seconds) {
  // A socket in place of two pipes: writing to one that nobody reads can be an error, not a signal.
  int ends[2];
  WEFT_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
             "{}: cannot make a socket: {}", name_, std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log_.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error =
      ::posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  socket_ = ends[0];
  if (error != 0) {
    pid_ = 0;
    ::close(socket_);
    WEFT_FAIL("{}: cannot start {}: {}", name_, command[0], std::strerror(error));
  }
}

WorkerProcess::~WorkerProcess() { stop(2); }

void WorkerProcess::stop(double patience_seconds) {
  if (pid_ <= 0) return;
  ::close(socket_);
  const Clock::time_point start = Clock::now();
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (std::chrono::duration<double>(Clock::now() - start).count() >= patience_seconds) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  pid_ = 0;
}

void WorkerProcess::fail(const std::string& what) {
  stop(0.2);
  const std::string reason = last_line(log_);
  WEFT_FAIL("{} {}{}{}", name_, what, reason.empty() ? "" : ": ", reason);
}

std::string WorkerProcess::read_line() {
  const Clock::time_point start = Clock::now();
  while (true) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    const double left =
        timeout_seconds_ - std::chrono::duration<double>(Clock::now() - start).count();
    pollfd ready = {.fd = socket_, .events = POLLIN, .revents = 0};
    const int count = left > 0 ? ::poll(&ready, 1, static_cast<int>(1e3 * left) + 1) : 0;
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) fail(fmt::format("did not answer within {:g} s", timeout_seconds_));
    char buffer[4096];
    const ssize_t bytes = ::recv(socket_, buffer, sizeof buffer, 0);
    if (bytes <= 0) fail("ended without an answer");
    received_.append(buffer, static_cast<size_t>(bytes));
  }
}

nlohmann::ordered_json WorkerProcess::ask(const nlohmann::ordered_json& request) {
  WEFT_CHECK(is_alive(), "{} is not running any more", name_);
  const std::string text = request.dump() + "\n";
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t bytes = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) fail("ended without an answer");
    sent += static_cast<size_t>(bytes);
  }
  const std::string line = read_line();
  nlohmann::ordered_json answer = nlohmann::ordered_json::parse(line, nullptr, false);
  if (!answer.is_object()) fail(fmt::format("answered \"{}\"", line.substr(0, 100)));
  if (answer.contains("error")) {
    WEFT_FAIL(
        "{}: {}", name_,
        answer["error"].is_string() ? answer["error"].get<std::string>() : answer["error"].dump());
  }
  return answer;
}

}  // namespace weft::cli
