// weft compare: the same work in Weft and in PyTorch and other peers, side by side.
//
// Each program runs in a process of its own, on the same cores, with as many threads. They take
// turns, and the turns of a pair are compared: what else the machine does weighs on both. The peers
// are scripts of benchmarks/pytorch/, which are part of this program and written to a scratch
// directory for the run.
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <regex>

#include "cli/command.h"
#include "cli/compare/cases.h"
#include "cli/compare/machine.h"
#include "cli/compare/process.h"
#include "cli/compare/report.h"
#include "cli/compare/work.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "cli/run_program.h"
#include "core/parallel.h"
#include "io/files.h"
#include "kernels/device/probe.h"

namespace weft::cli {

// The scripts' names and texts, and an empty one; written by the build.
extern const std::pair<std::string_view, std::string_view> kCompareScripts[];

namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// A program to compare with: the forms that it takes, and the script that is its half.
struct PeerProgram {
  const char* name;
  std::vector<std::string> sides;
  std::vector<std::string> script;  // with its first arguments
};
const std::vector<PeerProgram> kPeers = {
    {"PyTorch", {"eager", "compile", "fused", "onednn"}, {"compare_peer.py"}},
    {"JAX", {"jax"}, {"compare_jax.py"}},
    {"OpenVINO", {"openvino"}, {"compare_runtimes.py", "openvino"}},
    {"ONNX Runtime", {"onnxruntime"}, {"compare_runtimes.py", "onnxruntime"}},
};

std::vector<std::string> all_sides() {
  std::vector<std::string> sides;
  for (const PeerProgram& peer : kPeers) {
    sides.insert(sides.end(), peer.sides.begin(), peer.sides.end());
  }
  return sides;
}

struct Arguments {
  std::string cases = ".*", model, shape, file, python = "python3", device = "cpu", html, save;
  std::vector<std::string> against;  // empty: all that are installed
  int pairs = 5, threads = 0;
  std::optional<double> seconds;  // of a turn
  double timeout = 900;
  bool json = false, list = false, profile = false;
  // Of the worker process.
  bool serve = false;
  std::string directory;
};

/// A directory of our own, gone with us.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string path = (std::filesystem::temp_directory_path() / "weft-compare-XXXXXX").string();
    WEFT_CHECK(::mkdtemp(path.data()) != nullptr, "cannot make a directory like {}: {}", path,
               std::strerror(errno));
    path_ = path;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Keeps this process and its children on the first `threads` of its cores; all of them when there
/// are fewer. Returns their numbers.
std::vector<int> claim_cores(int threads) {
  cpu_set_t allowed, chosen;
  CPU_ZERO(&chosen);
  WEFT_CHECK(::sched_getaffinity(0, sizeof allowed, &allowed) == 0,
             "cannot ask for the process's cores: {}", std::strerror(errno));
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && static_cast<int>(cores.size()) < threads; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    CPU_SET(core, &chosen);
    cores.push_back(core);
  }
  WEFT_CHECK(::sched_setaffinity(0, sizeof chosen, &chosen) == 0, "cannot keep to the cores {}: {}",
             fmt::join(cores, ","), std::strerror(errno));
  return cores;
}

