#include "dist/comm/processes/launch.h"

#include <fmt/core.h>
#include <omp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

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

volatile pid_t running = 0;  // as kill() takes it
volatile sig_atomic_t stop_signal = SIGTERM;

volatile sig_atomic_t is_stopping = 0;

void stop(int) {
  is_stopping = 1;
  if (running != 0) ::kill(running, stop_signal);
}

void be_running(pid_t whom) {
  running = whom;
  if (is_stopping) ::kill(whom, stop_signal);  // it came before there was anybody to tell
}

int run_local(int ranks, const std::vector<std::string>& words) {
  LocalRanks processes(ranks, words);
  be_running(-processes.group());
  const int code = processes.wait();
  running = 0;
  return code;
}

/// Runs a program to its end.
int run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
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

int launch(const LaunchOptions& options, const std::vector<std::string>& command, int max_restarts,
           const std::function<std::vector<std::string>()>& restart_command) {
  WEFT_CHECK(!command.empty(), "launch: no command to run");
  WEFT_CHECK(options.ranks > 0, "launch: the number of ranks must be positive, got {}",
             options.ranks);
  // Other hosts are mpirun's alone: what is missing is its error.
  const bool is_local = options.hostfile.empty() && options.extra.empty() && !has_mpirun();
  constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction action = {}, before[std::size(kSignals)] = {};
  action.sa_handler = stop;
  stop_signal = options.stop_signal;
  is_stopping = 0;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &action, &before[i]);
    // Under nohup a hang-up stays without effect.
    const bool is_ignored = kSignals[i] == SIGHUP && before[i].sa_handler == SIG_IGN;
    if (is_ignored) ::sigaction(SIGHUP, &before[i], nullptr);
  }
  int code = 0;
  for (int restart = 0;; ++restart) {
    const std::vector<std::string> program =
        restart > 0 && restart_command ? restart_command() : command;
    if (is_local) {
      code = run_local(options.ranks, program);
    } else {
      std::vector<std::string> words = mpirun_command(options);
      words.insert(words.end(), program.begin(), program.end());
      code = run(words);
    }
    // 2 is a mistake in the command line, 130 an interruption: neither gets better by repeating.
    const bool is_final = code == 0 || code == 2 || code == 130 || is_stopping;
    if (is_final || restart == max_restarts) break;
    fmt::print(stderr, "weft: a rank failed (exit code {}); restart {} of {}\n", code, restart + 1,
               max_restarts);
  }
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before[i], nullptr);
  // Ranks that were still starting when they were asked to stop end by the signal.
  return is_stopping && code > 128 ? 130 : code;
}

}  // namespace weft::dist
