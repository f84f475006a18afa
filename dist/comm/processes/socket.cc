#include "dist/comm/processes/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/error.h"

namespace weft::dist {
namespace {

int milliseconds_to(Socket::Clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - Socket::Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// None, with a reason, when there is no such host.
Addresses addresses_of(const std::string& host, int port, std::string* reason) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0 && reason) *reason = ::gai_strerror(code);
  return {found, [](addrinfo* list) {
            if (list) ::freeaddrinfo(list);
          }};
}

bool is_numeric(const std::string& host) {
  in6_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// As digits; "" where there is none any more.
std::string text_of(const sockaddr_storage& address, socklen_t length) {
  char text[INET6_ADDRSTRLEN] = {};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  return text;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Socket Socket::listen(int port, const std::string& host) {
  struct Place {
    sockaddr_storage address = {};
    socklen_t length = 0;
  };
  std::vector<Place> places;
  const auto add = [&](const sockaddr* address, socklen_t length) {
    Place place{.length = length};
    std::memcpy(&place.address, address, length);
    places.push_back(place);
  };
  if (!host.empty()) {
    const Addresses found = addresses_of(host, port, nullptr);
    for (const addrinfo* a = found.get(); a; a = a->ai_next) {
      // A host's name is often its loopback address to itself, and another to the others.
      if (host == "localhost" || is_numeric(host) || !is_loopback(*a->ai_addr)) {
        add(a->ai_addr, a->ai_addrlen);
      }
    }
  }
  // An IPv6 socket that takes IPv4 too, where there is IPv6 at all.
  const auto network_port = htons(static_cast<uint16_t>(port));
  const sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = network_port};
  const sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = network_port};
  add(reinterpret_cast<const sockaddr*>(&any6), sizeof any6);
  add(reinterpret_cast<const sockaddr*>(&any4), sizeof any4);
  int error = 0;
  for (const Place& place : places) {
    Socket socket(::socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.descriptor_ < 0) {
      error = errno;
      continue;
    }
    const int on = 1, off = 0;
    ::setsockopt(socket.descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (place.address.ss_family == AF_INET6) {
      ::setsockopt(socket.descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (::bind(socket.descriptor_, reinterpret_cast<const sockaddr*>(&place.address),
               place.length) == 0 &&
        ::listen(socket.descriptor_, SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
    WEFT_CHECK(error != EADDRINUSE,
               "port {} is in use on this host; another run may be serving there. Choose another "
               "with MASTER_PORT",
               port);
  }
  WEFT_FAIL("cannot listen on port {}: {}", port, std::strerror(error));
}

Socket Socket::connect(const std::string& host, int port, Clock::time_point deadline) {
  std::string reason = "it does not answer";
  while (true) {
    const Addresses found = addresses_of(host, port, &reason);
    for (const addrinfo* a = found.get(); a; a = a->ai_next) {
      Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (socket.descriptor_ < 0) continue;
      int error = 0;
      if (::connect(socket.descriptor_, a->ai_addr, a->ai_addrlen) != 0) error = errno;
      if (error == EINPROGRESS) {
        socklen_t length = sizeof error;
        error = ETIMEDOUT;
        if (socket.wait(POLLOUT, deadline)) {
          ::getsockopt(socket.descriptor_, SOL_SOCKET, SO_ERROR, &error, &length);
        }
      }
      if (error == 0) {
        socket.send_at_once();
        return socket;
      }
      reason = std::strerror(error);
    }
    WEFT_CHECK(Clock::now() < deadline, "cannot connect to {}, port {}: {}", host, port, reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Socket::send_at_once() const {
  const int on = 1;
  ::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool Socket::wait(short events, Clock::time_point deadline) const {
  while (true) {
    pollfd entry = {descriptor_, events, 0};
    const int ready = ::poll(&entry, 1, milliseconds_to(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    WEFT_CHECK(ready == 0 || errno == EINTR, "poll: {}", std::strerror(errno));
  }
}

/// Moves all of the bytes by calls of `step`, which moves some from an offset on.
template <class Step>
void Socket::move(size_t bytes, short events, Clock::time_point deadline, Step&& step) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = step(done);
    if (n > 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    WEFT_CHECK(n < 0, "the connection was closed");
    WEFT_CHECK(errno == EAGAIN || errno == EINTR, "the connection broke: {}", std::strerror(errno));
    WEFT_CHECK(wait(events, deadline), "the deadline has passed");
  }
}

void Socket::send(const void* data, size_t bytes, Clock::time_point deadline) const {
  move(bytes, POLLOUT, deadline, [&](size_t done) {
    return ::send(descriptor_, static_cast<const char*>(data) + done, bytes - done,
                  MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

void Socket::receive(void* data, size_t bytes, Clock::time_point deadline) const {
  move(bytes, POLLIN, deadline, [&](size_t done) {
    return ::recv(descriptor_, static_cast<char*>(data) + done, bytes - done, MSG_DONTWAIT);
  });
}

void Socket::send_text(const std::string& text, Clock::time_point deadline) const {
  const uint64_t length = text.size();
  send(&length, sizeof length, deadline);
  send(text.data(), text.size(), deadline);
}

std::string Socket::receive_text(Clock::time_point deadline) const {
  uint64_t length = 0;
  receive(&length, sizeof length, deadline);
  WEFT_CHECK(length <= kMostBytesOfText, "port {}: a message of {} bytes is none of ours", port(),
             length);
  std::string text(length, '\0');
  receive(text.data(), length, deadline);
  return text;
}

int Socket::port() const {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string Socket::local_address() const {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length);
  return text_of(address, length);
}

std::string Socket::remote_address() const {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  ::getpeername(descriptor_, reinterpret_cast<sockaddr*>(&address), &length);
  return text_of(address, length);
}

void Socket::shut_down() const { ::shutdown(descriptor_, SHUT_RDWR); }

}  // namespace weft::dist
