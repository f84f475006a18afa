// libFuzzer target: whatever a stranger, or one who has greeted properly, says to the table of a
// rendezvous, it goes on serving. An input that begins with an even byte follows a greeting.
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "dist/comm/processes/door.h"
#include "dist/comm/processes/store.h"

namespace {

using namespace weft::dist;

constexpr int kConnections = 500;  // to one table: it takes 64 MiB

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::shared_ptr<Store> store;
  static int count = 0;
  if (count++ % kConnections == 0) {
    store.reset();
    store = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 5});
  }
  const auto deadline = Socket::Clock::now() + std::chrono::seconds(5);
  try {
    const Socket socket = Socket::connect("127.0.0.1", port_of(*store), deadline);
    if (size > 0 && data[0] % 2 == 0) {
      greet(socket, 1, deadline);
      ++data, --size;
    }
    socket.send(data, size, deadline);
  } catch (const weft::Error&) {  // dropped
  }
  const std::string key = "still there " + std::to_string(count);
  store->set(key, key);  // throws where nobody serves any more
  if (store->get(key) != key) std::abort();
  return 0;
}
