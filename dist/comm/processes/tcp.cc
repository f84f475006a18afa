#include "dist/comm/processes/tcp.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "dist/comm/processes/door.h"

namespace weft::dist {
namespace {

class TcpTransport : public Transport {
 public:
  TcpTransport(std::shared_ptr<Store> store, std::string name, int rank, int size, double timeout)
      : Transport(rank, size),
        store_(std::move(store)),
        name_(std::move(name)),
        timeout_(timeout),
        peers_(size) {
    if (size > 1) connect();
  }

  RankStatus* status(int) override { return nullptr; }

  void commit(Fault::Kind kind) override {
    for (const Socket& peer : peers_) {
      if (peer.descriptor() < 0) continue;
      if (kind == Fault::Kind::kGarbled) {
        peer.send("a garbled connection", 20, after(timeout_));
      } else {
        peer.shut_down();
      }
    }
  }

  // The words come first: who sees the connection closed looks for them.
  void leave(const std::string& reason) override {
    store_->set_if_possible(last_words_of(rank()), reason);
    for (const Socket& peer : peers_) {
      if (peer.descriptor() >= 0) peer.shut_down();
    }
  }

 protected:
  std::unique_ptr<Transport> make_group(const std::vector<int>& ranks, int place) override {
    for (int r : ranks) {
      WEFT_CHECK(r == rank() || !has_gone(r), "a group of ranks {}: {}", fmt::join(ranks, ", "),
                 why_gone(r));
    }
    return std::make_unique<TcpTransport>(
        store_, fmt::format("{}/{}#{}", name_, fmt::join(ranks, ","), instances_[ranks]++), place,
        static_cast<int>(ranks.size()), timeout_);
  }

  /// A message is its head and its bytes.
  void do_exchange(const Round& round, Clock::time_point deadline) override {
    std::map<int, Flow> out, in;
    for (const Message& message : round.sends) out[message.peer].messages.push_back(message);
    for (const Message& message : round.receives) in[message.peer].messages.push_back(message);
    while (true) {
      std::vector<pollfd> entries;
      std::vector<int> ranks;
      for (int r = 0; r < size(); ++r) {
        short events = 0;
        if (out.count(r) && !out[r].is_done()) events |= POLLOUT;
        if (in.count(r) && !in[r].is_done()) events |= POLLIN;
        if (!events) continue;
        entries.push_back({peers_[r].descriptor(), events, 0});
        ranks.push_back(r);
      }
      if (entries.empty()) return;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (left.count() <= 0) throw PeersMissing("the deadline has passed", held_up_by(ranks));
      const int ready = ::poll(entries.data(), entries.size(),
                               static_cast<int>(std::min<int64_t>(left.count(), 1000)));
      WEFT_CHECK(ready >= 0 || errno == EINTR, "poll: {}", std::strerror(errno));
      for (size_t i = 0; ready > 0 && i < entries.size(); ++i) {
        const int r = ranks[i];
        // What has arrived is read first: a peer may have sent its last words and gone.
        if (entries[i].events & POLLIN && entries[i].revents) move(r, in[r], round.label, false);
        if (entries[i].events & POLLOUT && entries[i].revents) move(r, out[r], round.label, true);
      }
    }
  }

 private:
  struct Head {
    uint64_t bytes = 0, label = 0;
  };
  /// Messages to or from a peer, one after another.
  struct Flow {
    std::vector<Message> messages;
    size_t message = 0, offset = 0;  // of the head and the bytes behind it
    Head head;
    bool is_done() const { return message == messages.size(); }
  };

