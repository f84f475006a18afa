// What bazel/install/install does to a prefix: all of an installation or nothing, and nobody else's
// files. Small files stand in for what is installed.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/shell.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// A build to install from, and a prefix.
struct Scene {
  explicit Scene(const std::string& name)
      : from(fs::path(std::getenv("TEST_TMPDIR")) / name / "from"),
        prefix(from.parent_path() / "prefix with blank") {
    fs::remove_all(from.parent_path());
    write(from / "bazel/install/VERSION", "1.2.3\n");
    write(from / "program", "program");
    write(from / "headers/core/tensor.h", "tensor");
    write(from / "headers/nn/nn.h", "nn");
    list(
        "755 bin/weft program\ntree include/weft headers\n644 lib/libweft.so.@VERSION@ program\n"
        "link lib/libweft.so.@MAJOR@ libweft.so.@VERSION@\n");
  }
  void list(const std::string& lines) const { write(from / "bazel/install/files", lines); }
  std::string command(const std::string& arguments = "") const {
    return "timeout 60 bazel/install/install --from '" + from.string() + "' --prefix '" +
           prefix.string() + "' " + arguments;
  }
  CommandOutcome install(const std::string& arguments = "") const {
    return run_command(command(arguments));
  }
  /// The files and links below the prefix.
  std::set<std::string> files() const {
    std::set<std::string> all;
    if (!fs::exists(prefix)) return all;
    for (const auto& entry : fs::recursive_directory_iterator(prefix)) {
      if (entry.is_symlink() || !entry.is_directory()) {
        all.insert(entry.path().lexically_relative(prefix));
      }
    }
    return all;
  }

  fs::path from, prefix;
};

const std::set<std::string> kInstalled = {
    "bin/weft",         "include/weft/core/tensor.h", "include/weft/nn/nn.h",
    "lib/libweft.so.1", "lib/libweft.so.1.2.3",       "share/weft/installed"};

void check_error(const CommandOutcome& outcome, int code, const std::string& message) {
  CHECK(outcome.code == code);
  CHECK_THAT(outcome.text, StartsWith("weft: error: install: ") && Contains(message));
  CHECK(std::ranges::count(outcome.text, '\n') == 1);
}

TEST_CASE("Files, folders and links are installed and listed") {
  const Scene scene("plain");
  const CommandOutcome outcome = scene.install();
  CHECK(outcome.code == 0);
  CHECK(outcome.text == "weft 1.2.3: 6 files in " + scene.prefix.string() + "\n");
  CHECK(scene.files() == kInstalled);
  CHECK(read(scene.prefix / "include/weft/core/tensor.h") == "tensor");
  CHECK(fs::read_symlink(scene.prefix / "lib/libweft.so.1") == "libweft.so.1.2.3");
  CHECK(::access((scene.prefix / "bin/weft").c_str(), X_OK) == 0);
  std::istringstream listed(read(scene.prefix / "share/weft/installed"));
  std::set<std::string> lines;
  for (std::string line; std::getline(listed, line);) lines.insert(line);
  CHECK(lines == kInstalled);
}

TEST_CASE("A later installation replaces files, removes what it lacks, and leaves others' alone") {
  const Scene scene("again");
  REQUIRE(scene.install().code == 0);
  write(scene.prefix / "include/weft/mine.h", "mine");
  write(scene.prefix / "lib/libother.so", "other");
  write(scene.from / "program", "newer");
  fs::remove_all(scene.from / "headers/nn");
  REQUIRE(scene.install().code == 0);
  std::set<std::string> expected = kInstalled;
  expected.erase("include/weft/nn/nn.h");
  expected.insert({"include/weft/mine.h", "lib/libother.so"});
  CHECK(scene.files() == expected);
  CHECK_FALSE(fs::exists(scene.prefix / "include/weft/nn"));
  CHECK(read(scene.prefix / "bin/weft") == "newer");
}

TEST_CASE("With DESTDIR files go below that") {
  const Scene scene("staged");
  const fs::path destination = scene.from.parent_path() / "destination";
  CHECK(run_command("export DESTDIR='" + destination.string() + "'; " + scene.command()).code == 0);
  CHECK(scene.files().empty());
  CHECK(fs::exists(destination / scene.prefix.relative_path() / "bin/weft"));
}

TEST_CASE("Another's file is not overwritten, and nothing is installed") {
  const Scene scene("foreign");
  write(scene.prefix / "bin/weft", "somebody's");
  check_error(scene.install(), 1, "bin/weft exists and was not installed by weft");
  CHECK(scene.files() == std::set<std::string>{"bin/weft"});
  CHECK(read(scene.prefix / "bin/weft") == "somebody's");
}

TEST_CASE("What is missing from the build is named, and nothing is installed") {
  const Scene scene("missing");
  scene.list("755 bin/weft program\n755 bin/absent absent\n");
  check_error(scene.install(), 1, "absent was not built");
  CHECK(scene.files().empty());
}

TEST_CASE("A prefix that is no folder, or cannot be written, is said before anything is done") {
  const Scene scene("unwritable");
  write(scene.prefix, "a file");
  check_error(scene.install("--check"), 1, "prefix with blank is not a directory");
  check_error(scene.install(), 1, "prefix with blank is not a directory");
  fs::remove(scene.prefix);
  write(scene.prefix / "lib", "a file");
  check_error(scene.install(), 1, "lib is not a directory");
  CHECK(scene.files() == std::set<std::string>{"lib"});
  check_error(
      run_command("bazel/install/install --from '" + scene.from.string() + "' --prefix /proc/weft"),
      1, "/proc");
}

TEST_CASE("A disk that is full leaves nothing behind") {
  const Scene scene("full");
  write(scene.from / "program", std::string(100'000, 'x'));
  // A limit on the size of files stands in for the disk's.
  const CommandOutcome outcome = run_command("trap '' XFSZ; ulimit -f 50; " + scene.command());
  check_error(outcome, 1, "File too large");
  CHECK(scene.files().empty());
}

TEST_CASE("Mistakes in the command line exit with 2") {
  const Scene scene("mistakes");
  check_error(scene.install("--prefx /x"), 2,
              "unknown argument \"--prefx\": expected --prefix DIR");
  check_error(run_command("bazel/install/install --prefix"), 2, "--prefix needs a directory");
  CHECK(run_command("bazel/install/install --help").code == 0);
}

TEST_CASE("An installation that is stopped leaves nothing behind, or all of it") {
  const Scene scene("stopped");
  // Copying waits for a pipe that nobody writes, until the signal comes.
  REQUIRE(scene.install().code == 0);
  const std::string before = read(scene.prefix / "bin/weft");
  write(scene.from / "program", "newer");
  fs::create_directories(scene.from / "waiting");
  REQUIRE(run_command("mkfifo '" + (scene.from / "waiting/pipe").string() + "'").code == 0);
  scene.list("755 bin/weft program\n644 bin/late waiting/pipe\n");
  CHECK(run_command("timeout 1 " + scene.command()).code == 124);
  CHECK(scene.files() == kInstalled);
  CHECK(read(scene.prefix / "bin/weft") == before);
}

}  // namespace
}  // namespace weft
