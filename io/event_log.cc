#include "io/event_log.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft::io {

bool write_through(std::FILE* out, std::string_view text) {
  constexpr int kPatience = 2000;  // milliseconds
  if (std::fflush(out) != 0) return false;
  const int descriptor = ::fileno(out);
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
      continue;
    }
    if (written < 0 && errno == EINTR) continue;
    if (written == 0 || errno != EAGAIN) return false;
    pollfd room = {.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, kPatience) == 0) {
      errno = EAGAIN;
      return false;
    }
  }
  return true;
}

void EventLog::write(std::string_view event, const nlohmann::ordered_json& fields) {
  if (!out_ || has_failed_) return;
  nlohmann::ordered_json line = {{"event", event}};
  line.update(fields);
  using nlohmann::json;
  if (write_through(out_, line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n")) return;
  has_failed_ = true;
  const std::string reason =
      fmt::format("weft: cannot write the JSON events: {}\n",
                  errno == EAGAIN ? "nobody reads them" : std::strerror(errno));
  std::fputs(reason.c_str(), stderr);
  if (on_failure_) on_failure_();
}

}  // namespace weft::io
