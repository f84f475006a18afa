// A program on the other end of a line of JSON: asked, it answers.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace weft::cli {

/// A child process that answers each line of JSON on its standard input with one on its standard
/// output. Its standard error goes to a file. It ends with its input; the destructor gives it two
/// seconds to do so, then kills it.
class WorkerProcess {
 public:
  /// `name` is for messages. Throws Error naming the program when it cannot be started.
  WorkerProcess(std::string name, const std::vector<std::string>& command, std::string log,
                double timeout_seconds);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  /// The answer. Throws Error with the answer's "error", and, after which nothing more can be
  /// asked, when the process ends, takes longer, or says something else than JSON: then the message
  /// holds the last line of its standard error.
  nlohmann::ordered_json ask(const nlohmann::ordered_json& request);
  bool is_alive() const { return pid_ > 0; }

 private:
  std::string read_line();
  [[noreturn]] void fail(const std::string& what);
  void stop(double patience_seconds);

  const std::string name_, log_;
  const double timeout_seconds_;
  pid_t pid_ = 0;
  int socket_ = -1;
  std::string received_;
};

}  // namespace weft::cli
