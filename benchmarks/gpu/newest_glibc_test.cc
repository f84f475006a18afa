// The programs of the bundle (benchmarks/gpu/bundle) need no newer C library than Ubuntu 22.04's.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/shell.h"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

weft::CommandOutcome newest_glibc(const std::string& files, const std::string& path = "") {
  return weft::run_command("PATH=" + path + (path.empty() ? "" : ":") +
                           "/usr/bin:/bin timeout 60 benchmarks/gpu/newest-glibc " + files);
}

TEST_CASE("the programs need no symbol above glibc 2.35") {
  const weft::CommandOutcome outcome = newest_glibc("cli/weft kernels/testing/roofline");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.text, StartsWith("GLIBC_2."));
}

TEST_CASE("a program that needs a newer one is named") {
  const fs::path folder = fs::path(std::getenv("TEST_TMPDIR")) / "tools";
  fs::create_directories(folder);
  const auto objdump_that_says = [&](const std::string& version) {
    const fs::path tool = folder / "objdump";
    std::ofstream(tool) << "#!/bin/sh\necho '0000 DF *UND* 0000 (GLIBC_2.2.5) malloc'\n"
                        << "echo '0000 DF *UND* 0000 (" << version << ") fmod'\n";
    fs::permissions(tool, fs::perms::owner_all);
  };
  objdump_that_says("GLIBC_2.36");
  const weft::CommandOutcome newer = newest_glibc("cli/weft", folder.string());
  CHECK(newer.code == 1);
  CHECK_THAT(newer.text, Contains("cli/weft needs GLIBC_2.36, and Ubuntu 22.04 has GLIBC_2.35"));
  objdump_that_says("GLIBC_2.35");
  CHECK(newest_glibc("cli/weft", folder.string()).text == "GLIBC_2.35\n");
  objdump_that_says("GLIBC_2.4");
  CHECK(newest_glibc("cli/weft", folder.string()).text == "GLIBC_2.4\n");
}

TEST_CASE("what is no program is an error") {
  CHECK(newest_glibc("benchmarks/gpu/newest-glibc").code == 1);
  CHECK(newest_glibc("/nowhere").code == 1);
}

}  // namespace
