#include "dist/comm/processes/rank_environment.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace weft::dist {
namespace {

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

const char* variable(const char* name) {
  const char* const text = std::getenv(name);
  return text && *text ? text : nullptr;
}

}  // namespace

MeetingPoint meeting_point(const MeetingPoint& otherwise) {
  MeetingPoint meeting = otherwise;
  if (const char* const set = variable("MASTER_ADDR")) meeting.address = set;
  WEFT_CHECK(!meeting.address.empty(),
             "launch: several hosts need MASTER_ADDR, the address of the first, and MASTER_PORT");
  const char* const port = variable("MASTER_PORT");
  if (!port) {
    if (meeting.port == 0) meeting.port = free_port();
    return meeting;
  }
  char* end = nullptr;
  const long value = std::strtol(port, &end, 10);
  WEFT_CHECK(*end == '\0' && value > 0 && value < 65536,
             "MASTER_PORT: expected a number from 1 to 65535, got \"{}\"", port);
  meeting.port = static_cast<int>(value);
  return meeting;
}

void set_rank_environment(const RankPlace& place, const MeetingPoint& meeting) {
  const auto set = [](const char* name, int value) {
    ::setenv(name, std::to_string(value).c_str(), 1);
  };
  set("RANK", place.rank);
  set("WORLD_SIZE", place.size);
  set("LOCAL_RANK", place.local_rank);
  set("LOCAL_WORLD_SIZE", place.local_size);
  set("GROUP_RANK", place.rank / place.local_size);
  set("GROUP_WORLD_SIZE", (place.size + place.local_size - 1) / place.local_size);
  set("ROLE_RANK", place.rank);
  set("ROLE_WORLD_SIZE", place.size);
  ::setenv("MASTER_ADDR", meeting.address.c_str(), 1);
  set("MASTER_PORT", meeting.port);
}

}  // namespace weft::dist
