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
    for (const char* file : {".bazelversion", "cli/commands.bzl", "bazel/install/install",
                             "bazel/system/find_packages"}) {
      fs::create_directories((root_ / file).parent_path());
      fs::copy_file(file, root_ / file);
    }
    for (const char* tool :
         {"bash", "cat", "cksum", "dirname", "env", "find", "grep", "mkdir", "mktemp", "mv",
          "readlink", "realpath", "rm", "sort", "awk", "tr", "xargs"}) {
      for (const char* folder : {"/usr/bin/", "/bin/"}) {
        if (fs::exists(std::string(folder) + tool) && !fs::exists(tools_ / tool)) {
          fs::create_symlink(std::string(folder) + tool, tools_ / tool);
        }
      }
    }
    tool("id", "echo ${WEFT_TEST_UID:-0}");
    // A compiler that lacks headers, but for those in a folder that pkg-config may name.
    tool("cc",
         "text=$(cat); for header in ${WEFT_TEST_LACKS:-}; do case $text in *\"<$header>\"*)\n"
         "case \" $* \" in *\" -I/opt/include \"*) ;; *) exit 1;; esac;; esac; done");
    tool("pkg-config",
         "case ${WEFT_TEST_PKG_CONFIG:-}$1 in yes--cflags*) echo -I/opt/include;;\n"
         "yes--libs*) echo -L/opt/lib;; esac");
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
    for (const char* program : {"weft", "weft_train", "weft_train_emulated", "weft_kernels"}) {
      add_program(std::string("cli/") + program,
                  "echo \"" + std::string(program) + ": $*\"; exit 7");
    }
    fs::create_directories(root_ / "bazel-bin/bazel");
    fs::copy_file("bazel/test_summary", root_ / "bazel-bin/bazel/test_summary");
    std::ofstream(installed().string());
  }

  void install(const std::string& package) {
    std::ofstream(installed().string(), std::ios::app) << package << "\n";
  }
  /// A python3 that says of itself `about`: its version, whether it has headers, and where.
  void add_python(const std::string& about) {
    const std::string nanobind = (root_ / "nanobind").string();
    tool("python3",
         "case \"$1 $2\" in\n"
         "'-c import os'*) echo " +
             about +
             ";;\n"
             "'-c import importlib'*) [ -e " +
             nanobind +
             " ];;\n"
             "'-m pip') " +
             record("pip $3") + ": > " + nanobind +
             ";;\n"
             "*) echo \"$PYTHONPATH: $*\"; exit 5;;\n"
             "esac");
  }
  void remove(const std::string& tool) { fs::remove(tools_ / tool); }
  /// An op of the kernel lab has a list.
  void add_op(const std::string& op) {
    fs::create_directories(root_ / "kernels" / op);
    std::ofstream((root_ / "kernels" / op / (op + ".inc")).string());
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
  CHECK(outcome.out == "weft_train: train --epochs 3\n");
  CHECK(outcome.err == "");
  CHECK(outcome.calls == "bazel build --config=host --check_up_to_date //cli:weft_train\n");
}

TEST_CASE("A program holds the command that is asked for, and the emulated GPU where it is") {
  Machine machine("programs");
  for (const std::string& package : packages()) machine.install(package);
  CHECK(machine.run("train --device emulated:1").out ==
        "weft_train_emulated: train --device emulated:1\n");
  CHECK(machine.run("train --device=emulated").out ==
        "weft_train_emulated: train --device=emulated\n");
  CHECK(machine.run("--flavor simt train").out == "weft_train_emulated: train\n");
  CHECK(machine.run("--flavor cpu train").out == "weft_train: train\n");
  CHECK(machine.run("--help").out == "weft: --help\n");
  CHECK(machine.run("trian").out == "weft: trian\n");
}

TEST_CASE("Results of builds are kept outside the tree, where they are wanted") {
  Machine machine("cache");
  for (const std::string& package : packages()) machine.install(package);
  const fs::path said = machine.root() / ".weft/bazelrc";
  machine.run("train", "HOME=/home/someone");
  CHECK(read(said) == "build --disk_cache=/home/someone/.cache/weft/build\n");
  machine.run("eval", "WEFT_BUILD_CACHE=/somewhere");
  CHECK(read(said) == "build --disk_cache=/somewhere\n");
  machine.run("predict", "WEFT_BUILD_CACHE=no");
  CHECK(read(said) == "\n");
}

TEST_CASE("With nothing to build the script asks nobody, until a source changes") {
  Machine machine("current");
  for (const std::string& package : packages()) machine.install(package);
  const std::string source = (machine.root() / "cli/train.cc").string();
  std::ofstream(source) << "1";
  CHECK_THAT(machine.run("train").calls, Contains("//cli:weft_train"));
  CHECK(machine.run("train").calls == "");
  std::ofstream(source) << "2";
  CHECK_THAT(machine.run("train").calls, Contains("//cli:weft_train"));
  CHECK(machine.run("train").calls == "");
  fs::remove(source);
  CHECK_THAT(machine.run("train").calls, Contains("//cli:weft_train"));
  // What programs write beside the sources is no source.
  std::ofstream((machine.root() / "page.html").string()) << "page";
  CHECK(machine.run("train").calls == "");
}

