// What the script ./weft installs, builds and runs, with stand-ins for apt-get, dpkg-query, bazel
// and id that write down how they were called.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

struct Outcome {
  int code;
  std::string out, err, calls;  // calls: of the stand-ins, a line each
};

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// A machine as the script sees it: a copy of the script, a PATH of the tools it may use, and
/// packages that are installed.
class Machine {
 public:
  explicit Machine(const std::string& name)
      : root_(fs::path(std::getenv("TEST_TMPDIR")) / name), tools_(root_ / "tools") {
    fs::remove_all(root_);
    fs::create_directories(tools_);
    fs::copy_file("weft", root_ / "weft");
    for (const char* tool : {"bash", "dirname", "readlink", "grep", "cat", "env", "mktemp", "rm",
                             "sed", "sort", "uniq", "xargs", "awk"}) {
      for (const char* folder : {"/usr/bin/", "/bin/"}) {
        if (fs::exists(std::string(folder) + tool) && !fs::exists(tools_ / tool)) {
          fs::create_symlink(std::string(folder) + tool, tools_ / tool);
        }
      }
    }
    tool("id", "echo ${WEFT_TEST_UID:-0}");
    // Installed is what the file says, and what apt-get install adds to it.
    tool("dpkg-query",
         "while read -r package; do echo \"installed $package\"; done < " + installed().string());
    tool("apt-cache", "exit 0");
    tool("apt-get", record("apt-get") +
                        "[ \"${WEFT_TEST_APT:-works}\" = works ] || exit 100\n"
                        "[ \"$1\" = install ] || exit 0\n"
                        "for word; do case $word in -*|install) ;; *) echo $word >> " +
                        installed().string() + ";; esac; done");
    tool("bazel", record("bazel") +
                      "for word; do case $word in --build_event_json_file=*)\n"
                      "cat " +
                      events().string() +
                      " > \"${word#*=}\";; esac; done\n"
                      "exit ${WEFT_TEST_BAZEL:-0}");
    std::ofstream(events().string());
    fs::create_directories(root_ / "bazel-bin/cli");
    script(root_ / "bazel-bin/cli/weft", "echo \"program: $*\"; exit 7");
    std::ofstream(installed().string());
  }

  void install(const std::string& package) {
    std::ofstream(installed().string(), std::ios::app) << package << "\n";
  }
  void remove(const std::string& tool) { fs::remove(tools_ / tool); }
  /// An op of the kernel lab: its list, and its program as the build leaves it.
  void add_op(const std::string& op, const std::string& body) {
    for (const char* folder : {"kernels/", "bazel-bin/kernels/"}) {
      fs::create_directories(root_ / folder / op);
    }
    std::ofstream((root_ / "kernels" / op / (op + ".inc")).string());
    script(root_ / "bazel-bin/kernels" / op / (op + "_test"), body);
  }
  void add_program(const std::string& path, const std::string& body) {
    fs::create_directories((root_ / "bazel-bin" / path).parent_path());
    script(root_ / "bazel-bin" / path, body);
  }
  fs::path root() const { return root_; }
  /// What bazel test is to say happened.
  fs::path events() const { return root_ / "events"; }

  Outcome run(const std::string& arguments, const std::string& settings = "") const {
    const fs::path calls = root_ / "calls";
    fs::remove(calls);
    const std::string command = "timeout 60 env -i " + settings +
                                " CUDA_HOME=/nonexistent PATH=" + tools_.string() + " " +
                                (root_ / "weft").string() + " " + arguments + " > " +
                                (root_ / "out").string() + " 2> " + (root_ / "err").string();
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), read(root_ / "out"), read(root_ / "err"), read(calls)};
  }

 private:
  fs::path installed() const { return root_ / "installed"; }
  std::string record(const std::string& name) const {
    return "echo \"" + name + " $*\" >> " + (root_ / "calls").string() + "\n";
  }
  void tool(const std::string& name, const std::string& body) { script(tools_ / name, body); }
  static void script(const fs::path& path, const std::string& body) {
    std::ofstream(path.string()) << "#!/bin/bash\n" << body << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  fs::path root_, tools_;
};

/// The packages the script names, read from it.
std::vector<std::string> packages() {
  const std::string text = read("weft");
  const size_t begin = text.find("packages=(") + 10;
  std::istringstream words(text.substr(begin, text.find(')', begin) - begin));
  std::vector<std::string> all;
  for (std::string word; words >> word;) all.push_back(word);
  REQUIRE(all.size() > 10);
  return all;
}

