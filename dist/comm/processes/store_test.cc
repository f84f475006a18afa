// Ranks without MPI: the stores through which they find each other, and worlds over TCP.
#include "dist/comm/processes/store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "dist/comm/processes/door.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/socket.h"
#include "dist/comm/processes/tcp.h"
#include "dist/comm/testing/conformance.h"
#include "dist/comm/testing/rank_processes.h"
#include "dist/comm/transport.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

std::string scratch(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return fmt::format("{}/{}-{}", directory ? directory : "/tmp", name, ::getpid());
}

/// Runs `body` as `ranks` threads, each with a store of its own handle; returns their errors.
std::vector<std::string> over_tcp(int ranks, const HostOptions& options,
                                  const std::function<void(Communicator&)>& body) {
  const auto server = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 20});
  const int port = port_of(*server);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        const CommunicatorPtr world = make_tcp_world(
            make_tcp_store({.port = port, .timeout_seconds = 20}), r, ranks, options);
        body(*world);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

int free_port() { return Socket::listen(0).port(); }

class Variables {
 public:
  explicit Variables(std::vector<std::pair<std::string, std::string>> values) {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "WEFT_STORE"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "WEFT_STORE"}) {
      ::unsetenv(name);
    }
  }
};

}  // namespace

TEST_CASE("a joined rank conforms", "[.rank]") {
  REQUIRE(is_rank());
  const CommunicatorPtr world = join_world();
  CHECK(local_rank() == world->rank());
  run_conformance(*world);
}

TEST_CASE("a joined rank is killed", "[.rank]") {
  const CommunicatorPtr world = join_world({.timeout_seconds = 20});
  const Tensor x = Tensor::zeros({4});
  world->all_reduce(x).wait();
  if (world->rank() == 1) ::_exit(9);
  say_error_of([&] { world->all_reduce(x).wait(); });
}

TEST_CASE("stores hand values from rank to rank") {
  const std::string directory = scratch("store");
  const auto tcp = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 10});
  const auto tcp_client = make_tcp_store({.port = port_of(*tcp), .timeout_seconds = 10});
  const auto file = make_file_store(directory, 10), file_client = make_file_store(directory, 10);
  std::string bytes(70000, 'x');
  bytes[1] = '\0';
  for (const auto& [server, client] : {std::pair(tcp, tcp_client), std::pair(file, file_client)}) {
    std::string got;
    std::thread waiting([&, c = client] { got = c->get("key / 1"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server->set("key / 1", bytes);
    waiting.join();
    CHECK(got == bytes);
    client->set("2", "");
    CHECK(server->get("2") == "");
    CHECK(!client->own_address().empty());
  }
  std::filesystem::remove_all(directory);
}

TEST_CASE("a key that nobody sets, a server that is not there and a port in use are errors") {
  const auto tcp = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 0.2});
  CHECK_THROWS_WITH(tcp->get("nobody's"),
                    Contains("\"nobody's\"") && Contains("the deadline has passed"));
  // An answer that comes too late is nobody's.
  CHECK(!tcp->find("nobody's"));
  tcp->set("nobody's", "somebody's");
  CHECK(tcp->find("nobody's") == "somebody's");
  CHECK_THROWS_WITH(make_tcp_store({.port = port_of(*tcp), .serves = true}),
                    Contains(fmt::format("port {} is in use", port_of(*tcp))));
  CHECK_THROWS_WITH(
      make_tcp_store({.port = free_port(), .timeout_seconds = 0.1}),
      Contains("cannot connect to 127.0.0.1, port ") && Contains("is rank 0 running there?"));
  const std::string directory = scratch("store");
  CHECK_THROWS_WITH(make_file_store(directory, 0.1)->get("nobody's"),
                    Contains("no rank has written") && Contains("after 0.1 s"));
  std::filesystem::remove_all(directory);
}

namespace {

/// Says something to a port and waits until the other side has closed.
void intrude(int port, const std::string& words) {
  const auto deadline = Socket::Clock::now() + std::chrono::seconds(20);
  const Socket socket = Socket::connect("127.0.0.1", port, deadline);
  socket.send(words.data(), words.size(), deadline);
  char byte;
  CHECK_THROWS(socket.receive(&byte, 1, deadline));
}

}  // namespace

TEST_CASE("strangers at the store are dropped, and hold nobody up") {
  const auto server = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 10});
  const int port = port_of(*server);
  // Silent ones, who stay.
  std::vector<Socket> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(
        Socket::connect("127.0.0.1", port, Socket::Clock::now() + std::chrono::seconds(10)));
  }
  intrude(port, "GET / HTTP/1.1");
  intrude(port, "weft-tcX");
  const auto begin = std::chrono::steady_clock::now();
  const auto client = make_tcp_store({.port = port, .timeout_seconds = 10});
  client->set("a", "1");
  CHECK(server->get("a") == "1");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
}

