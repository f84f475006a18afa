#include "dist/comm/processes/store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "core/error.h"
#include "dist/comm/processes/door.h"
#include "dist/comm/transport.h"

namespace weft::dist {
namespace {

using Clock = Socket::Clock;

constexpr double kPatience = 2;  // seconds, where a rank has no time to lose

/// Serves a table to those who are let in. A request is "s", key, value, or "g" or "f", key. "s" is
/// answered by nothing, or by what is wrong with it; "g" by the value, when there is one; "f" at
/// once, by "yes" or by nothing.
/// The thread never waits for a client. It ends when it was told to and nobody is connected any
/// more: ranks that are late still find what they need.
class Server {
 public:
  Server(int port, const std::string& host) : door_(Socket::listen(port, host)) {
    WEFT_CHECK(::pipe(wake_) == 0, "store: {}", std::strerror(errno));
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    ::close(wake_[1]);
    thread_.join();
    ::close(wake_[0]);
  }
  int port() const { return door_.port(); }

 private:
  struct Client {
    Socket socket;
    std::string in, out;  // received and not understood yet; to be sent
    std::string waits_for;
  };

  void serve() {
    bool is_ending = false;
    Clock::time_point end = {};
    while (!is_ending || (!clients_.empty() && Clock::now() < end)) {
      std::vector<pollfd> entries = {{is_ending ? -1 : wake_[0], POLLIN, 0}};
      door_.add_to(entries);
      for (const Client& client : clients_) {
        const short events = client.out.empty() ? POLLIN : POLLIN | POLLOUT;
        entries.push_back({client.socket.descriptor(), events, 0});
      }
      ::poll(entries.data(), entries.size(), 200);
      if (entries[0].revents) {
        is_ending = true;
        end = after(kLinger);
      }
      for (Guest& guest : door_.admit()) clients_.push_back({std::move(guest.socket), {}, {}, {}});
      std::erase_if(clients_, [&](Client& client) { return !take(client); });
      std::erase_if(clients_, [&](Client& client) { return !give(client); });
    }
  }

  /// False: the client has gone, or speaks another language.
  bool take(Client& client) {
    char buffer[1 << 16];
    while (true) {
      const ssize_t n = ::recv(client.socket.descriptor(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0) {
        if (errno == EINTR) continue;
        return errno == EAGAIN;
      }
      if (n == 0) return false;
      client.in.append(buffer, static_cast<size_t>(n));
      std::vector<std::string> words;
      for (size_t at = 0;;) {
        uint64_t length = 0;
        if (client.in.size() - at < sizeof length) break;
        std::memcpy(&length, client.in.data() + at, sizeof length);
        if (length > kMostBytesOfText) return false;
        if (client.in.size() - at - sizeof length < length) break;
        words.push_back(client.in.substr(at + sizeof length, length));
        at += sizeof length + length;
        if (words.size() < (words[0] == "s" ? 3u : 2u)) continue;
        if (words[0] == "s") {
          client.out += framed(set(words[1], words[2]));
        } else if (words[0] == "g") {
          client.waits_for = words[1];
        } else if (words[0] == "f") {
          client.out += framed(values_.count(words[1]) ? "yes" : "");
        } else {
          return false;
        }
        client.in.erase(0, at);
        words.clear();
        at = 0;
      }
    }
  }

  /// What is wrong with it, if anything.
  std::string set(const std::string& key, const std::string& value) {
    const auto [entry, is_new] = values_.try_emplace(key, value);
    if (!is_new) return entry->second == value ? "" : "it is set already, to something else";
    bytes_ += key.size() + value.size();
    if (bytes_ <= kMostBytes) return "";
    values_.erase(entry);
    return fmt::format("the store is full: it takes {} bytes", kMostBytes);
  }

  bool give(Client& client) {
    const auto found = client.waits_for.empty() ? values_.end() : values_.find(client.waits_for);
    if (found != values_.end()) {
      client.out += framed(found->second);
      client.waits_for.clear();
    }
    while (!client.out.empty()) {
      const ssize_t n = ::send(client.socket.descriptor(), client.out.data(), client.out.size(),
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EINTR) return errno == EAGAIN;
      if (n > 0) client.out.erase(0, static_cast<size_t>(n));
    }
    return true;
  }

  static std::string framed(const std::string& text) {
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
  }

  static constexpr double kLinger = 5;  // seconds that late ranks have at the end
  static constexpr size_t kMostBytes = size_t{64} << 20;

  Door door_;
  int wake_[2] = {-1, -1};
  std::vector<Client> clients_;
  std::map<std::string, std::string> values_;
  size_t bytes_ = 0;
  std::thread thread_;
};

class TcpStore : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : timeout_(options.timeout_seconds),
        server_(options.serves ? std::make_unique<Server>(options.port, options.host) : nullptr),
        port_(server_ ? server_->port() : options.port),
        host_(options.host),
        address_(fmt::format("rank 0's store at {}, port {}", options.host, port_)) {
    try {
      connect(after(timeout_));
    } catch (const Error& error) {
      WEFT_FAIL("store: {}; is rank 0 running there?", error.what());
    }
  }
  // The connection goes first, so that an own server does not wait for it.
  ~TcpStore() override { socket_ = {}; }