TEST_CASE("With everything present the script installs nothing and runs the program") {
  Machine machine("present");
  for (const std::string& package : packages()) machine.install(package);
  const Outcome outcome = machine.run("train --epochs 3");
  CHECK(outcome.code == 7);  // the program's own
  CHECK(outcome.out == "program: train --epochs 3\n");
  CHECK(outcome.err == "");
  CHECK(outcome.calls == "bazel build --config=cpu --check_up_to_date //cli:weft\n");
}

TEST_CASE("As root the script installs what is missing, and only that") {
  Machine machine("root");
  std::vector<std::string> all = packages();
  const std::string missing = all.back();
  all.pop_back();
  for (const std::string& package : all) machine.install(package);
  CHECK_THAT(machine.run("train").calls,
             StartsWith("apt-get install -y --no-install-recommends " + missing + "\n"));
  CHECK(machine.run("train").calls.find("apt-get") == std::string::npos);  // it is there now
}

TEST_CASE("Without root the script says what to type, and changes nothing") {
  Machine machine("user");
  std::string all;
  for (const std::string& package : packages()) all += " " + package;
  const Outcome outcome = machine.run("train", "WEFT_TEST_UID=1000");
  CHECK(outcome.code == 1);
  CHECK(outcome.err ==
        "weft: error: missing packages; run: sudo apt-get install -y --no-install-recommends" +
            all + "\n");
  CHECK(outcome.out == "");
  CHECK(outcome.calls == "");
}

TEST_CASE("Errors of the script are one line") {
  Machine machine("errors");
  const auto last_line = [](const Outcome& outcome) {
    const std::string text = outcome.err.substr(0, outcome.err.size() - 1);
    return text.substr(text.rfind('\n') + 1);
  };
  CHECK(machine.run("--flavor metal train").code == 2);
  CHECK(machine.run("--flavor metal train").err ==
        "weft: error: unknown flavor \"metal\": expected cpu, cuda or simt\n");
  const Outcome apt = machine.run("train", "WEFT_TEST_APT=fails");
  CHECK(apt.code == 1);
  CHECK_THAT(last_line(apt), StartsWith("weft: error: could not install the missing packages; "
                                        "run: apt-get install"));
  for (const std::string& package : packages()) machine.install(package);
  const Outcome build = machine.run("train", "WEFT_TEST_BAZEL=1");
  CHECK(build.code == 1);
  CHECK(last_line(build) == "weft: error: the build failed");
  const Outcome test = machine.run("test --most");
  CHECK(test.code == 2);
  CHECK(last_line(test) == "weft: error: unknown argument of test: --most");
  machine.remove("dpkg-query");
  const Outcome elsewhere = machine.run("train");
  CHECK(elsewhere.code == 1);
  CHECK_THAT(elsewhere.err, StartsWith("weft: error: this is not Debian; install the equivalents"));
}

TEST_CASE(
    "A test run counts what passed, failed and was not built; what does not apply is neither") {
  Machine machine("counts");
  for (const std::string& package : packages()) machine.install(package);
  const auto events = [&](const std::vector<std::string>& lines) {
    std::ofstream file(machine.events().string());
    // The form of Bazel 4.2's events.
    for (const std::string& line : lines) file << line << "\n";
  };
  const std::string completed = R"({"id":{"targetCompleted":{"label":"//a:b"}},)";
  const std::string summary = R"({"id":{"testSummary":{"label":"//a:b"}},"testSummary":)";
  const std::string pass = summary + R"({"totalRunCount":1,"overallStatus":"PASSED"}})";
  const std::string built = completed + R"("completed":{"success":true}})";
  const std::string incompatible = completed + R"("aborted":{"reason":"SKIPPED"}})";
  events({built, pass, incompatible});
  Outcome outcome = machine.run("test");
  CHECK(outcome.code == 0);
  // Three flavours ran: the tests on the CPU, and the kernels on the emulated device, watched and
  // under AddressSanitizer.
  CHECK(outcome.out == "\nAll tests passed.\n3 passed, 0 failed, 0 skipped\n");
  events({built, pass, completed + R"("aborted":{"reason":"ANALYSIS_FAILURE"}})"});
  outcome = machine.run("test");
  CHECK(outcome.code == 1);
  CHECK(outcome.out == "\nTests or builds failed.\n3 passed, 3 failed, 0 skipped\n");
  events({built, pass, completed + R"("completed":{}})"});
  CHECK_THAT(machine.run("test").out, Contains("3 passed, 3 failed"));
  events({built, summary + R"({"overallStatus":"TIMEOUT"}})"});
  CHECK_THAT(machine.run("test").out, Contains("0 passed, 3 failed"));
  events({pass});
  CHECK(machine.run("test", "WEFT_TEST_BAZEL=1").code == 1);
  events({});
  CHECK_THAT(machine.run("test").out, Contains("Tests or builds failed.\n0 passed"));
}

