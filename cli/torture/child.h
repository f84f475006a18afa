// Processes that torture starts, hurts and waits for.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "io/files.h"

namespace weft::cli {

/// How a process ended, and what it said.
struct ChildEnd {
  int code = -1;  // its exit code, 128 + the number of the signal that ended it
  bool is_late = false;
  std::string out, err;

  /// The program's error, else the last line of standard error.
  std::string last_words() const;
};

/// The program at hand as a process of its own. What it prints goes to files in `scratch`. It and
/// all that it starts carry a mark in their environment, by which they are found and killed.
class Child {
 public:
  Child(const io::Path& scratch, const std::vector<std::string>& arguments,
        const std::map<std::string, std::string>& environment = {});
  /// Kills all that is left.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Kills it and all processes of this program that it has started, and waits until none is there.
  void kill();
  /// Waits a little.
  void pause() const;
  /// Waits so long; false while it still runs.
  bool has_ended(double seconds);
  /// Waits for the end. After so many seconds all are killed and the end is late.
  ChildEnd wait(double seconds);
  /// Processes that carry the mark and are alive; with `variable`, "NAME=VALUE", those that have it
  /// in their environment.
  std::vector<pid_t> family(const std::string& variable = "") const;

 private:
  void kill_all() const;

  const io::Path out_, err_;
  const std::string mark_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool has_ended_ = false;
};

/// A number of /proc/PID/status ("VmRSS", in bytes; "Threads"), 0 when the process is gone.
int64_t process_status(pid_t pid, const std::string& field);
/// Open descriptors of a process.
int64_t open_files(pid_t pid);

}  // namespace weft::cli