TEST_CASE("A script runs on the python3 found first, with the module that was built for it") {
  Machine machine("python");
  for (const std::string& package : packages()) machine.install(package);
  Outcome outcome = machine.run("python script.py");
  CHECK(outcome.code == 1);
  CHECK(outcome.err == "weft: error: no python3 on the path; run: apt-get install python3\n");
  machine.add_python("3.11 False /usr/include/python3.11");
  outcome = machine.run("python script.py");
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, StartsWith("weft: error: "));
  CHECK_THAT(outcome.err, Contains("has no headers (/usr/include/python3.11/Python.h); install the "
                                   "package python3-dev for it, python3.11-dev\n"));
  machine.add_python("3.11 True /usr/include/python3.11");
  const std::string package_folder = (machine.root() / "bazel-bin/python/package").string();
  outcome = machine.run("python script.py --epochs 3");
  CHECK(outcome.code == 5);
  CHECK(outcome.out == package_folder + ": script.py --epochs 3\n");
  CHECK_THAT(outcome.calls,
             Contains("pip install") && Contains("nanobind\n") && Contains("//python:package\n"));
  CHECK_THAT(read(machine.root() / ".weft/python.bazelrc"),
             StartsWith("build --repo_env=WEFT_PYTHON=" + machine.root().string()));
  // It is there now, and nothing is to be built.
  outcome = machine.run("python -c pass", "PYTHONPATH=/elsewhere");
  CHECK(outcome.calls == "");
  CHECK(outcome.out == package_folder + ":/elsewhere: -c pass\n");
  // The program needs none of it.
  CHECK(machine.run("train").calls.find("pip") == std::string::npos);
}

TEST_CASE("As root the script installs what is missing, and only that") {
  Machine machine("root");
  std::vector<std::string> all = packages();
  const std::string missing = all.back();
  all.pop_back();
  for (const std::string& package : all) machine.install(package);
  CHECK_THAT(machine.run("train").calls,
             StartsWith("apt-get install -y --no-install-recommends " + missing + "\n"));
  // It is there now; what tests can do without is asked for each time.
  CHECK(machine.run("test", "WEFT_OPTIONAL_PACKAGES=no").calls.find("apt-get") ==
        std::string::npos);
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
        "weft: error: unknown flavor \"metal\": expected host or cuda\n");
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
}

TEST_CASE("Elsewhere than on Debian what is there is looked for, and what is missing is listed") {
  Machine machine("elsewhere");
  const std::string settings = GENERATE("", "WEFT_SKIP_PACKAGES=1 ");
  if (settings.empty()) machine.remove("dpkg-query");
  const Outcome complete = machine.run("train", settings);
  CHECK(complete.code == 7);
  CHECK(complete.calls == "bazel build --config=host --check_up_to_date //cli:weft_train\n");
  fs::remove_all(machine.root() / ".weft");

  const std::string lacking = settings + "'WEFT_TEST_LACKS=dnnl.hpp hwy/highway.h' ";
  const Outcome incomplete = machine.run("train", lacking);
  CHECK(incomplete.code == 1);
  CHECK(incomplete.err ==
        "weft: error: this machine lacks what Weft is built of:\n"
        "  <dnnl.hpp> (dnnl): oneDNN, matrix products on the CPU\n"
        "  <hwy/highway.h> (libhwy): Highway, vector kernels on the CPU\n");
  CHECK(incomplete.calls == "");

  // Folders that pkg-config names are passed on to Bazel.
  CHECK(machine.run("train", lacking + "WEFT_TEST_PKG_CONFIG=yes WEFT_BUILD_CACHE=no").code == 7);
  CHECK(read(machine.root() / ".weft/bazelrc") ==
        "\nbuild --action_env=CPATH=/opt/include --repo_env=CPATH=/opt/include\n"
        "build --action_env=LIBRARY_PATH=/opt/lib --repo_env=LIBRARY_PATH=/opt/lib\n");

  // One of the two Catch2 is enough.
  CHECK(machine.run("eval", settings + "WEFT_TEST_LACKS=catch2/catch.hpp").code != 1);
  CHECK_THAT(machine
                 .run("predict",
                      settings + "'WEFT_TEST_LACKS=catch2/catch.hpp catch2/catch_test_macros.hpp'")
                 .err,
             Contains("(catch2): the tests; Catch2 2 or 3"));
}