TEST_CASE("The kernel lab builds the op that is asked for, passes its arguments on and adds up") {
  Machine machine("lab");
  for (const std::string& package : packages()) machine.install(package);
  machine.add_op("gemm",
                 "echo \"gemm: $*\"; echo '{\"checked\":3,\"failed\":1,\"skipped\":2}'; exit 1");
  machine.add_op("softmax",
                 "echo \"softmax: $*\"; echo '{\"checked\":4,\"failed\":0,\"skipped\":0}'");
  Outcome outcome = machine.run("kernels check softmax --json --small");
  CHECK(outcome.code == 0);
  CHECK(outcome.calls ==
        "bazel build --config=cpu --check_up_to_date //kernels/softmax:softmax_test\n");
  CHECK(outcome.out ==
        "softmax: check --json --small\n{\"checked\":4,\"failed\":0,\"skipped\":0}\n");
  outcome = machine.run("kernels check --json");
  CHECK(outcome.code == 1);
  CHECK(outcome.out ==
        "gemm: check --json\nsoftmax: check --json\n{\"checked\":7,\"failed\":1,\"skipped\":2}\n");
}

TEST_CASE("The kernel lab measures a roofline before it times, and makes a page of the rows") {
  Machine machine("bench");
  for (const std::string& package : packages()) machine.install(package);
  machine.add_op(
      "softmax",
      "echo \"{\\\"row\\\":\\\"$1 $2 $3\\\"}\"; cat ${@: -1}; echo '{\"timed\":1,\"skipped\":0}'");
  machine.add_program("kernels/testing/roofline", "echo \"{\\\"roofline\\\":\\\"$*\\\"}\"");
  machine.add_program("cli/kernel_report_main", "echo \"page of:\"; cat $1; echo \"in $2\"");
  Outcome outcome = machine.run("kernels bench softmax --device cpu --json");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.calls, Contains("//kernels/softmax:softmax_test //kernels/testing:roofline"));
  const std::string roofline = "{\"roofline\":\"--device cpu\"}\n";
  CHECK(outcome.out == roofline + "{\"row\":\"bench --device cpu\"}\n" + roofline +
                           "{\"timed\":1,\"skipped\":0}\n");
  const std::string page = (machine.root() / "page.html").string();
  outcome = machine.run("kernels report softmax --html " + page);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, StartsWith("page of:\n{\"roofline\"") && Contains("bench --json") &&
                              Contains("in " + page + "\n"));
  // The page of an earlier run's rows: nothing is timed.
  outcome = machine.run("kernels report --html=" + page + " --rows=" + page + ".rows.jsonl");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, StartsWith("page of:\n{\"roofline\""));
  CHECK(outcome.calls.find("roofline") == std::string::npos);
}

TEST_CASE("The kernel lab's help is the script's, and builds nothing") {
  Machine machine("help");
  for (const std::string& package : packages()) machine.install(package);
  const Outcome outcome = machine.run("kernels --help");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, StartsWith("./weft kernels list|check [OP] ") &&
                              Contains("\n./weft kernels bench|report [OP] "));
  CHECK(outcome.calls == "");
}

TEST_CASE("Mistakes in the kernel lab's arguments exit with 2 and build nothing") {
  Machine machine("mistakes");
  for (const std::string& package : packages()) machine.install(package);
  machine.add_op("gemm", "exit 0");
  machine.add_op("softmax", "exit 0");
  const struct {
    const char* arguments;
    const char* message;
  } kMistakes[] = {
      {"kernels", "kernels: expected list, check, bench or report, got \"\""},
      {"kernels time", "expected list, check, bench or report, got \"time\""},
      {"kernels check relu", "kernels: no op \"relu\": expected one of gemm softmax"},
      {"kernels bench --shape 3x5", "kernels bench: --shape needs an op"},
      {"kernels check --variant=a", "kernels check: --variant needs an op"},
      {"--flavor simt kernels bench", "kernels bench: the emulated device has no speed to measure"},
      {"--flavor simt kernels report gemm", "kernels report: the emulated device has no speed"},
  };
  for (const auto& mistake : kMistakes) {
    INFO(mistake.arguments);
    const Outcome outcome = machine.run(mistake.arguments);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, StartsWith("weft: error: ") && Contains(mistake.message));
    CHECK(outcome.calls == "");
  }
  CHECK(machine.run("kernels report gemm --html").code == 2);
}

}  // namespace
