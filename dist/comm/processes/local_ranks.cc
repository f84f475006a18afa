#include "dist/comm/processes/local_ranks.h"

#include <fmt/core.h>
#include <omp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "core/error.h"

namespace weft::dist {
namespace {

constexpr std::chrono::seconds kGrace{3};

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

/// A secret of this run's own: 128 random bits, in hexadecimal.
std::string make_secret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += fmt::format("{:08x}", random());
  return secret;
}

[[noreturn]] void become_rank(const RanksHere& here, int rank, const std::string& directory,
                              const std::string& secret, std::vector<char*>& arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (here.restarts > 0) {
    set(kRestartVariable, std::to_string(here.restarts));
    set(kFirstRanksVariable, std::to_string(here.first_ranks));
  }
  set_rank_environment({.rank = here.host * here.ranks + rank,
                        .size = here.hosts * here.ranks,
                        .local_rank = rank,
                        .local_size = here.ranks},
                       here.meeting);
  if (here.hosts == 1) {
    set("WEFT_STORE", directory);
    ::setenv("WEFT_SECRET", secret.c_str(), 0);  // unless somebody has given one
  }
  if (here.ranks > omp_get_num_procs()) set("OMP_WAIT_POLICY", "passive");
  ::execvp(arguments[0], arguments.data());
  fmt::print(stderr, "weft: error: launch: cannot run {}: {}\n", arguments[0],
             std::strerror(errno));
  ::_exit(127);
}

}  // namespace

pid_t fork_child() {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction inherited;
      ::sigaction(signal, nullptr, &inherited);
      if (inherited.sa_handler != SIG_IGN) ::signal(signal, SIG_DFL);
    }
    forget_outer_rank();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

LocalRanks::LocalRanks(const RanksHere& here, const std::vector<std::string>& command)
    : stopped_(here.ranks) {
  directory_ = std::filesystem::temp_directory_path() / "weft-ranks-XXXXXX";
  WEFT_CHECK(::mkdtemp(directory_.data()), "launch: cannot make {}: {}", directory_,
             std::strerror(errno));
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const std::string secret = make_secret();
  for (int rank = 0; rank < here.ranks; ++rank) {
    const pid_t pid = fork_child();
    if (pid == 0) {
      ::setpgid(0, group_);
      become_rank(here, rank, directory_, secret, arguments);
    }
    if (pid < 0) {
      const int error = errno;
      if (group_ > 0) ::kill(-group_, SIGKILL);
      wait();
      std::filesystem::remove_all(directory_);
      WEFT_FAIL("launch: cannot start a process: {}", std::strerror(error));
    }
    // Here, too: whoever comes first. None is waited for before all are members, so the group
    // stays.
    if (group_ == 0) group_ = pid;
    ::setpgid(pid, group_);
    ++running_;
  }
}

LocalRanks::~LocalRanks() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

int LocalRanks::wait() {
  using Clock = std::chrono::steady_clock;
  int first_failure = 0;
  Clock::time_point deadline = Clock::time_point::max();
  while (running_ > 0) {
    int status = 0;
    const pid_t pid = ::waitpid(-group_, &status, WNOHANG);
    if (pid < 0) {
      WEFT_CHECK(errno == EINTR, "launch: waiting for the ranks: {}", std::strerror(errno));
      continue;
    }
    if (pid == 0) {
      if (Clock::now() > deadline) ::kill(-group_, SIGKILL);
      std::this_thread::sleep_for(StoppedRanks::kInterval);
      stopped_.look(::getpid());
      continue;
    }
    --running_;
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // Others fail because of it, or are told to end.
    const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) != SIGTERM;
    lost_ += is_killed && Clock::now() <= deadline;
    if (code == 0 || first_failure != 0) continue;
    first_failure = code;
    deadline = Clock::now() + kGrace;
    ::kill(-group_, SIGTERM);
  }
  if (first_failure != 0) stopped_.tell();
  return first_failure;
}

}  // namespace weft::dist