TEST_CASE("a rank with another secret is refused, and told why") {
  const auto server = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 10});
  // The server's door compares with the variable of the moment.
  std::string greeting = std::string("weft-tcp\x01\0\0\0\0\0\0\0another", 23);
  greeting.resize(80);
  const auto deadline = Socket::Clock::now() + std::chrono::seconds(20);
  const Socket socket = Socket::connect("127.0.0.1", port_of(*server), deadline);
  socket.send(greeting.data(), greeting.size(), deadline);
  char answer = 0;
  socket.receive(&answer, 1, deadline);
  CHECK(answer == 1);
  CHECK_THROWS(socket.receive(&answer, 1, deadline));
}

TEST_CASE("keys are set once, within limits") {
  const auto store = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 10});
  store->set("a", "1");
  store->set("a", "1");
  CHECK_THROWS_WITH(store->set("a", "2"), Contains("set already, to something else"));
  CHECK(store->get("a") == "1");
  const std::string large(1 << 20, 'x');
  std::string error;
  for (int i = 0; i < 70 && error.empty(); ++i) {
    try {
      store->set(std::to_string(i), large);
    } catch (const Error& e) {
      error = e.what();
    }
  }
  CHECK_THAT(error, Contains("the store is full"));
  const std::string directory = scratch("twice");
  for (int run = 0; run < 2; ++run) {
    const auto file = make_file_store(directory, 1);
    file->set("a", "1");
    CHECK_THROWS_WITH(make_file_store(directory, 1)->set("a", "1"), Contains("is there already"));
  }
  std::filesystem::remove_all(directory);
}

TEST_CASE("an address in the store that is none is named") {
  const auto server = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 5});
  server->set("world:0", "nonsense");
  CHECK_THROWS_WITH(make_tcp_world(server, 1, 2, {.timeout_seconds = 2}),
                    Contains("the store has \"nonsense\" for rank 0"));
}

TEST_CASE("ranks of two worlds, and two processes with one rank, are named") {
  const auto store = make_tcp_store({.port = 0, .serves = true, .timeout_seconds = 5});
  std::string first;
  std::thread rank_0([&] {
    try {
      make_tcp_world(store, 0, 2, {.timeout_seconds = 1});
    } catch (const Error& error) {
      first = error.what();
    }
  });
  const std::string reason = "it was started as one of 3 ranks, rank 0 as one of 2 (WORLD_SIZE)";
  const auto client = make_tcp_store({.port = port_of(*store), .timeout_seconds = 5});
  CHECK_THROWS_WITH(make_tcp_world(client, 1, 3, {.timeout_seconds = 5}), Contains(reason));
  rank_0.join();
  CHECK_THAT(first, Contains("waited 1 s for rank 1 (") && Contains(reason));
  CHECK_THROWS_WITH(make_tcp_world(client, 1, 2, {.timeout_seconds = 5}),
                    Contains("another process has joined as this rank already (address, port, "
                             "ranks: 127.0.0.1 ") &&
                        Contains("Was a RANK given twice"));
}

TEST_CASE("who was dropped behind strangers greets again") {
  Socket listener = Socket::listen(0, "127.0.0.1");
  const int port = listener.port();
  const auto deadline = after(20);
  int guest = -1;
  std::thread host([&] {
    for (int dropped = 0; dropped < 2;) {
      pollfd entry = {listener.descriptor(), POLLIN, 0};
      ::poll(&entry, 1, 1000);
      const Socket gone(::accept(listener.descriptor(), nullptr, nullptr));
      dropped += gone.descriptor() >= 0;
    }
    Door door(std::move(listener));
    guest = door.wait(deadline).who;
  });
  CHECK(enter("127.0.0.1", port, 5, deadline).descriptor() >= 0);
  host.join();
  CHECK(guest == 5);
}

TEST_CASE("ranks over TCP conform") {
  for (int ranks : {1, 2, 3, 4}) {
    INFO(ranks);
    for (const std::string& error :
         over_tcp(ranks, {.timeout_seconds = 20}, [](Communicator& c) { run_conformance(c); })) {
      CHECK(error == "");
    }
  }
}

