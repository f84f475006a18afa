// Starting a program as several ranks.
//
//   int code = launch({.ranks = 4}, {"./program", "argument"});
//   std::vector<std::string> words = mpirun_command({.ranks = 4});   // "mpirun", "-n", "4", ...
//
// Ranks are started by mpirun, Open MPI's or MPICH's, where it is of the library that this was
// built with. Without it they are processes of this host that talk over TCP (join.h), and other
// hosts cannot be used.
//
// When a rank fails, the launcher sends SIGTERM to the others and SIGKILL three seconds later: in
// between they find out who is missing, say in which collective, and end (mpi.h), or save what they
// have.
#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace weft::dist {

struct LaunchOptions {
  int ranks = 1;                   // on all hosts
  std::string hostfile;            // mpirun's; empty: this host
  std::vector<std::string> extra;  // further words for mpirun
  /// Between mpirun and the program: "weft launch --", which sets torchrun's variables from
  /// mpirun's. Empty: nothing does.
  std::vector<std::string> as_rank = {};
  /// Without mpirun: this host of several, on each of which somebody launches the same, with as
  /// many ranks. They meet at MASTER_ADDR and MASTER_PORT.
  int hosts = 1, host = 0;
  /// What launch() sends on SIGINT, SIGTERM and SIGHUP to mpirun, or to the ranks. SIGTERM ends the
  /// ranks; SIGUSR1 and SIGUSR2 mpirun passes on to them.
  int stop_signal = SIGTERM;

  // What becomes of a run whose ranks change in number.
  int max_restarts = 0;  // of a run that failed: all its ranks are started again
  /// The run goes on with the ranks that no signal has ended, or as many of them as it can, while
  /// these are at least so many, and ends with fewer; 0: it goes on with as many as before. Of
  /// mpirun's ranks one is lost at a time, as its exit code says.
  int min_ranks = 0;
  /// A file that holds a number of ranks. When it changes the ranks get stop_signal, and as many as
  /// it says are started, or as many of them as the run can have, else as many as before; that is
  /// no restart of those above. What is no number is told on standard error. Empty: none.
  std::string ranks_file = {};
};

/// Whether there is an mpirun in PATH, of the MPI that this was built with.
bool has_mpirun();

/// The words to put in front of a program and its arguments: what mpirun must be told to work as
/// root, in containers (no cross-memory attach), and with more ranks than cores (no binding,
/// waiting ranks yield). Throws Error when there is no mpirun, or that of another MPI.
std::vector<std::string> mpirun_command(const LaunchOptions& options);

/// Throws Error where a file, of LaunchOptions::ranks_file, holds no number of ranks.
void check_ranks_file(const std::string& path);

/// What a run that is started again is started as, of so many ranks. Throws where it cannot be of
/// so many.
using RestartCommand = std::function<std::vector<std::string>(int ranks)>;

/// Runs `command` as ranks and returns the exit code: the first that is not 0, 128 + the number of
/// a signal that ended mpirun, 130 where a signal asked this process to stop. Without a
/// `restart_command` it is the same at every start. Ranks that are started again find
/// kRestartVariable and kFirstRanksVariable set (rank_environment.h), the others do not, whatever
/// this process does. Throws Error for a hostfile that names no host.
int launch(const LaunchOptions& options, const std::vector<std::string>& command,
           const RestartCommand& restart_command = {});

}  // namespace weft::dist