  /// As many bytes as can be moved now.
  void move(int peer, Flow& flow, uint16_t label, bool sends) {
    while (!flow.is_done()) {
      const Message& message = flow.messages[flow.message];
      if (sends && flow.offset == 0) flow.head = {message.bytes, label};
      constexpr size_t head = sizeof flow.head;
      const bool in_head = flow.offset < head;
      char* data = in_head ? reinterpret_cast<char*>(&flow.head) + flow.offset
                           : static_cast<char*>(message.data) + (flow.offset - head);
      const size_t bytes = in_head ? head - flow.offset : message.bytes + head - flow.offset;
      if (bytes > 0) {
        const int descriptor = peers_[peer].descriptor();
        const ssize_t n = sends ? ::send(descriptor, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                : ::recv(descriptor, data, bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) {
          throw PeersMissing(why_gone(peer), {peer});
        }
        flow.offset += static_cast<size_t>(n);
      }
      if (flow.offset == head && !sends) {
        WEFT_CHECK(flow.head.label < (1 << 15), "what came from rank {} is no message of ours",
                   peer);
        check_label(peer, static_cast<uint16_t>(flow.head.label), label);
        WEFT_CHECK(flow.head.bytes == message.bytes,
                   "expected {} bytes from rank {}, which sent {}", message.bytes, peer,
                   flow.head.bytes);
      }
      if (flow.offset == head + message.bytes) {
        ++flow.message;
        flow.offset = 0;
      }
    }
  }

  /// Each rank listens and says where; it connects to those before it and hears from those behind.
  void connect() {
    const Clock::time_point deadline = after(timeout_);
    const std::string address = store_->own_address();
    Door door(Socket::listen(0, address));
    tell_place(fmt::format("{} {} {}", address, door.port(), size()));
    try {
      for (int r = 0; r < rank(); ++r) {
        const auto [host, port] = place_of(r);
        peers_[r] = enter(host, port, rank(), deadline);
      }
      hear_those_behind(door, deadline);
    } catch (const Error& error) {
      store_->set_if_possible(last_words_of(rank()), error.what());
      throw;
    }
  }

  void hear_those_behind(Door& door, Clock::time_point deadline) {
    for (int behind = rank() + 1; behind < size(); ++behind) {
      try {
        Guest guest = door.wait(deadline);
        const int r = guest.who;
        WEFT_CHECK(r > rank() && r < size() && peers_[r].descriptor() < 0,
                   "rank {} introduces itself to rank {}", r, rank());
        peers_[r] = std::move(guest.socket);
      } catch (const Error& error) {
        std::vector<std::string> missing;
        for (int r = rank() + 1; r < size(); ++r) {
          if (peers_[r].descriptor() >= 0) continue;
          // The first one's alone: the store may be gone, and each question takes its time.
          const auto words = missing.empty() ? found(last_words_of(r)) : std::nullopt;
          missing.push_back(fmt::format("rank {}{}", r, words ? " (" + *words + ")" : ""));
        }
        WEFT_FAIL("rank {} of {}: waited {} s for {} to connect: {}", rank(), name_, timeout_,
                  fmt::join(missing, ", "), error.what());
      }
    }
  }

  void tell_place(const std::string& place) {
    try {
      store_->set(key_of(rank()), place);
    } catch (const Error& error) {
      const std::optional<std::string> other = found(key_of(rank()));
      if (!other) throw;
      WEFT_FAIL(
          "rank {} of {}: another process has joined as this rank already (address, port, ranks: "
          "{}). Was a RANK given twice, or does another run use this port? {}",
          rank(), name_, *other, error.what());
    }
  }

  /// The address and the port of a rank's listener.
  std::pair<std::string, int> place_of(int r) {
    std::string place;
    try {
      place = store_->get(key_of(r));
    } catch (const Error& error) {
      WEFT_FAIL("rank {} of {}: rank {} has not come: {}", rank(), name_, r, error.what());
    }
    std::istringstream words(place);
    std::string host;
    int port = 0, ranks = 0;
    WEFT_CHECK(words >> host >> port >> ranks,
               "rank {} of {}: the store has \"{}\" for rank {}; expected an address, a port and a "
               "number of ranks",
               rank(), name_, place, r);
    WEFT_CHECK(
        ranks == size(),
        "rank {} of {}: it was started as one of {} ranks, rank {} as one of {} (WORLD_SIZE)",
        rank(), name_, size(), r, ranks);
    return {host, port};
  }

  /// Of the peers whose messages have not come, and of those whom these wait for themselves, the
  /// ones that wait for nobody: they hold the others up.
  std::vector<int> held_up_by(const std::vector<int>& missing) {
    constexpr double kGrace = 1;  // seconds until the others' deadlines have passed, too
    const auto waits_of = [&](int r) { return fmt::format("{}:{}:waits for", name_, r); };
    store_->set_if_possible(waits_of(rank()), fmt::format("{}", fmt::join(missing, " ")));
    std::this_thread::sleep_for(std::chrono::duration<double>(kGrace));
    std::vector<int> next = missing, silent;
    std::set<int> known = {rank()};
    try {
      while (!next.empty()) {
        const int r = next.back();
        next.pop_back();
        if (r < 0 || r >= size() || !known.insert(r).second) continue;
        const std::optional<std::string> note = store_->find(waits_of(r));
        if (!note) silent.push_back(r);
        std::istringstream words(note.value_or(""));
        for (int other; words >> other;) next.push_back(other);
      }
    } catch (const Error&) {  // the store's rank may be the one
      return missing;
    }
    std::ranges::sort(silent);
    return silent.empty() ? missing : silent;
  }

  std::optional<std::string> found(const std::string& key) {
    try {
      return store_->find(key);
    } catch (const Error&) {  // the store went with the rank that served it
      return {};
    }
  }

  /// Whether its connection is closed, and nothing is left to be read there.
  bool has_gone(int peer) const {
    char byte = 0;
    const ssize_t n = ::recv(peers_[peer].descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }

  std::string why_gone(int peer) {
    const std::optional<std::string> words = found(last_words_of(peer));
    return words ? fmt::format("rank {} gave up ({})", peer, *words)
                 : fmt::format("rank {} has gone: its connection is closed", peer);
  }

  std::string last_words_of(int rank) const { return fmt::format("{}:{}:gave up", name_, rank); }
  std::string key_of(int rank) const { return fmt::format("{}:{}", name_, rank); }

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const double timeout_;
  std::vector<Socket> peers_;
  std::map<std::vector<int>, int> instances_;
};

}  // namespace

CommunicatorPtr make_tcp_world(std::shared_ptr<Store> store, int rank, int size,
                               const HostOptions& options, const std::string& name) {
  WEFT_CHECK(size > 0 && rank >= 0 && rank < size, "tcp world: rank {} of {} ranks", rank, size);
  return make_host_communicator(
      name,
      std::make_unique<TcpTransport>(std::move(store), name, rank, size, options.timeout_seconds),
      options, std::make_shared<FlightRecorder>(rank));
}

}  // namespace weft::dist
