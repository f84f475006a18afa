#include "dist/comm/processes/rank_environment.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace weft::dist {
namespace {

constexpr const char* kTorchRestartVariable = "TORCHELASTIC_RESTART_COUNT";

/// Free when it was asked for.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  WEFT_CHECK(socket >= 0, "launch: no socket: {}", std::strerror(errno));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool is_bound = ::bind(socket, any, size) == 0 && ::getsockname(socket, any, &size) == 0;
  const int error = errno;
  ::close(socket);
  WEFT_CHECK(is_bound, "launch: no free port: {}", std::strerror(error));
  return ntohs(address.sin_port);
}

/// Of Open MPI's mpirun (by OMPI_MCA_ess* it says how a rank finds it), PMIx, MPICH's mpirun, a
/// step of Slurm's, and a launcher's restarts.
bool is_of_outer_rank(std::string_view name) {
  if (name.starts_with("PMIX_MCA_")) return false;
  const auto starts = [name](std::string_view prefix) { return name.starts_with(prefix); };
  constexpr std::string_view kPrefixes[] = {
      "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess", "PMIX_", "PMI_", "MPI_LOCAL"};
  constexpr std::string_view kOfStep[] = {
      "SLURM_STEP_ID", "SLURM_STEPID",  "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
      "SLURM_PROCID",  "SLURM_LOCALID", "SLURM_GTIDS"};
  constexpr std::string_view kOfRestarts[] = {kRestartVariable, kTorchRestartVariable,
                                              kFirstRanksVariable};
  return std::ranges::any_of(kPrefixes, starts) || std::ranges::count(kOfStep, name) > 0 ||
         std::ranges::count(kOfRestarts, name) > 0;
}

}  // namespace

const char* variable(const char* name) {
  const char* const text = std::getenv(name);
  return text && *text ? text : nullptr;
}

int variable_number(const char* name, int low, int high) {
  const char* const text = variable(name);
  WEFT_CHECK(text, "{} is not set: expected a number from {} to {}", name, low, high);
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  WEFT_CHECK(*end == '\0' && value >= low && value <= high,
             "{}: expected a number from {} to {}, got \"{}\"", name, low, high, text);
  return static_cast<int>(value);
}

MeetingPoint meeting_point(const MeetingPoint& otherwise) {
  MeetingPoint meeting = otherwise;
  if (const char* const set = variable("MASTER_ADDR")) meeting.address = set;
  WEFT_CHECK(!meeting.address.empty(),
             "launch: several hosts need MASTER_ADDR, the address of the first, and MASTER_PORT");
  if (variable("MASTER_PORT")) {
    meeting.port = variable_number("MASTER_PORT", 1, 65535);
  } else if (meeting.port == 0) {
    meeting.port = free_port();
  }
  return meeting;
}

void set_rank_environment(const RankPlace& place, const MeetingPoint& meeting, Present present) {
  const auto set = [present](const char* name, const std::string& value) {
    if (present == Present::kKept && variable(name)) return;
    ::setenv(name, value.c_str(), 1);
  };
  const auto set_number = [&](const char* name, int value) { set(name, std::to_string(value)); };
  set_number(kTorchRestartVariable, restarts());
  set_number("RANK", place.rank);
  set_number("WORLD_SIZE", place.size);
  set_number("LOCAL_RANK", place.local_rank);
  set_number("LOCAL_WORLD_SIZE", place.local_size);
  set_number("GROUP_RANK", place.rank / place.local_size);
  set_number("GROUP_WORLD_SIZE", (place.size + place.local_size - 1) / place.local_size);
  set_number("ROLE_RANK", place.rank);
  set_number("ROLE_WORLD_SIZE", place.size);
  if (meeting.address.empty()) return;
  set("MASTER_ADDR", meeting.address);
  set_number("MASTER_PORT", meeting.port);
}

void forget_outer_rank() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (is_of_outer_rank(name)) names.emplace_back(name);
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

int restarts() {
  for (const char* name : {kRestartVariable, kTorchRestartVariable}) {
    if (variable(name)) return variable_number(name, 0, std::numeric_limits<int>::max());
  }
  return 0;
}

int first_ranks() {
  return variable(kFirstRanksVariable) ? variable_number(kFirstRanksVariable, 1, kMostRanks) : 0;
}

}  // namespace weft::dist
