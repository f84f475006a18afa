#include "dist/comm/processes/launch.h"

#include <fmt/core.h>
#include <omp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "dist/comm/processes/local_ranks.h"
#include "dist/comm/processes/mpi.h"

namespace weft::dist {
namespace {

bool is_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path ? path : "/usr/bin:/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (::access((directory + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

/// The library that the mpirun in PATH belongs to, as mpi_library() calls it; empty if there is
/// none.
std::string_view library_of_mpirun() {
  if (!is_in_path("mpirun")) return "";
  std::FILE* const pipe = ::popen("mpirun --version 2>/dev/null", "r");
  if (!pipe) return "";
  std::string text;
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  ::pclose(pipe);
  if (text.find("Open MPI") != std::string::npos) return "Open MPI";
  if (text.find("HYDRA") != std::string::npos) return "MPICH";
  return "unknown";
}

std::atomic<pid_t> running = 0;  // as kill() takes it
volatile sig_atomic_t stop_signal = SIGTERM;

volatile sig_atomic_t is_stopping = 0;
/// The ranks that run are not as many as their file says by now.
std::atomic<bool> is_outdated = false;

void stop(int) {
  is_stopping = 1;
  if (running != 0) ::kill(running, stop_signal);
}

void be_running(pid_t whom) {
  running = whom;
  // What came before there was anybody to tell.
  if (is_stopping || is_outdated) ::kill(whom, stop_signal);
}

struct Ended {
  int code = 0, lost = 0;  // ranks
};

Ended run_local(const RanksHere& here, const std::vector<std::string>& words) {
  LocalRanks processes(here, words);
  be_running(-processes.group());
  const int code = processes.wait();
  running = 0;
  return {code, processes.lost()};
}

/// Runs a program to its end.
int run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork_child();
  WEFT_CHECK(pid >= 0, "launch: cannot start a process: {}", std::strerror(errno));
  if (pid == 0) {
    // Apart from the terminal's Ctrl-C, which reaches the ranks through the launcher alone.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::execvp(arguments[0], arguments.data());
    fmt::print(stderr, "weft: error: launch: cannot run {}: {}\n", words[0], std::strerror(errno));
    ::_exit(127);
  }
  be_running(pid);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    WEFT_CHECK(errno == EINTR, "launch: waiting for {}: {}", words[0], std::strerror(errno));
  }
  running = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

bool has_mpirun() { return !mpi_library().empty() && library_of_mpirun() == mpi_library(); }

std::vector<std::string> mpirun_command(const LaunchOptions& options) {
  WEFT_CHECK(options.ranks > 0, "launch: the number of ranks must be positive, got {}",
             options.ranks);
  const std::string_view library = library_of_mpirun();
  WEFT_CHECK(!library.empty(),
             "launch: there is no mpirun in PATH; install Open MPI (Debian: openmpi-bin)");
  WEFT_CHECK(library == mpi_library(), "launch: the mpirun in PATH is of {}, but Weft was built {}",
             library,
             mpi_library().empty() ? "without MPI" : fmt::format("with {}", mpi_library()));
  std::vector<std::string> words = {"env"};
  const bool is_crowded = options.ranks > omp_get_num_procs();
  if (library == "MPICH") {
    if (is_crowded) words.emplace_back("OMP_WAIT_POLICY=passive");
    words.insert(words.end(), {"mpirun", "-bind-to", "none"});
    if (!options.hostfile.empty()) words.insert(words.end(), {"-f", options.hostfile});
  } else {
    if (::geteuid() == 0) {
      words.insert(words.end(), {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
    }
    words.insert(words.end(),
                 {"mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle",
                  "1", "--mca", "btl_vader_single_copy_mechanism", "none", "--mca",
                  "odls_base_sigkill_timeout", "3"});
    if (!options.hostfile.empty()) {
      words.insert(words.end(), {"--hostfile", options.hostfile, "-x", "PATH"});
    }
    if (is_crowded) words.insert(words.end(), {"-x", "OMP_WAIT_POLICY=passive"});
  }
  words.insert(words.end(), options.extra.begin(), options.extra.end());
  words.insert(words.end(), {"-n", std::to_string(options.ranks)});
  return words;
}

namespace {

/// A file that holds a number of ranks, looked at while the ranks run.
class RanksFile {
 public:
  explicit RanksFile(const std::string& path) : path_(path), ranks_(read()) {
    is_outdated = false;
    if (path.empty()) return;
    WEFT_CHECK(ranks_ > 0, "{}: expected a number of ranks", path);
    thread_ = std::thread([this] { watch(); });
  }
  ~RanksFile() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

  /// Whether it has changed since the last call, to a number of ranks, which `ranks` then is.
  bool take_change(int& ranks) {
    const bool has_changed = is_outdated.exchange(false);
    if (has_changed) ranks = ranks_;
    return has_changed;
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{200};

  int read() const {
    int ranks = 0;
    std::ifstream(path_) >> ranks;
    return ranks;
  }
  void watch() {
    while (!ends_) {
      std::this_thread::sleep_for(kInterval);
      const int ranks = read();
      if (ranks <= 0 || ranks == ranks_) continue;  // or it is being written
      ranks_ = ranks;
      is_outdated = true;
      if (const pid_t whom = running; whom != 0) ::kill(whom, stop_signal);
    }
  }

  const std::string path_;
  std::atomic<int> ranks_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

/// While it lives, signals that ask this process to stop are passed on to the ranks.
class StopsRanks {
 public:
  explicit StopsRanks(int by) {
    stop_signal = by;
    is_stopping = 0;
    struct sigaction action = {};
    action.sa_handler = stop;
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], &action, &before_[i]);
      // Under nohup a hang-up stays without effect.
      const bool is_ignored = kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN;
      if (is_ignored) ::sigaction(SIGHUP, &before_[i], nullptr);
    }
  }
  ~StopsRanks() {
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  StopsRanks(const StopsRanks&) = delete;
  StopsRanks& operator=(const StopsRanks&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[std::size(kSignals)] = {};
};

/// The first host of an mpirun's file.
std::string first_host(const std::string& hostfile) {
  std::ifstream file(hostfile);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string host;
    if (words >> host && host[0] != '#') return host.substr(0, host.find(':'));
  }
  return "127.0.0.1";
}

/// Where ranks of several hosts meet. After a restart it is the next port: at the last one a rank 0
/// may still be about to end.
MeetingPoint meeting_of_hosts(int restarts) {
  MeetingPoint meeting = meeting_point({.address = "", .port = kUsualPort});
  constexpr int kLast = 65535;
  meeting.port = std::min(meeting.port + restarts, kLast);
  return meeting;
}

/// Whether a rank was ended by a signal that nobody here has sent, as mpirun's exit code tells.
bool is_lost(int code) { return code > 128 && code <= 128 + SIGRTMAX && code != 128 + SIGTERM; }

Ended start(const LaunchOptions& options, const std::vector<std::string>& program, int restarts) {
  // Other hosts are mpirun's: what is missing is its error.
  const bool is_local =
      options.hosts > 1 || (options.hostfile.empty() && options.extra.empty() && !has_mpirun());
  if (is_local) {
    WEFT_CHECK(options.ranks % options.hosts == 0,
               "launch: {} ranks cannot be dealt out evenly to {} hosts", options.ranks,
               options.hosts);
    return run_local({.ranks = options.ranks / options.hosts,
                      .hosts = options.hosts,
                      .host = options.host,
                      .meeting = options.hosts > 1 ? meeting_of_hosts(restarts) : meeting_point(),
                      .restarts = restarts},
                     program);
  }
  std::vector<std::string> words = mpirun_command(options);
  if (restarts > 0 || !options.as_rank.empty()) words.emplace_back("env");
  if (restarts > 0) words.push_back(fmt::format("{}={}", kRestartVariable, restarts));
  if (!options.as_rank.empty()) {
    const MeetingPoint meeting = meeting_point({.address = first_host(options.hostfile)});
    words.insert(words.end(),
                 {"MASTER_ADDR=" + meeting.address, fmt::format("MASTER_PORT={}", meeting.port)});
    words.insert(words.end(), options.as_rank.begin(), options.as_rank.end());
  }
  words.insert(words.end(), program.begin(), program.end());
  const int code = run(words);
  return {code, is_lost(code)};
}

}  // namespace

int launch(const LaunchOptions& asked, const std::vector<std::string>& command,
           const std::function<std::vector<std::string>(int)>& restart_command) {
  WEFT_CHECK(!command.empty(), "launch: no command to run");
  WEFT_CHECK(asked.ranks > 0, "launch: the number of ranks must be positive, got {}", asked.ranks);
  WEFT_CHECK(asked.host >= 0 && asked.host < asked.hosts,
             "launch: expected a host's number below {}, got {}", asked.hosts, asked.host);
  WEFT_CHECK(asked.min_ranks <= asked.ranks,
             "launch: the ranks that have to be left must be at most {}, got {}", asked.ranks,
             asked.min_ranks);
  LaunchOptions options = asked;
  Ended ended;
  {
    const StopsRanks stops(options.stop_signal);
    RanksFile wanted(options.ranks_file);
    int restarts = 0;
    for (int starts = 0;; ++starts) {
      const bool is_again = starts > 0 && restart_command;
      ended = start(options, is_again ? restart_command(options.ranks) : command, starts);
      if (ended.code == 0 || is_stopping) break;
      if (wanted.take_change(options.ranks)) {
        fmt::print(stderr, "weft: {} says {}: going on with so many ranks\n", options.ranks_file,
                   options.ranks);
        continue;
      }
      // 2 is a mistake in the command line, 130 an interruption: neither gets better by repeating.
      const bool is_final = ended.code == 2 || ended.code == 130;
      if (is_final || restarts == options.max_restarts) break;
      if (options.min_ranks > 0) {
        options.ranks -= ended.lost;
        if (options.ranks < options.min_ranks) {
          fmt::print(stderr, "weft: a rank failed (exit code {}); {} are left of at least {}\n",
                     ended.code, options.ranks, options.min_ranks);
          break;
        }
      }
      ++restarts;
      fmt::print(stderr, "weft: a rank failed (exit code {}); restart {} of {}{}\n", ended.code,
                 restarts, options.max_restarts,
                 options.min_ranks > 0 ? fmt::format(", on {} ranks", options.ranks) : "");
    }
  }
  // Ranks that were still starting when they were asked to stop end by the signal.
  return is_stopping && ended.code > 128 ? 130 : ended.code;
}

}  // namespace weft::dist
