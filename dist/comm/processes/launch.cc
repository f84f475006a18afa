#include "dist/comm/processes/launch.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <omp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"
#include "dist/comm/processes/local_ranks.h"
#include "dist/comm/processes/mpi.h"
#include "dist/comm/processes/stopped_ranks.h"
#include "io/files.h"
#include "io/quote.h"

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

/// Runs an mpirun to its end.
int run(const std::vector<std::string>& words, StoppedRanks stopped) {
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
  for (pid_t ended = 0; ended != pid; ended = ::waitpid(pid, &status, WNOHANG)) {
    WEFT_CHECK(ended == 0 || errno == EINTR, "launch: waiting for {}: {}", words[0],
               std::strerror(errno));
    std::this_thread::sleep_for(StoppedRanks::kInterval);
    stopped.look(pid);
  }
  running = 0;
  if (status != 0) stopped.tell();
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

constexpr int kMostInFile = 1 << 16;  // as of --devices

/// A file's beginning, without the space around it.
std::string beginning_of(const std::string& path) {
  constexpr const char* kSpace = " \t\r\n";
  char text[64] = {};
  // Without waiting for whoever would write into a pipe, which is none.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status = {};
  if (file >= 0 && ::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
    [[maybe_unused]] const ssize_t read = ::read(file, text, sizeof(text) - 1);
  }
  if (file >= 0) ::close(file);
  const std::string_view all = text;
  const size_t begin = std::min(all.find_first_not_of(kSpace), all.size());
  return std::string(all.substr(begin, all.find_last_not_of(kSpace) + 1 - begin));
}

/// 0 for a text that is no number of ranks.
int ranks_in(const std::string& text) {
  int ranks = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, ranks);
  return error == std::errc() && rest == end && ranks > 0 && ranks <= kMostInFile ? ranks : 0;
}

std::string fault_of_ranks(const std::string& path, const std::string& text) {
  return fmt::format("{}: expected a number of ranks from 1 to {}, got {}", path, kMostInFile,
                     io::quote(text));
}

/// A file that holds a number of ranks, looked at while the ranks run.
class RanksFile {
 public:
  explicit RanksFile(const std::string& path)
      : path_(path), text_(beginning_of(path)), ranks_(ranks_in(text_)) {
    is_outdated = false;
    if (path.empty()) return;
    WEFT_CHECK(ranks_ > 0, "{}", fault_of_ranks(path_, text_));
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

  void watch() {
    for (std::string before = text_; !ends_;) {
      std::this_thread::sleep_for(kInterval);
      std::string text = beginning_of(path_);
      const bool is_whole = std::exchange(before, text) == text;  // else it may be being written
      if (!is_whole || text == text_) continue;
      text_ = std::move(text);
      const int ranks = ranks_in(text_);
      if (ranks == 0) {
        fmt::print(stderr, "weft: {}; the run goes on as it is\n", fault_of_ranks(path_, text_));
      }
      if (ranks == 0 || ranks == ranks_) continue;
      ranks_ = ranks;
      is_outdated = true;
      if (const pid_t whom = running; whom != 0) ::kill(whom, stop_signal);
    }
  }

  const std::string path_;
  std::string text_;  // the latest that was looked at, of the thread alone
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

/// The first host of an mpirun's file; without one this host.
std::string first_host(const std::string& hostfile) {
  if (hostfile.empty()) return "127.0.0.1";
  std::istringstream file(io::read_text(hostfile));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string host;
    if (words >> host && host[0] != '#') return host.substr(0, host.find(':'));
  }
  WEFT_FAIL("launch: {}: expected a host on each line, \"node1 slots=4\", got none", hostfile);
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

Ended start(const LaunchOptions& options, const std::vector<std::string>& program, int restarts,
            int first_ranks) {
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
                      .restarts = restarts,
                      .first_ranks = first_ranks},
                     program);
  }
  std::vector<std::string> words = mpirun_command(options);
  const std::string host = first_host(options.hostfile);
  if (restarts > 0 || !options.as_rank.empty()) words.emplace_back("env");
  if (restarts > 0) {
    words.insert(words.end(), {fmt::format("{}={}", kRestartVariable, restarts),
                               fmt::format("{}={}", kFirstRanksVariable, first_ranks)});
  }
  if (!options.as_rank.empty()) {
    const MeetingPoint meeting = meeting_point({.address = host});
    words.insert(words.end(),
                 {"MASTER_ADDR=" + meeting.address, fmt::format("MASTER_PORT={}", meeting.port)});
    words.insert(words.end(), options.as_rank.begin(), options.as_rank.end());
  }
  words.insert(words.end(), program.begin(), program.end());
  const bool is_here = options.hostfile.empty() && options.extra.empty();
  int code = run(words, StoppedRanks(is_here ? options.ranks : 0));
  // An mpirun that is told to end says 1 of its own.
  if (is_stopping && options.stop_signal == SIGTERM && code != 0) code = 128 + SIGTERM;
  return {code, is_lost(code)};
}