TEST_CASE("Before an installation is built its prefix is looked at") {
  Machine machine("install");
  for (const std::string& package : packages()) machine.install(package);
  const Outcome refused = machine.run("install --prefix " + machine.root().string() + "/weft");
  CHECK(refused.code == 1);
  CHECK_THAT(refused.err, Contains("/weft is not a directory"));
  CHECK(refused.calls == "");
  CHECK(machine.run("install --prefx /x").code == 2);
  CHECK_THAT(machine.run("install --help").out, StartsWith("Usage: ./weft install"));
  CHECK(machine.run("install --prefix " + machine.root().string() + "/prefix").calls ==
        "bazel build --config=host --check_up_to_date //bazel/install:files\n");
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
  CHECK(outcome.out == "\nAll tests passed.\n1 passed, 0 failed, 0 skipped\n");
  events({built, pass, completed + R"("aborted":{"reason":"ANALYSIS_FAILURE"}})"});
  outcome = machine.run("test");
  CHECK(outcome.code == 1);
  CHECK(outcome.out ==
        "\nNOT BUILT: //a:b\nTests or builds failed.\n1 passed, 1 failed, 0 skipped\n");
  events({built, pass, completed + R"("completed":{}})"});
  CHECK_THAT(machine.run("test").out, Contains("1 passed, 1 failed"));
  events({built, summary + R"({"overallStatus":"TIMEOUT"}})"});
  CHECK_THAT(machine.run("test").out,
             Contains("TIMEOUT: //a:b\n") && Contains("0 passed, 1 failed"));
  events({pass});
  CHECK(machine.run("test", "WEFT_TEST_BAZEL=1").code == 1);
  events({});
  CHECK_THAT(machine.run("test").out, Contains("Tests or builds failed.\n0 passed"));
}

TEST_CASE("Cases that tests skipped are counted by their reasons") {
  Machine machine("skips");
  for (const std::string& package : packages()) machine.install(package);
  const fs::path logs = machine.root() / "bazel-testlogs/a/b";
  fs::create_directories(logs);
  std::ofstream((logs / "test.log").string())
      << "SKIPPED: no GPU\nfine\nSKIPPED: no GPU\nSKIPPED: no PyTorch\n";
  std::ofstream(machine.events().string())
      << R"({"id":{"testSummary":{"label":"//a:b"}},"testSummary":{"overallStatus":"PASSED"}})";
  CHECK(machine.run("test").out ==
        "\n      2 SKIPPED: no GPU\n      1 SKIPPED: no PyTorch\nAll tests passed.\n"
        "1 passed, 0 failed, 3 skipped\n");
}

TEST_CASE("What failed is shown at the end, where a long run's reader looks") {
  Machine machine("failures");
  for (const std::string& package : packages()) machine.install(package);
  const fs::path logs = machine.root() / "bazel-testlogs/a/b";
  fs::create_directories(logs);
  std::ofstream log((logs / "test.log").string());
  log << "far above\n";
  for (int line = 0; line < 29; ++line) log << "line " << line << "\n";
  log << std::string(1000, 'x') << "\n";
  log.close();
  std::ofstream(machine.events().string())
      << R"({"id":{"testSummary":{"label":"//a:b"}},"testSummary":{"overallStatus":"FAILED"}})";
  const std::string out = machine.run("test").out;
  CHECK_THAT(out, Contains("FAILED: //a:b\n    line 0\n    line 1\n"));
  CHECK_THAT(out, Contains("line 28\n    " + std::string(300, 'x') + "\nTests or builds failed."));
}

TEST_CASE("The kernel lab's programs are built with the command that starts them") {
  Machine machine("lab");
  for (const std::string& package : packages()) machine.install(package);
  machine.add_op("gemm");
  machine.add_op("softmax");
  const auto built = [&](const std::string& arguments) {
    fs::remove_all(machine.root() / ".weft");  // what was built already is not built again
    const std::string calls = machine.run("kernels " + arguments).calls;
    const size_t first = calls.find("//");
    return first == std::string::npos ? "" : calls.substr(first, calls.find('\n') - first);
  };
  CHECK(built("check softmax --json") == "//cli:weft_kernels //kernels/softmax:softmax_lab");
  CHECK(built("list") ==
        "//cli:weft_kernels //kernels/gemm:gemm_lab //kernels/softmax:softmax_lab");
  CHECK(built("bench gemm") ==
        "//cli:weft_kernels //kernels/testing:roofline //kernels/gemm:gemm_lab");
  // Nothing is timed for the page of an earlier run, nor for what the command will refuse.
  CHECK(built("report --rows rows.jsonl") == "//cli:weft_kernels //kernels/testing:roofline");
  CHECK(built("check --plugin my_op") == "//cli:weft_kernels //kernels/testing:plugin_lab");
  CHECK(built("check gemm --plugin my.cu") == "//cli:weft_kernels //kernels/gemm:gemm_lab");
  CHECK(built("check relu") == "//cli:weft_kernels");
  CHECK(machine.run("kernels check softmax").out == "weft_kernels: kernels check softmax\n");
}

}  // namespace
