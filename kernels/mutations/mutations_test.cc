// Runs every fault's program on its case: it must fail. Prints what caught each.
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/shell.h"

namespace {

/// The first line of a program's words that says what went wrong.
std::string finding_in(const std::string& text) {
  std::istringstream lines(text);
  std::string line, finding;
  while (finding.empty() && std::getline(lines, line)) {
    if (line.rfind("FAILED", 0) == 0) finding = line;
  }
  // A list of findings starts on the next line.
  if (!finding.empty() && finding.back() == ':' && std::getline(lines, line)) finding = line;
  return finding;
}

}  // namespace

TEST_CASE("Every deliberate fault is caught") {
  const std::string folder = "kernels/mutations/";
  std::ifstream list(folder + "mutations_test.txt");
  REQUIRE(list);
  std::string fault, variant, name;
  int count = 0;
  while (list >> fault >> variant >> name) {
    ++count;
    std::string command = "timeout 300 " + folder + fault + " check --variant " + variant;
    const size_t at = name.find('@');  // a tile
    if (name != "-") command += " --case '" + name.substr(0, at) + "'";
    if (at != std::string::npos) {
      const size_t blocks = name.find('+', at);
      command += " --tile " + name.substr(at + 1, blocks - at - 1);
      if (blocks != std::string::npos) command += " --cluster " + name.substr(blocks + 1);
    }
    const weft::CommandOutcome outcome = weft::run_command(command);
    const std::string finding = finding_in(outcome.text);
    INFO(fault);
    // 1 is a failed check; a crash or a program that ran no case would not do.
    CHECK(outcome.code == 1);
    CHECK(finding != "");
    std::printf("%-32s %s\n", fault.c_str(), finding.c_str());
  }
  CHECK(count >= 20);
}
