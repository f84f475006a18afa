// A small table that ranks share before they can talk: where each listens, an id made by one.
//
//   auto store = make_tcp_store({.host = "10.0.0.1", .port = 29500, .serves = rank == 0});
//   store->set("nccl/0", id);                  // on one rank
//   const std::string id = store->get("nccl/0");   // on the others: waits for it
//
// The TCP store lives in a thread of the rank that serves it, until that rank's handle and those of
// the connected ranks are gone; the file store is a directory. Safe to use from several threads.
// Keys are set once: again to the same value, or Error. Errors come within timeout_seconds and name
// the address or the key.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace weft::dist {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until some rank has set it.
  virtual std::string get(const std::string& key) = 0;
  /// The value when some rank has set it by now. An answer takes two seconds at most.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  /// As set, for last words: tries for two seconds, and throws nothing.
  virtual void set_if_possible(const std::string& key, const std::string& value) noexcept = 0;
  /// This host's address as the other ranks reach it.
  virtual std::string own_address() const = 0;
};

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // a server listens there alone (Socket::listen)
  int port = 29500;                // 0, of a server: any that is free
  bool serves = false;             // exactly one rank's
  double timeout_seconds = 60;
};
std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options);
/// The port that a server of port 0 was given.
int port_of(const Store& tcp_store);

/// `directory` is made if need be; it must be empty at the start of a run, and is again at its end.
std::shared_ptr<Store> make_file_store(const std::string& directory, double timeout_seconds = 60);

}  // namespace weft::dist
