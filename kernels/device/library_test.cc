#include "kernels/device/library.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "tests/captured_stderr.h"

using namespace weft::kernels;
namespace fs = std::filesystem;

TEST_CASE("A library is opened by name and its functions found") {
  const Library math("libm.so.6");
  REQUIRE(math.is_open());
  CHECK(math.function<double (*)(double)>("fabs")(-27) == 27);
  CHECK_THROWS_WITH(math.function<void (*)()>("no_such_function"),
                    "libm.so.6 has no function no_such_function: another version is needed");
}

TEST_CASE("A library is found in $CUDA_HOME and in the packages of the python3 that is in use") {
  const fs::path scratch = fs::path(std::getenv("TEST_TMPDIR")) / "libraries";
  const fs::path toolkit = scratch / "cuda/lib64", package = scratch / "env/nvidia/cu13/lib";
  for (const fs::path& folder : {toolkit, package, scratch / "bin"}) fs::create_directories(folder);
  fs::create_symlink("/lib/x86_64-linux-gnu/libm.so.6", toolkit / "libweft_one.so.1");
  fs::create_symlink("/lib/x86_64-linux-gnu/libm.so.6", package / "libweft_two.so.1");
  // Read once in a process: it stands before any library is looked for in vain.
  std::ofstream(scratch / "bin/python3") << "#!/bin/sh\necho; echo " << (scratch / "env").string();
  fs::permissions(scratch / "bin/python3", fs::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", ((scratch / "bin").string() + ":" + path).c_str(), 1);
  setenv("CUDA_HOME", (scratch / "cuda").c_str(), 1);
  CHECK(Library("libweft_one.so.1").is_open());
  CHECK(Library("libweft_two.so.1").is_open());
  // A file that is there but is no library says so.
  std::ofstream(toolkit / "libweft_three.so.1") << "no ELF";
  CHECK_THAT(Library("libweft_three.so.1").problem(),
             Catch::Contains("cuda/lib64/libweft_three.so.1: file too short"));
  unsetenv("CUDA_HOME");
  setenv("PATH", path.c_str(), 1);
}

TEST_CASE("A library that is missing says so when it is needed") {
  const Library missing("libno_such_library.so.1");
  CHECK_THAT(weft::captured_stderr([] {
               for (int i = 0; i < 2; ++i) Library("libno_such_library.so.1", "gemm_mine");
             }),
             Catch::StartsWith("weft: libno_such_library.so.1 is not available, which leaves out "
                               "gemm_mine: libno_such_library.so.1: cannot open") &&
                 !Catch::Contains("\nweft"));
  CHECK_FALSE(missing.is_open());
  CHECK_THROWS_WITH(missing.function<void (*)()>("f"),
                    Catch::StartsWith("libno_such_library.so.1 is not available: "));
}