/// "1 rank", "2 ranks"
std::string counted(int ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

/// How a run is started.
struct Start {
  int ranks = 0;
  std::vector<std::string> command;
  std::string reason = {};  // ": ", and why it is not on the first number of ranks that was tried
};

/// On the first of these numbers of ranks that it can be on. Throws Error that says what is in the
/// way of the first of them, where none will do.
Start start_on(const std::vector<int>& numbers, const RestartCommand& command) {
  std::string reason;
  for (const int ranks : numbers) {
    try {
      return {ranks, command(ranks), reason};
    } catch (const std::exception& error) {
      if (reason.empty()) reason = fmt::format(": {}", error.what());
    }
  }
  WEFT_FAIL("on {}{}{}", counted(numbers[0]), numbers.size() > 1 ? " or fewer" : "", reason);
}

/// most, most - 1, ..., least
std::vector<int> down(int most, int least) {
  std::vector<int> numbers;
  for (int n = most; n >= least; --n) numbers.push_back(n);
  return numbers;
}

}  // namespace

void check_ranks_file(const std::string& path) {
  const std::string text = beginning_of(path);
  WEFT_CHECK(ranks_in(text) > 0, "{}", fault_of_ranks(path, text));
}

int launch(const LaunchOptions& asked, const std::vector<std::string>& command,
           const RestartCommand& restart_command) {
  WEFT_CHECK(!command.empty(), "launch: no command to run");
  WEFT_CHECK(asked.ranks > 0, "launch: the number of ranks must be positive, got {}", asked.ranks);
  WEFT_CHECK(asked.host >= 0 && asked.host < asked.hosts,
             "launch: expected a host's number below {}, got {}", asked.hosts, asked.host);
  WEFT_CHECK(asked.min_ranks <= asked.ranks,
             "launch: the ranks that have to be left must be at most {}, got {}", asked.ranks,
             asked.min_ranks);
  const RestartCommand again = restart_command ? restart_command : [&](int) { return command; };
  LaunchOptions options = asked;
  Ended ended;
  {
    const StopsRanks stops(options.stop_signal);
    RanksFile wanted(options.ranks_file);
    Start next = {options.ranks, command};
    int left = options.ranks, restarts = 0;
    for (int starts = 0;; ++starts) {
      options.ranks = next.ranks;
      ended = start(options, next.command, starts, asked.ranks);
      if (ended.code == 0 || is_stopping) break;
      try {
        if (wanted.take_change(left)) {
          std::vector<int> numbers = down(left, 1);
          numbers.push_back(options.ranks);
          next = start_on(numbers, again);
          const bool is_as_asked = next.ranks == left;
          fmt::print(stderr, "weft: {} says {}: going on with {}{}\n", options.ranks_file, left,
                     is_as_asked ? "so many ranks" : counted(next.ranks), next.reason);
          left = std::max(left, next.ranks);
          continue;
        }
        // 2 is a mistake in the command line, 130 an interruption: neither gets better by
        // repeating.
        const bool is_final = ended.code == 2 || ended.code == 130;
        if (is_final || restarts == options.max_restarts) break;
        const bool may_shrink = options.min_ranks > 0;
        if (may_shrink) left -= ended.lost;
        if (left < options.min_ranks) {
          fmt::print(stderr, "weft: a rank failed (exit code {}); {} are left of at least {}\n",
                     ended.code, left, options.min_ranks);
          break;
        }
        next = start_on(
            may_shrink ? down(left, options.min_ranks) : std::vector<int>{options.ranks}, again);
        ++restarts;
        fmt::print(stderr, "weft: a rank failed (exit code {}); restart {} of {}{}\n", ended.code,
                   restarts, options.max_restarts,
                   may_shrink ? fmt::format(", on {}{}", counted(next.ranks), next.reason) : "");
      } catch (const Error& error) {
        fmt::print(stderr,
                   "weft: the ranks ended with exit code {} and cannot be started again {}\n",
                   ended.code, error.what());
        break;
      }
    }
  }
  // Ranks that were still starting when they were asked to stop end by the signal.
  return is_stopping && ended.code > 128 ? 130 : ended.code;
}

}  // namespace weft::dist