/// Runnable processes of the last minute, ours included.
double load_average() {
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

/// What one turn gives.
struct Figure {
  double median = 0, best = 0;
};

/// One of the programs: its command, and the process that lives as long as the run.
class Program {
 public:
  Program(std::string name, std::vector<std::string> command, const std::string& directory,
          double timeout)
      : name_(std::move(name)),
        command_(std::move(command)),
        log_(directory + "/" + name_ + ".log"),
        timeout_(timeout) {}

  /// A process besides the one that stays.
  WorkerProcess fresh() const { return {name_, command_, log_ + ".fresh", timeout_}; }

  /// An answer of the process that stays; one that died is started again.
  ordered_json ask(const ordered_json& request) {
    if (!worker_ || !worker_->is_alive()) {
      worker_ = std::make_unique<WorkerProcess>(name_, command_, log_, timeout_);
    }
    return worker_->ask(request);
  }
  const std::string& name() const { return name_; }
  std::string command_line() const { return fmt::format("{}", fmt::join(command_, " ")); }

 private:
  const std::string name_;
  const std::vector<std::string> command_;
  const std::string log_;
  const double timeout_;
  std::unique_ptr<WorkerProcess> worker_;
};

/// f(), or the message of what it threw.
template <class F>
std::string failure_of(F&& f) {
  try {
    f();
    return "";
  } catch (const Error& error) {
    return error.what();
  } catch (const nlohmann::json::exception& error) {
    return error.what();
  }
}

/// One program in one of its forms, at one case.
struct Side {
  std::string name;  // "weft", "eager", ...
  Program& program;
  SideResult& result;

  /// Unless something has failed before.
  template <class F>
  void attempt(F&& f) const {
    if (result.failure.empty()) result.failure = failure_of(f);
  }

  ordered_json prepare_request(const ordered_json& work) const {
    return {{"do", "prepare"}, {"side", name}, {"work", work}};
  }

  /// Seconds of one iteration: the turn's median and its best.
  Figure time(double seconds) const {
    const ordered_json answer = program.ask({{"do", "time"}, {"side", name}, {"seconds", seconds}});
    WEFT_CHECK(answer.contains("times") && !answer["times"].empty(), "{}: answered no times",
               program.name());
    const Spread spread = Spread::of(answer["times"].get<std::vector<double>>());
    return {spread.median, spread.least};
  }

  Figure start_up_seconds() const {
    const Clock::time_point start = Clock::now();
    WorkerProcess worker = program.fresh();
    worker.ask({{"do", "hello"}});
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return {seconds, seconds};
  }

  Figure peak_bytes(const ordered_json& work) const {
    WorkerProcess worker = program.fresh();
    worker.ask(prepare_request(work));
    const double bytes = worker.ask({{"do", "memory"}}).at("peak_bytes");
    return {bytes, bytes};
  }
};

/// Programs by the sides that are theirs; several sides may be one program's.
using Peers = std::map<std::string, std::shared_ptr<Program>>;

/// A case's figures.
CaseResult measure(const Arguments& a, const CompareCase& about, Program& weft,
                   const Peers& peers) {
  CaseResult result;
  result.about = about;
  for (const std::string& side : about.sides) {
    if (peers.contains(side)) result.peers.emplace_back().side = side;
  }
  std::vector<Side> sides = {{"weft", weft, result}};
  for (PeerResult& other : result.peers) {
    sides.push_back({other.side, *peers.at(other.side), other});
  }
  const auto turns = [&](int pairs, auto&& figure_of) {
    for (int pair = 0; pair < pairs; ++pair) {
      for (const Side& side : sides) {
        side.attempt([&] {
          const Figure figure = figure_of(side);
          std::vector<double>& values = side.result.values;
          side.result.best = values.empty() ? figure.best : std::min(side.result.best, figure.best);
          values.push_back(figure.median);
        });
      }
      for (PeerResult& other : result.peers) {
        if (!result.failure.empty() || !other.failure.empty()) continue;
        other.ratios.push_back(other.values.back() / result.values.back());
      }
    }
  };
  switch (about.measure) {
    case CompareCase::Measure::kStartUp:
      turns(a.pairs, [](const Side& side) { return side.start_up_seconds(); });
      return result;
    case CompareCase::Measure::kMemory:
      // Memory hardly varies, and a turn takes a minute.
      turns(std::min(a.pairs, 2), [&](const Side& side) { return side.peak_bytes(about.work); });
      return result;
    case CompareCase::Measure::kTime:
      break;
  }
  int64_t parameters = -1;  // of Weft's model
  for (const Side& side : sides) {
    side.attempt([&] {
      const int64_t its =
          side.program.ask(side.prepare_request(about.work)).value("parameters", int64_t{-1});
      if (&side == &sides[0]) parameters = its;
      WEFT_CHECK(!result.failure.empty() || its == parameters,
                 "not the same model: {} parameters, Weft's has {}", its, parameters);
    });
  }
  turns(a.pairs, [&](const Side& side) { return side.time(a.seconds.value_or(about.seconds)); });
  // What goes wrong from here on leaves the figures as they are.
  for (const Side& side : sides) {
    if (!a.profile || !side.result.failure.empty()) continue;
    failure_of([&] {
      side.result.profile = side.program.ask({{"do", "profile"}, {"side", side.name}}).at("rows");
    });
  }
  // Once for each program: its sides stand side by side.
  const Program* last = nullptr;
  for (const Side& side : sides) {
    if (std::exchange(last, &side.program) == &side.program) continue;
    failure_of([&] { side.program.ask({{"do", "drop"}}); });
  }
  return result;
}

std::vector<CompareCase> chosen_cases(const Arguments& a, const std::string& directory) {
  const bool on_gpu = parse_device(a.device).type == DeviceType::cuda;
  std::vector<CompareCase> cases = compare_cases(directory, on_gpu);
  std::regex pattern;
  try {
    pattern = std::regex(a.cases);
  } catch (const std::regex_error& error) {
    throw UsageError("--cases \"{}\": {}", a.cases, error.what());
  }
  const auto keep = [&](const std::string& option, const std::string& value, auto&& wanted) {
    if (value.empty()) return;
    const size_t all = cases.size();
    std::erase_if(cases, [&](const CompareCase& c) { return !wanted(c); });
    check_usage(!cases.empty(), "{} \"{}\" matches none of the {} cases; see --list", option, value,
                all);
  };
  keep("--cases", a.cases, [&](const CompareCase& c) {
    return std::regex_search(c.name, pattern) || std::regex_search(c.group, pattern);
  });
  keep("--model", a.model, [&](const CompareCase& c) {
    return c.work.is_object() && c.work.value("model", "") == a.model;
  });
  keep("--shape", a.shape, [&](const CompareCase& c) {
    return (" " + c.name + " ").find(" " + a.shape + " ") != std::string::npos;
  });
  return cases;
}

/// What the two programs inherit, for the report.
ordered_json environment_of(int threads) {
  // Torch's OpenMP and ours read it at their start.
  ::setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
  ordered_json environment;
  for (const char* name : {"OMP_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "WEFT_VARIANT",
                           "WEFT_INSTRUCTION_SET"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  return environment;
}

/// Functions of a file of one's own, which Python's half compares: python/weft/compare.py.
int compare_file(const Arguments& a) {
  std::vector<std::string> words = {a.python, "-m",      "weft.compare",
                                    a.file,   "--pairs", std::to_string(a.pairs)};
  if (a.seconds) words.insert(words.end(), {"--seconds", fmt::format("{}", *a.seconds)});
  if (a.json) words.emplace_back("--json");
  // Libraries of threads read it at their start.
  if (a.threads > 0) environment_of(a.threads);
  return run_program(words, [](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  });
}

/// Starts the peers that a chosen case knows and the user asks for, and says of each what it is; of
/// one that is not installed, why. Throws UsageError for one that was asked for by its name, and
/// without PyTorch.
template <class MakeProgram>
Peers find_peers(const Arguments& a, const std::vector<CompareCase>& cases, MakeProgram&& program,
                 const std::string& directory, ordered_json& about) {
  Peers peers;
  about = ordered_json::object();
  for (const PeerProgram& kind : kPeers) {
    std::vector<std::string> sides;
    for (const std::string& side : kind.sides) {
      const bool is_wanted = a.against.empty() || std::ranges::count(a.against, side) > 0;
      const bool is_known = std::ranges::any_of(
          cases, [&](const CompareCase& c) { return std::ranges::count(c.sides, side) > 0; });
      if (is_wanted && is_known) sides.push_back(side);
    }
    if (sides.empty()) continue;
    std::vector<std::string> command = {a.python, "-u", directory + "/" + kind.script[0]};
    command.insert(command.end(), kind.script.begin() + 1, kind.script.end());
    const std::shared_ptr<Program> peer = program(kind.name, command);
    try {
      about[kind.name] = peer->ask({{"do", "hello"}});
      about[kind.name]["command"] = peer->command_line();
      for (const std::string& side : sides) peers[side] = peer;
    } catch (const Error& error) {
      const bool is_optional = &kind != &kPeers.front() && a.against.empty();
      check_usage(is_optional,
                  "compare: no {}: {}; --python FILE names a Python that has it, --against none "
                  "times Weft alone",
                  kind.name, error.what());
      about[kind.name] = {{"missing", error.what()}};
    }
  }
  return peers;
}

std::string rate_text(const ordered_json& rates) {
  return fmt::format("GEMM {:.0f} GFLOP/s in fp32, {:.0f} in bf16", 1e-9 * rates.value("fp32", 0.0),
                     1e-9 * rates.value("bf16", 0.0));
}

/// What is known before the first case.
void print_setting(const ordered_json& about, int pairs) {
  fmt::print("{}, cores {}, {} threads, {}\n", about["processor"].get<std::string>(),
             fmt::join(about["cores"].get<std::vector<int>>(), ","), about["threads"].get<int>(),
             about["device"].get<std::string>());
  const ordered_json& machine = about["machine"];
  fmt::print("{} sockets, caches {}, {}\n", machine["sockets"].get<int>(),
             machine["caches"].get<std::string>(), machine["instruction_sets"].get<std::string>());
  fmt::print("{} before\n", rate_text(about["gemm_before"]));
  bool has_peers = false;
  for (const auto& [name, peer] : about["peers"].items()) {
    if (peer.contains("missing")) {
      fmt::print("no {}: {}\n", name, peer["missing"].get<std::string>());
      continue;
    }
    has_peers = true;
    fmt::print("{} {}, Python {}\n", name, peer.value("version", "?"), peer.value("python", "?"));
  }
  if (!has_peers) fmt::print("Weft alone\n");
  fmt::print("{} {}\n\n", pairs,
             has_peers ? "pairs of turns; ratio: the peer's median over Weft's, above 1 Weft is "
                         "ahead; best: the same of their best samples"
                       : "turns");
}

int compare(const Arguments& a) {
  if (!a.file.empty()) return compare_file(a);
  if (a.threads > 0) set_num_threads(a.threads);
  const Device device = parse_device(a.device);
  if (a.serve) {
    serve_work(device, a.directory);
    return 0;
  }
  const ScratchDirectory scratch;
  const std::vector<CompareCase> cases = chosen_cases(a, scratch.path());
  if (a.list) {
    for (const CompareCase& c : cases) fmt::print("{:<14}  {}\n", c.group, c.name);
    return 0;
  }

  const std::vector<int> cores = claim_cores(num_threads());
  const int threads = num_threads();
  CompareReport report;
  report.about = {{"started", time_now()},
                  {"processor", kernels::device_name(Device{})},
                  {"cores", cores},
                  {"threads", threads},
                  {"device", a.device},
                  {"machine", describe_machine()},
                  {"pairs", a.pairs},
                  {"environment", environment_of(threads)},
                  {"load_before", load_average()}};
  write_compare_files(scratch.path());
  for (const auto* script = kCompareScripts; !script->first.empty(); ++script) {
    io::write_file_atomically(fmt::format("{}/{}", scratch.path(), script->first),
                              [&](io::FileWriter& file) { file.write(script->second); });
  }

  const auto program = [&](const char* name, std::vector<std::string> command) {
    command.insert(command.end(), {"--threads", std::to_string(threads), "--device", a.device,
                                   "--directory", scratch.path()});
    return std::make_shared<Program>(name, command, scratch.path(), a.timeout);
  };
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::shared_ptr<Program> weft = program("Weft", {self, "compare", "--serve"});
  report.about["weft"] = weft->ask({{"do", "hello"}});
  report.about["weft"]["command"] = weft->command_line();
  const Peers peers = find_peers(a, cases, program, scratch.path(), report.about["peers"]);
  report.about["gemm_before"] = weft->ask({{"do", "gemm_rate"}});
  if (!a.json) print_setting(report.about, a.pairs);

  io::Table table = compare_table();
  size_t lost = 0, failed = 0;
  for (const CompareCase& about : cases) {
    fmt::print(stderr, "weft: {} of {}: {}\n", report.cases.size() + 1, cases.size(), about.name);
    report.cases.push_back(measure(a, about, *weft, peers));
    const CaseResult& result = report.cases.back();
    if (!a.json) print_rows(table, result);
    lost += result.is_lost();
    failed += !result.failure.empty();
  }
  report.about["gemm_after"] = weft->ask({{"do", "gemm_rate"}});
  report.about["ended"] = time_now();
  report.about["load_after"] = load_average();

  if (!a.html.empty()) to_page(report).write(a.html);
  if (!a.save.empty()) {
    const std::string text = to_json(report).dump() + "\n";
    io::write_file_atomically(a.save, [&](io::FileWriter& file) { file.write(text); });
  }
  if (a.json) {
    print_json(to_json(report));
  } else {
    const std::string ahead = peers.empty() ? "" : fmt::format(" {} where a peer was ahead,", lost);
    fmt::print("\n{} cases:{} {} failed; {} after\n", cases.size(), ahead, failed,
               rate_text(report.about["gemm_after"]));
    if (!a.html.empty()) fmt::print("page {}\n", a.html);
  }
  return failed > 0 ? kFailure : 0;
}

}  // namespace

void add_compare(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, compare, "compare",
      "Time the same work in Weft, PyTorch and others, side by side", kMeasuringCommands);
  command.group("Cases");
  command.option("--cases", a.cases,
                 "Regular expression: cases whose name or group it matches are run",
                 {.takes = "REGEX", .usual = "all"});
  command.option("--model", a.model, "Cases of this model", {.takes = "NAME", .usual = "all"});
  command.option("--shape", a.shape, "Cases with this shape in their names, as 788x3072",
                 {.takes = "SHAPE", .usual = "all"});
  command.flag("--list", a.list, "Print the cases' groups and names, and run none");
  std::vector<std::string> sides = all_sides();
  sides.emplace_back("none");
  command.option("--against", a.against,
                 "PyTorch as eager, compile (torch.compile), onednn (its linear layers) or fused "
                 "(the optimizer); jax; openvino; onnxruntime; none: Weft alone",
                 {.check = one_of(sides), .usual = "all that are installed", .delimiter = ','});
  command.option("--python", a.python, "Python interpreter that has PyTorch and the others",
                 {.takes = "FILE"});
  command.option("--device", a.device, "Where both compute: cpu or cuda", {.takes = "DEVICE"});
  add_threads_option(command, a.threads);

  command.group("Measurement");
  command.option("--pairs", a.pairs, "Turns that each program takes at a case",
                 {.check = in_range(1, 1000)});
  command.option("--seconds", a.seconds, "Seconds that a turn lasts at least",
                 {.check = in_range(0.0, 1000.0), .usual = "0.15, of steps 0.6"});
  command.option("--timeout", a.timeout,
                 "Seconds after which a program that has not answered is given up",
                 {.check = positive()});
  command.flag("--profile", a.profile, "Record where each case's time goes, for --json and --html");

  command.group("Output");
  command.flag("--json", a.json, kJsonObject);
  command.option("--save", a.save, "Write that JSON object to this file, beside the table",
                 {.takes = "FILE"});
  command.option("--html", a.html, "Write a page with bars to this file", {.takes = "FILE"});
  command.group("Cases");
  command.option("--case", a.file,
                 "Functions of your own, in the place of these cases: docs/benchmarks.md",
                 {.check = existing_file(),
                  .takes = "FILE.py",
                  .usual = "none",
                  .excludes = {"--cases", "--model", "--shape", "--list", "--against", "--device",
                               "--timeout", "--profile", "--save", "--html"}});
  command.group("");  // of no help: what the program starts itself as
  command.flag("--serve", a.serve, "");
  command.option("--directory", a.directory, "");
}

}  // namespace weft::cli
