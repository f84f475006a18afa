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

#include "core/error.h"

namespace weft::dist {
namespace {

int set_up(int descriptor) {
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return descriptor;
}

int milliseconds_to(Socket::Clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - Socket::Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

/// This side's.
std::pair<sockaddr_storage, socklen_t> address_of(int descriptor) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  return {address, length};
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Socket Socket::listen(int port) {
  // An IPv6 socket that takes IPv4 too, where there is IPv6 at all.
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.descriptor_ < 0) continue;
    const int on = 1, off = 0;
    ::setsockopt(socket.descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage address = {};
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET6) {
      ::setsockopt(socket.descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(static_cast<uint16_t>(port));
    } else {
      reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
    }
    const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (::bind(socket.descriptor_, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        ::listen(socket.descriptor_, SOMAXCONN) == 0) {
      return socket;
    }
    WEFT_CHECK(errno != EADDRINUSE,
               "port {} is in use on this host; another run may be serving there. Choose another "
               "with MASTER_PORT",
               port);
    WEFT_CHECK(family == AF_INET6, "cannot listen on port {}: {}", port, std::strerror(errno));
  }
  WEFT_FAIL("cannot open a TCP socket: {}", std::strerror(errno));
}

Socket Socket::connect(const std::string& host, int port, Clock::time_point deadline) {
  std::string reason = "it does not answer";
  while (true) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (code != 0) reason = ::gai_strerror(code);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, [](addrinfo* list) {
      if (list) ::freeaddrinfo(list);
    });
    for (const addrinfo* a = found; a; a = a->ai_next) {
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
        set_up(socket.descriptor_);
        return socket;
      }
      reason = std::strerror(error);
    }
    WEFT_CHECK(Clock::now() < deadline, "cannot connect to {}, port {}: {}", host, port, reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Socket Socket::accept(Clock::time_point deadline) const {
  WEFT_CHECK(wait(POLLIN, deadline), "nobody has connected to port {} before the deadline", port());
  Socket socket(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  WEFT_CHECK(socket.descriptor_ >= 0, "port {}: {}", port(), std::strerror(errno));
  set_up(socket.descriptor_);
  return socket;
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
  // What ranks tell each other is short; anything else is not one of them.
  WEFT_CHECK(length <= 1 << 20, "port {}: a message of {} bytes is none of ours", port(), length);
  std::string text(length, '\0');
  receive(text.data(), length, deadline);
  return text;
}

int Socket::port() const {
  const auto [address, length] = address_of(descriptor_);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string Socket::local_address() const {
  const auto [address, length] = address_of(descriptor_);
  char text[INET6_ADDRSTRLEN] = {};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  return text;
}

void Socket::shut_down() const { ::shutdown(descriptor_, SHUT_RDWR); }

}  // namespace weft::dist
