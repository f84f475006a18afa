#include "io/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/error.h"
#include "io/checked_json.h"

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

TEST_CASE("what is no regular file is not replaced, and a link stays one") {
  const io::Path directory = io::Path(std::getenv("TEST_TMPDIR")) / "replaced";
  io::make_directories(directory);
  const auto write = [](const io::Path& path) {
    io::write_file_atomically(path, [](io::FileWriter& file) { file.write("new"); });
  };
  const io::Path pipe = directory / "pipe", file = directory / "file", link = directory / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0666) == 0);
  for (const io::Path& path : {pipe, directory}) {
    CHECK_THROWS_WITH(write(path), Catch::Contains("cannot write " + path.string() +
                                                   ": it is there, and no regular file"));
  }
  CHECK(std::filesystem::is_fifo(pipe));
  write(file);
  std::filesystem::create_symlink("file", link);
  io::write_file_atomically(link, [](io::FileWriter& f) { f.write("through the link"); });
  CHECK(std::filesystem::is_symlink(link));
  CHECK(io::read_text(file) == "through the link");
  // Nor is a lock somebody else's file.
  std::filesystem::create_symlink("file", directory / ".lock");
  CHECK_THAT(refusal(directory), Catch::Contains("cannot create " + directory.string() + "/.lock"));
  CHECK(io::read_text(file) == "through the link");
}

TEST_CASE("JSON takes time by its length, and is refused twice the key or too deep") {
  std::string objects = "[";
  for (int i = 0; i < 500000; ++i) objects += "{},";
  CHECK(io::parse_json(objects + "{}]", "a.json").size() == 500001);
  CHECK_THROWS_WITH(io::parse_json(R"({"a": {"b": 1, "b": 2}})", "a.json"),
                    "a.json: the key \"b\" is there twice");
  CHECK(io::parse_json(R"({"a": {"b": 1}, "c": {"b": 2}})", "a.json").size() == 2);
  CHECK_NOTHROW(io::parse_json(std::string(32, '[') + std::string(32, ']'), "a.json"));
  CHECK_THROWS_WITH(io::parse_foreign_json(std::string(33, '[') + std::string(33, ']'), "a.json"),
                    "a.json: JSON nested more than 32 deep");
  CHECK_THROWS_WITH(io::parse_json("{\n\"a\": 1,\n}", "a.json"), "a.json: line 3: expected JSON");
  CHECK_THROWS_WITH(io::parse_json("[1] 2", "a.json"), "a.json: line 1: expected JSON");
  CHECK_THROWS_WITH(io::parse_json("[1e999]", "a.json"), Catch::Contains("a number is too large"));
  CHECK_THROWS_WITH(io::parse_json(std::string((8 << 20) + 1, ' '), "a.json"),
                    Catch::Contains("8388609 bytes of JSON, at most 8388608 are read"));
}

TEST_CASE("an owner that has locked and not yet said its name is waited for") {
  const io::Path directory = io::Path(std::getenv("TEST_TMPDIR")) / "nameless";
  io::make_directories(directory);
  const int file = ::open((directory / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  REQUIRE(::flock(file, LOCK_EX | LOCK_NB) == 0);
  CHECK_THAT(refusal(directory), Catch::Contains("nameless is in use by another process"));
  ssize_t written = 0;
  std::thread owner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    written = ::pwrite(file, "process 7", 9, 0);
  });
  CHECK_THAT(refusal(directory), Catch::Contains("nameless is in use by process 7"));
  owner.join();
  CHECK(written == 9);
  ::close(file);
}

}  // namespace
