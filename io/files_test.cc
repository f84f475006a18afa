#include "io/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/error.h"

using namespace weft;

namespace {

std::string refusal(const io::Path& directory) {
  try {
    const io::DirectoryLock lock(directory);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a locked directory is refused with its owner's name") {
  const io::Path directory = io::Path(std::getenv("TEST_TMPDIR")) / "locked";
  io::make_directories(directory);
  {
    const io::DirectoryLock lock(directory);
    CHECK_THAT(refusal(directory), Catch::Contains("locked is in use by process " +
                                                   std::to_string(::getpid()) + " on "));
  }
  CHECK(refusal(directory).empty());
}

TEST_CASE("an owner that has locked and not yet said its name is waited for") {
  const io::Path directory = io::Path(std::getenv("TEST_TMPDIR")) / "nameless";
  io::make_directories(directory);
  const int file = ::open((directory / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  REQUIRE(::flock(file, LOCK_EX | LOCK_NB) == 0);
  CHECK_THAT(refusal(directory), Catch::Contains("nameless is in use by another process"));
  std::thread owner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(::pwrite(file, "process 7", 9, 0) == 9);
  });
  CHECK_THAT(refusal(directory), Catch::Contains("nameless is in use by process 7"));
  owner.join();
  ::close(file);
}

}  // namespace