  void set(const std::string& key, const std::string& value) override {
    set(key, value, after(timeout_));
  }
  std::string get(const std::string& key) override { return ask({"g", key}, after(timeout_)); }
  std::optional<std::string> find(const std::string& key) override {
    const Clock::time_point deadline = after(kPatience);
    if (ask({"f", key}, deadline).empty()) return std::nullopt;
    return ask({"g", key}, deadline);
  }
  void set_if_possible(const std::string& key, const std::string& value) noexcept override {
    try {
      set(key, value, after(kPatience));
    } catch (const std::exception&) {
    }
  }
  std::string own_address() const override { return socket_.local_address(); }
  int port() const { return port_; }

 private:
  void set(const std::string& key, const std::string& value, Clock::time_point deadline) {
    const std::string reason = ask({"s", key, value}, deadline);
    WEFT_CHECK(reason.empty(), "{}: \"{}\": {}", address_, key, reason);
  }

  void connect(Clock::time_point deadline) { socket_ = enter(host_, port_, 0, deadline); }

  std::string ask(const std::vector<std::string>& words, Clock::time_point deadline) {
    const std::unique_lock lock(mutex_, deadline);
    try {
      WEFT_CHECK(lock.owns_lock(), "another request of this rank waits for its answer");
      if (socket_.descriptor() < 0) connect(deadline);
      for (const std::string& word : words) socket_.send_text(word, deadline);
      return socket_.receive_text(deadline);
    } catch (const Error& error) {
      // The answer may still come: the next request must not take it for its own.
      if (lock.owns_lock()) socket_ = {};
      WEFT_FAIL("{}: \"{}\": {}", address_, words[1], error.what());
    }
  }

  const double timeout_;
  std::unique_ptr<Server> server_;
  const int port_;
  const std::string host_, address_;
  std::timed_mutex mutex_;
  Socket socket_;
};

/// A file for each key; written beside its place and renamed, so that it is there whole or not.
class FileStore : public Store {
 public:
  FileStore(std::filesystem::path directory, double timeout)
      : directory_(std::move(directory)), timeout_(timeout) {
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    WEFT_CHECK(!error, "store: cannot make {}: {}", directory_.string(), error.message());
  }

  /// What this rank has set goes with it, so that the next run finds an empty directory.
  ~FileStore() override {
    std::error_code ignored;
    for (const std::filesystem::path& path : own_) std::filesystem::remove(path, ignored);
  }

  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path path = path_of(key);
    WEFT_CHECK(!std::filesystem::exists(path),
               "store: {} is there already: an earlier run that ended badly left it, or another "
               "one is using the directory; give an empty one",
               path.string());
    const std::string beside = fmt::format("{}.{}.part", path.string(), ::getpid());
    std::ofstream file(beside, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    file.close();
    WEFT_CHECK(file, "store: cannot write {}", beside);
    std::filesystem::rename(beside, path);
    std::lock_guard lock(mutex_);
    own_.push_back(path);
  }
  std::string get(const std::string& key) override {
    const std::filesystem::path path = path_of(key);
    const Clock::time_point deadline = after(timeout_);
    while (true) {
      if (const std::optional<std::string> value = find(key)) return *value;
      WEFT_CHECK(Clock::now() < deadline, "store: no rank has written {} after {} s", path.string(),
                 timeout_);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::optional<std::string> find(const std::string& key) override {
    std::ifstream file(path_of(key), std::ios::binary);
    if (!file) return std::nullopt;
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void set_if_possible(const std::string& key, const std::string& value) noexcept override {
    try {
      set(key, value);
    } catch (const std::exception&) {
    }
  }
  std::string own_address() const override {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    return name;
  }

 private:
  /// Keys as names of files: what is neither letter nor digit becomes its code.
  std::filesystem::path path_of(const std::string& key) const {
    std::string name;
    for (const char c : key) {
      name += std::isalnum(static_cast<unsigned char>(c)) ? std::string(1, c)
                                                          : fmt::format("_{:x}_", c);
    }
    return directory_ / name;
  }

  const std::filesystem::path directory_;
  const double timeout_;
  std::mutex mutex_;
  std::vector<std::filesystem::path> own_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options) {
  return std::make_shared<TcpStore>(options);
}

int port_of(const Store& tcp_store) { return dynamic_cast<const TcpStore&>(tcp_store).port(); }

std::shared_ptr<Store> make_file_store(const std::string& directory, double timeout_seconds) {
  return std::make_shared<FileStore>(directory, timeout_seconds);
}

}  // namespace weft::dist
