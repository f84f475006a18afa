#include "dist/comm/processes/join.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/parallel.h"
#include "dist/comm/processes/mpi.h"
#include "dist/comm/processes/tcp.h"

namespace weft::dist {
namespace {

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text && *text ? text : nullptr;
}

int number(const char* name, int low, int high) {
  const char* text = variable(name);
  WEFT_CHECK(text, "RANK and WORLD_SIZE are set, but {} is not", name);
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  WEFT_CHECK(*end == '\0' && value >= low && value <= high,
             "{}: expected a number from {} to {}, got \"{}\"", name, low, high, text);
  return static_cast<int>(value);
}

bool has_torchrun_variables() { return variable("RANK") && variable("WORLD_SIZE"); }

std::shared_ptr<Store> environment_store(int rank, double timeout) {
  if (const char* directory = variable("WEFT_STORE")) return make_file_store(directory, timeout);
  const char* host = variable("MASTER_ADDR");
  WEFT_CHECK(host, "RANK and WORLD_SIZE are set, but MASTER_ADDR is not");
  int port = number("MASTER_PORT", 1, 65535);
  // torchrun's agent serves a store of its own at that port, and says so.
  const char* agent = variable("TORCHELASTIC_USE_AGENT_STORE");
  if (agent && std::strcmp(agent, "True") == 0) port = port == 65535 ? port - 1 : port + 1;
  return make_tcp_store(
      {.host = host, .port = port, .serves = rank == 0, .timeout_seconds = timeout});
}

}  // namespace

bool is_rank() { return is_mpi_rank() || has_torchrun_variables(); }

CommunicatorPtr join_world(const HostOptions& options) {
  if (is_mpi_rank()) return make_mpi_world({.host = options});
  WEFT_CHECK(has_torchrun_variables(),
             "this process is no rank: neither mpirun nor torchrun's RANK and WORLD_SIZE");
  const int size = number("WORLD_SIZE", 1, 1 << 20), rank = number("RANK", 0, size - 1);
  if (!std::getenv("OMP_NUM_THREADS")) {
    set_num_threads(std::max(1, omp_get_num_procs() / local_size()));
  }
  return make_tcp_world(environment_store(rank, options.timeout_seconds), rank, size, options);
}

int local_rank() {
  if (is_mpi_rank() || !variable("LOCAL_RANK")) return mpi_local_rank();
  return number("LOCAL_RANK", 0, 1 << 20);
}

int local_size() {
  if (is_mpi_rank() || !variable("LOCAL_WORLD_SIZE")) return mpi_local_size();
  return number("LOCAL_WORLD_SIZE", 1, 1 << 20);
}

}  // namespace weft::dist
