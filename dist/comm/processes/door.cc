#include "dist/comm/processes/door.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "dist/comm/transport.h"

namespace weft::dist {
namespace {

using Clock = Socket::Clock;

constexpr double kPatience = 5;        // seconds
constexpr size_t kMostDropped = 1024;  // that are named
constexpr uint32_t kVersion = 1;

/// Strangers at once: an eighth of the files that this process may have open.
size_t most_pending() {
  static const size_t most = [] {
    rlimit limit = {};
    const bool is_known =
        ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return is_known ? std::clamp<size_t>(limit.rlim_cur / 8, 4, 1024) : 1024;
  }();
  return most;
}

enum class Answer : char { kWelcome, kOtherSecret, kOtherVersion };

struct Greeting {
  char magic[8] = {'w', 'e', 'f', 't', '-', 't', 'c', 'p'};
  uint32_t version = kVersion;
  int32_t who = 0;
  char secret[64] = {};
};
static_assert(sizeof(Greeting) == 80);

Greeting own_greeting(int32_t who) {
  Greeting greeting{.who = who};
  constexpr size_t most = sizeof greeting.secret;
  std::string_view secret;
  if (const char* const given = std::getenv("WEFT_SECRET")) {
    secret = given;
    WEFT_CHECK(secret.size() <= most, "WEFT_SECRET has {} bytes: expected at most {}",
               secret.size(), most);
  } else {
    for (const char* const name : {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
      const char* const id = std::getenv(name);
      if (id && secret.empty()) secret = id;
    }
  }
  secret.copy(greeting.secret, most);
  return greeting;
}

/// In the same time wherever they differ.
bool are_equal(const char (&a)[64], const char (&b)[64]) {
  int difference = 0;
  for (size_t i = 0; i < sizeof a; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace

void Door::add_to(std::vector<pollfd>& entries) const {
  const bool rests = pending_.size() >= most_pending() || Clock::now() < rests_until_;
  if (!rests) entries.push_back({listener_.descriptor(), POLLIN, 0});
  for (const Pending& pending : pending_) {
    entries.push_back({pending.socket.descriptor(), POLLIN, 0});
  }
}

std::vector<Guest> Door::admit() {
  while (pending_.size() < most_pending() && Clock::now() >= rests_until_) {
    Socket socket(
        ::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.descriptor() < 0) {
      // Without a descriptor left, poll would return at once again and again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) rests_until_ = after(0.2);
      break;
    }
    socket.send_at_once();
    pending_.push_back({std::move(socket), Clock::now(), {}});
  }
  std::vector<Guest> guests = std::move(early_);
  early_.clear();
  std::erase_if(pending_, [&](Pending& pending) { return !hear(pending, guests); });
  return guests;
}

bool Door::hear(Pending& pending, std::vector<Guest>& guests) {
  Greeting heard;
  std::string& bytes = pending.greeting;
  char buffer[sizeof heard];
  const ssize_t n =
      ::recv(pending.socket.descriptor(), buffer, sizeof heard - bytes.size(), MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    drop(pending, "it has gone without a greeting");
    return false;
  }
  if (n > 0) bytes.append(buffer, static_cast<size_t>(n));
  const Greeting own = own_greeting(0);
  const size_t magic = std::min(bytes.size(), sizeof own.magic);
  if (std::memcmp(bytes.data(), own.magic, magic) != 0) {
    drop(pending, "its greeting is none of ours");
    return false;
  }
  if (bytes.size() < sizeof heard) {
    if (Clock::now() - pending.since < std::chrono::duration<double>(kPatience)) return true;
    drop(pending, fmt::format("no greeting in {} s", kPatience));
    return false;
  }
  std::memcpy(&heard, bytes.data(), sizeof heard);
  const Answer answer = heard.version != own.version           ? Answer::kOtherVersion
                        : !are_equal(heard.secret, own.secret) ? Answer::kOtherSecret
                                                               : Answer::kWelcome;
  ::send(pending.socket.descriptor(), &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (answer == Answer::kWelcome) {
    guests.push_back({std::move(pending.socket), heard.who});
  } else {
    drop(pending,
         answer == Answer::kOtherSecret
             ? "it belongs to another run, or has another WEFT_SECRET"
             : fmt::format("it speaks version {}, this rank {}", heard.version, own.version));
  }
  return false;
}

void Door::drop(const Pending& pending, const std::string& reason) {
  const std::string address = pending.socket.remote_address();
  if (dropped_.size() > kMostDropped || !dropped_.insert(address + reason).second) return;
  fmt::print(stderr, "weft: dropped a connection from {} to port {}: {}\n", address, port(),
             reason);
}

Guest Door::wait(Clock::time_point deadline) {
  while (true) {
    std::vector<Guest> guests = admit();
    if (!guests.empty()) {
      Guest first = std::move(guests.front());
      early_.assign(std::make_move_iterator(guests.begin() + 1),
                    std::make_move_iterator(guests.end()));
      return first;
    }
    WEFT_CHECK(Clock::now() < deadline, "nobody has connected to port {} before the deadline",
               port());
    std::vector<pollfd> entries;
    add_to(entries);
    ::poll(entries.data(), entries.size(), 50);
  }
}

namespace {

Answer answer_to(const Socket& socket, const Greeting& greeting, Clock::time_point deadline) {
  socket.send(&greeting, sizeof greeting, deadline);
  Answer answer;
  socket.receive(&answer, sizeof answer, deadline);
  return answer;
}

void check(Answer answer) {
  WEFT_CHECK(answer != Answer::kOtherSecret,
             "it belongs to another run, or has another WEFT_SECRET");
  WEFT_CHECK(answer == Answer::kWelcome, "it speaks another version of the protocol than {}",
             kVersion);
}

}  // namespace

void greet(const Socket& socket, int32_t who, Clock::time_point deadline) {
  check(answer_to(socket, own_greeting(who), deadline));
}

Socket enter(const std::string& host, int port, int32_t who, Clock::time_point deadline) {
  const Greeting greeting = own_greeting(who);
  const Clock::time_point until = std::min(deadline, after(3 * kPatience));
  while (true) {
    Socket socket = Socket::connect(host, port, deadline);
    std::optional<Answer> answer;
    try {
      answer = answer_to(socket, greeting, deadline);
    } catch (const Error&) {
      if (Clock::now() >= until) throw;
    }
    if (answer) {
      check(*answer);
      return socket;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace weft::dist
