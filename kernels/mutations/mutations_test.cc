// Runs every fault's program on its case: it must fail. Prints what caught each.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

struct Outcome {
  int status = -1;
  std::string finding;  // the first line that says what went wrong
};

Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> line{};
  std::string previous;
  while (fgets(line.data(), line.size(), pipe) != nullptr) {
    std::string text = line.data();
    if (!text.empty() && text.back() == '\n') text.pop_back();
    if (outcome.finding.empty() && text.rfind("FAILED", 0) == 0) outcome.finding = text;
    // A list of findings starts on the next line.
    if (!outcome.finding.empty() && previous == outcome.finding && previous.back() == ':') {
      outcome.finding = text;
    }
    previous = text;
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return outcome;
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
    if (name != "-") command += " --case '" + name + "'";
    const Outcome outcome = run(command);
    INFO(fault);
    // 1 is a failed check; a crash or a program that ran no case would not do.
    CHECK(outcome.status == 1);
    CHECK(outcome.finding != "");
    std::printf("%-32s %s\n", fault.c_str(), outcome.finding.c_str());
  }
  CHECK(count >= 20);
}