TEST_CASE(
    "over TCP too a rank that does not come is named, and one that gives up ends the others") {
  const auto late = over_tcp(3, {.timeout_seconds = 0.5}, [](Communicator& c) {
    c.barrier().wait();
    if (c.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(1));
    c.all_reduce(Tensor::zeros({4})).wait();
  });
  CHECK_THAT(late[0] + late[2], Contains("all_reduce #2 (sum f32 [4])") && Contains("rank 1"));
  // Rank 0 waits for 1, which waits for 2: that is the one.
  const auto chain = over_tcp(3, {.timeout_seconds = 0.5}, [](Communicator& c) {
    c.barrier().wait();
    if (c.rank() == 2) return std::this_thread::sleep_for(std::chrono::seconds(3));
    c.recv(Tensor::zeros({4}), c.rank() + 1).wait();
  });
  CHECK_THAT(chain[0], Contains("the deadline has passed: rank 2"));
  const auto begin = std::chrono::steady_clock::now();
  const auto gone = over_tcp(3, {.timeout_seconds = 30}, [](Communicator& c) {
    c.barrier().wait();
    if (c.rank() == 1) return c.leave("enough");
    c.all_reduce(Tensor::zeros({4})).wait();
  });
  CHECK_THAT(gone[0] + gone[2], Contains("rank 1 gave up (enough)"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("over TCP a group that is made after a rank has left does not wait for it") {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<bool> has_left{false};
  std::atomic<int> waiting{2};  // for each other: who goes has left, too
  std::string errors[2];
  over_tcp(3, {.timeout_seconds = 20}, [&](Communicator& c) {
    if (c.rank() == 2) {
      c.leave("no memory");
      has_left = true;
      return;
    }
    while (!has_left) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    try {
      c.group({0, 1, 2}, "late");
    } catch (const Error& error) {
      errors[c.rank()] = error.what();
    }
    --waiting;
    while (waiting > 0) std::this_thread::yield();
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Contains("a group of ranks 0, 1, 2: rank 2 gave up (no memory)"));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("over TCP a rank that leaves has left the groups that there are, and theirs") {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = over_tcp(3, {.timeout_seconds = 20}, [](Communicator& c) {
    const CommunicatorPtr group = c.group({0, 1, 2}, "outer")->group({2, 1, 0}, "inner");
    group->barrier().wait();
    if (c.rank() == 1) {
      c.leave("no memory");
      // It stays, lest its connections close by themselves.
      return std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    group->recv(Tensor::zeros({4}), 1).wait();
  });
  for (const int r : {0, 2}) CHECK_THAT(errors[r], Contains("rank 1 gave up (no memory)"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("processes with torchrun's variables join, through either store") {
  const CommandOutcome tcp =
      run_joined_ranks(3, "a joined rank conforms",
                       fmt::format("MASTER_ADDR=localhost MASTER_PORT={}", free_port()), 30);
  INFO(tcp.text);
  CHECK(tcp.code == 0);
  const std::string directory = scratch("rendezvous");
  const CommandOutcome file =
      run_joined_ranks(2, "a joined rank conforms", "WEFT_STORE=" + directory, 30);
  INFO(file.text);
  CHECK(file.code == 0);
  std::filesystem::remove_all(directory);
}

TEST_CASE("a process that dies is named at once, and the others end") {
  const auto begin = std::chrono::steady_clock::now();
  const CommandOutcome outcome =
      run_joined_ranks(3, "a joined rank is killed",
                       fmt::format("MASTER_ADDR=localhost MASTER_PORT={}", free_port()), 30);
  INFO(outcome.text);
  CHECK(outcome.code == 3);
  CHECK_THAT(outcome.text, Contains("all_reduce #2 (sum f32 [4])") &&
                               Contains("rank 1 has gone: its connection is closed"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
}

TEST_CASE("variables that are missing or wrong are named") {
  {
    const Variables none({});
    CHECK(!is_rank());
    CHECK_THROWS_WITH(join_world(), Contains("this process is no rank"));
  }
  {
    const Variables no_address({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    CHECK(is_rank());
    CHECK_THROWS_WITH(join_world(), Contains("MASTER_ADDR is not"));
  }
  {
    const Variables no_port({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}});
    CHECK_THROWS_WITH(join_world(), Contains("MASTER_PORT is not"));
  }
  const Variables outside({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  CHECK_THROWS_WITH(join_world(), Contains("RANK: expected a number from 0 to 1, got \"2\""));
}

TEST_CASE("a port that another program holds is an error of rank 0") {
  const Socket other = Socket::listen(0);
  const Variables rank({{"RANK", "0"},
                        {"WORLD_SIZE", "1"},
                        {"MASTER_ADDR", "localhost"},
                        {"MASTER_PORT", std::to_string(other.port())}});
  CHECK_THROWS_WITH(join_world(), Contains(fmt::format("port {} is in use", other.port())) &&
                                      Contains("MASTER_PORT"));
}
