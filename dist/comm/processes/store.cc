#include "dist/comm/processes/store.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "core/error.h"
#include "dist/comm/processes/socket.h"
#include "dist/comm/transport.h"

namespace weft::dist {
namespace {

using Clock = Socket::Clock;

/// Serves a table to whoever connects. A request is "s", key, value, or "g", key; the answer to the
/// latter comes when there is one. The thread ends when it was told to and nobody is connected any
/// more: ranks that are late still find what they need.
class Server {
 public:
  explicit Server(int port) : socket_(Socket::listen(port)) {
    WEFT_CHECK(::pipe(wake_) == 0, "store: {}", std::strerror(errno));
    port_ = socket_.port();
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    ::close(wake_[1]);
    thread_.join();
    ::close(wake_[0]);
  }
  int port() const { return port_; }

 private:
  struct Client {
    Socket socket;
    std::string waits_for;
  };

  void serve() {
    bool is_ending = false;
    const Clock::time_point never = Clock::now() + std::chrono::hours(24 * 365);
    Clock::time_point end = never;
    while (!is_ending || (!clients_.empty() && Clock::now() < end)) {
      std::vector<pollfd> entries = {{socket_.descriptor(), POLLIN, 0},
                                     {is_ending ? -1 : wake_[0], POLLIN, 0}};
      for (const Client& client : clients_) {
        entries.push_back({client.socket.descriptor(), POLLIN, 0});
      }
      ::poll(entries.data(), entries.size(), 200);
      if (entries[1].revents) {
        is_ending = true;
        end = after(kPatience);
      }
      // From the back, so that indices stay true when one goes.
      for (size_t i = clients_.size(); i-- > 0;) {
        if (entries[i + 2].revents && !answer(clients_[i])) {
          clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      if (entries[0].revents) {
        try {
          clients_.push_back({socket_.accept(after(kPatience)), {}});
        } catch (const Error&) {  // it has gone again
        }
      }
      for (Client& client : clients_) reply(client);
    }
  }

  /// False: the client has gone, or speaks another language.
  bool answer(Client& client) {
    try {
      const std::string verb = client.socket.receive_text(after(kPatience));
      const std::string key = client.socket.receive_text(after(kPatience));
      if (verb == "s") values_[key] = client.socket.receive_text(after(kPatience));
      if (verb == "g") client.waits_for = key;
      return verb == "s" || verb == "g";
    } catch (const Error&) {
      return false;
    }
  }

  void reply(Client& client) {
    if (client.waits_for.empty()) return;
    const auto found = values_.find(client.waits_for);
    if (found == values_.end()) return;
    client.waits_for.clear();
    try {
      client.socket.send_text(found->second, after(kPatience));
    } catch (const Error&) {  // seen as closed in the next turn
    }
  }

  static constexpr double kPatience = 5;  // seconds, with a client in the middle of a message

  Socket socket_;
  int port_ = 0;
  int wake_[2] = {-1, -1};
  std::vector<Client> clients_;
  std::map<std::string, std::string> values_;
  std::thread thread_;
};

class TcpStore : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : timeout_(options.timeout_seconds),
        server_(options.serves ? std::make_unique<Server>(options.port) : nullptr),
        port_(server_ ? server_->port() : options.port),
        address_(fmt::format("the store at {}, port {}", options.host, port_)) {
    try {
      socket_ = Socket::connect(options.host, port_, after(timeout_));
    } catch (const Error& error) {
      WEFT_FAIL("store: {}; is rank 0 running there?", error.what());
    }
  }
  // The connection goes first, so that an own server does not wait for it.
  ~TcpStore() override { socket_ = {}; }

  void set(const std::string& key, const std::string& value) override {
    ask("s", key, [&](Clock::time_point deadline) { socket_.send_text(value, deadline); });
  }
  std::string get(const std::string& key) override {
    std::string value;
    ask("g", key, [&](Clock::time_point deadline) { value = socket_.receive_text(deadline); });
    return value;
  }
  std::string own_address() const override { return socket_.local_address(); }
  int port() const { return port_; }

 private:
  template <class Function>
  void ask(const char* verb, const std::string& key, Function&& what_follows) {
    std::lock_guard lock(mutex_);
    const Clock::time_point deadline = after(timeout_);
    try {
      socket_.send_text(verb, deadline);
      socket_.send_text(key, deadline);
      what_follows(deadline);
    } catch (const Error& error) {
      WEFT_FAIL("{}: \"{}\": {}", address_, key, error.what());
    }
  }

  const double timeout_;
  std::unique_ptr<Server> server_;
  const int port_;
  const std::string address_;
  std::mutex mutex_;
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

  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path path = path_of(key);
    const std::string beside = fmt::format("{}.{}.part", path.string(), ::getpid());
    std::ofstream file(beside, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    file.close();
    WEFT_CHECK(file, "store: cannot write {}", beside);
    std::filesystem::rename(beside, path);
  }
  std::string get(const std::string& key) override {
    const std::filesystem::path path = path_of(key);
    const Clock::time_point deadline = after(timeout_);
    while (!std::filesystem::exists(path)) {
      WEFT_CHECK(Clock::now() < deadline, "store: no rank has written {} after {} s", path.string(),
                 timeout_);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
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
