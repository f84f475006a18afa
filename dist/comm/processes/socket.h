// A TCP socket, and the few calls on it that report themselves and keep deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace weft::dist {

/// What ranks tell each other in words is short; anything else is none of ours.
inline constexpr uint64_t kMostBytesOfText = 1 << 20;

class Socket {
 public:
  using Clock = std::chrono::steady_clock;

  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  /// Listens at an address of this host, or at all of them where `host` is empty or is none of
  /// this host's own, as behind a translated address. Port 0: any that is free. Throws Error naming
  /// a port that is in use.
  static Socket listen(int port, const std::string& host = "");
  /// Tries again until the deadline, since the other side may not listen yet. Throws Error naming
  /// the address.
  static Socket connect(const std::string& host, int port, Clock::time_point deadline);
  /// All of the bytes. Throws Error when the other side has closed, or at the deadline.
  void send(const void* data, size_t bytes, Clock::time_point deadline) const;
  void receive(void* data, size_t bytes, Clock::time_point deadline) const;
  /// A length and as many bytes, at most kMostBytesOfText.
  void send_text(const std::string& text, Clock::time_point deadline) const;
  std::string receive_text(Clock::time_point deadline) const;

  int port() const;                   // this side's
  std::string local_address() const;  // likewise
  std::string remote_address() const;
  /// Small messages do not wait for more.
  void send_at_once() const;
  int descriptor() const { return descriptor_; }
  /// Nothing more goes in or out; the other side sees it.
  void shut_down() const;

 private:
  /// True when it can be read (or written) before the deadline.
  bool wait(short events, Clock::time_point deadline) const;
  template <class Step>
  void move(size_t bytes, short events, Clock::time_point deadline, Step&& step) const;

  int descriptor_ = -1;
};

}  // namespace weft::dist
