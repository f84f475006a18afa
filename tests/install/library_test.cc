// Weft as others' programs find it: installed below a prefix, by CMake and by pkg-config.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/version.h"
#include "io/safetensors.h"
#include "tests/shell.h"
#include "tests/skip.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

fs::path scratch() { return std::getenv("TEST_TMPDIR"); }

CommandOutcome run(const std::string& command) {
  CommandOutcome outcome = run_command("timeout 240 sh -c 'set -e\n" + command + "'");
  INFO(command << "\n" << outcome.text);
  CHECK(outcome.code == 0);
  return outcome;
}

bool has(const std::string& tool) { return run_command("command -v " + tool).code == 0; }

/// Installed once, by the script that a user runs.
const std::string& prefix() {
  static const std::string path = [] {
    const std::string at = scratch() / "prefix";
    CHECK_THAT(run("bazel/install/install --from . --prefix " + at).text,
               Contains("weft " WEFT_VERSION ": ") && Contains("files in " + at));
    return at;
  }();
  return path;
}

/// Runs the program of tests/install/outside and reads what it saved.
void check_program(const std::string& program, const std::string& setting = "") {
  const std::string file = scratch() / "trained.safetensors";
  fs::remove(file);
  CHECK_THAT(run(setting + " OMP_NUM_THREADS=2 GOMP_SPINCOUNT=0 " + program + " " + file).text,
             Contains("weft " WEFT_VERSION " loss "));
  const io::SafeTensors saved = io::read_safetensors(file);
  REQUIRE(saved.tensors.size() == 4);
  for (const auto& [name, tensor] : saved.tensors) {
    if (name == "fc2.weight") CHECK(tensor.shape() == Shape{3, 16});
  }
}

TEST_CASE("The installed program runs, and says its version") {
  CHECK(run(prefix() + "/bin/weft --version").text == "weft " WEFT_VERSION "\n");
}

TEST_CASE("The shared library has a versioned name and shows Weft's symbols alone") {
  const std::string library = prefix() + "/lib/libweft.so." WEFT_VERSION;
  const std::string major = WEFT_VERSION_TEXT(WEFT_VERSION_MAJOR);
  CHECK_THAT(run("objdump -p " + library).text,
             Contains("SONAME               libweft.so." + major));
  CHECK(fs::canonical(prefix() + "/lib/libweft.so") == fs::canonical(library));
  const CommandOutcome foreign = run_command(
      "nm -D --defined-only " + library +
      " | awk '$2 != \"A\" {print $3}' | grep -vE '^_Z(T[hvc][^N]*_|G[VR]|T.|Z|GVZ)?N[KRO]*4weft'");
  CHECK(foreign.text == "");
}

TEST_CASE("Installed headers include each other in angle brackets, and no CUDA above the kernels") {
  CHECK(run_command("grep -rlE '^ *#include \"' " + prefix() + "/include").text == "");
  CHECK(run_command("grep -rlE '^ *#include <(cuda|nccl|cudnn)' " + prefix() +
                    "/include | grep -v weft/kernels/")
            .text == "");
}

TEST_CASE("CMake finds the package and builds a program on either library") {
  if (!has("cmake")) WEFT_SKIP("CMake is not installed");
  const std::string build = scratch() / "cmake";
  run("cmake -S tests/install/outside -B " + build + " -DCMAKE_PREFIX_PATH=" + prefix() +
      " -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=\"-Wall -Wextra -Werror\"\n cmake --build " +
      build);
  check_program(build + "/with_shared");
  check_program(build + "/with_static");
  // What another minor version is asked for is not found.
  const std::string other = scratch() / "other";
  fs::create_directories(other);
  fs::copy_file("tests/install/outside/main.cc", other + "/main.cc");
  run("sed \"s/weft 0.1/weft 0.0/\" tests/install/outside/CMakeLists.txt >" + other +
      "/CMakeLists.txt");
  const CommandOutcome refused = run_command("timeout 60 cmake -S " + other + " -B " + other +
                                             "/build -DCMAKE_PREFIX_PATH=" + prefix());
  CHECK(refused.code != 0);
  CHECK_THAT(refused.text, Contains("version: " WEFT_VERSION));
}

TEST_CASE("The installed lab compiles and checks kernels outside the tree") {
  const std::string weft = "cd " + scratch().string() +
                           " && env -u WEFT_ROOT XDG_CACHE_HOME=" + (scratch() / "cache").string() +
                           " " + prefix() + "/bin/weft kernels ";
  run(weft + "new softmax . --cuda");
  CHECK_THAT(run(weft + "check softmax --small --plugin softmax_cuda_mine.cu").text,
             Contains("softmax_cuda_mine") && Contains(" 0 failed, "));
  run(weft + "new square square --cuda");
  CHECK_THAT(run(weft + "check --plugin square").text,
             Contains("square_cuda_threads") && Contains(" 0 failed, "));
}

TEST_CASE("pkg-config finds the library, and a compiler's line is enough") {
  if (!has("pkg-config")) WEFT_SKIP("pkg-config is not installed");
  const std::string object = (scratch() / "main.o").string();
  const std::string config = "PKG_CONFIG_PATH=" + prefix() + "/lib/pkgconfig pkg-config ";
  CHECK(run(config + "--modversion weft").text == WEFT_VERSION "\n");
  run("g++ -std=c++20 -O1 -c tests/install/outside/main.cc -o " + object + " $(" + config +
      "--cflags weft)");
  const std::string program = scratch() / "program";
  run("g++ " + object + " -o " + program + " $(" + config + "--libs weft)");
  check_program(program, "LD_LIBRARY_PATH=" + prefix() + "/lib");
  run("g++ " + object + " -o " + program + " $(" + config + "--libs weft-static)");
  check_program(program);
}

}  // namespace
}  // namespace weft
