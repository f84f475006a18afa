// Starting ranks and starting them again, whatever mpirun there is.
#include "dist/comm/processes/launch.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

using namespace weft::dist;
using Catch::Matchers::Contains;

TEST_CASE("an error leaves this process's signals as they were") {
  struct sigaction before = {}, after = {};
  before.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &before, nullptr);
  CHECK_THROWS_WITH(launch({.ranks = 3, .hosts = 2}, {"true"}), Contains("dealt out evenly"));
  ::sigaction(SIGINT, nullptr, &after);
  CHECK(after.sa_handler == SIG_IGN);
  ::signal(SIGINT, SIG_DFL);
}

TEST_CASE("a number of ranks that changes while none run counts for those that are started next") {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string file = std::string(folder ? folder : "/tmp") + "/launch_test_ranks";
  std::ofstream(file) << 1;
  std::vector<int> started;
  const auto again = [&](int ranks) -> std::vector<std::string> {
    started.push_back(ranks);
    if (started.size() > 1) return {"true"};
    std::ofstream(file) << 2;
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the file is looked at meanwhile
    return {"sleep", "20"};
  };
  CHECK(launch({.ranks = 1, .max_restarts = 1, .ranks_file = file}, {"false"}, again) == 0);
  CHECK(started == std::vector{1, 2});
}
