// weft compare: the same work in Weft and in PyTorch, side by side.
//
// Each program runs in a process of its own, on the same cores, with as many threads. They take
// turns, and the turns of a pair are compared: what else the machine does weighs on both. The peer
// is benchmarks/pytorch/compare_peer.py, which is part of this program and written to a scratch
// directory for the run.
#include <fmt/core.h>
#include <fmt/format.h>
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
#include <memory>
#include <optional>
#include <regex>

#include "cli/command.h"
#include "cli/compare/cases.h"
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

// The text of compare_peer.py; written by the build.
extern const char* const kComparePeer;

namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string cases = ".*", model, shape, file, python = "python3", device = "cpu", html, save;
  std::vector<std::string> against = {"eager", "compile", "fused"};
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

/// One of the two programs: its command, and the process that lives as long as the run.
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

/// A case's figures. `peer` is null without PyTorch.
CaseResult measure(const Arguments& a, const CompareCase& about, Program& weft, Program* peer) {
  CaseResult result;
  result.about = about;
  for (const std::string& side : about.sides) {
    if (peer && std::ranges::count(a.against, side) > 0) result.peers.emplace_back().side = side;
  }
  std::vector<Side> sides = {{"weft", weft, result}};
  for (PeerResult& other : result.peers) sides.push_back({other.side, *peer, other});
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
  for (Program* program : {&weft, peer}) {
    if (program) failure_of([&] { program->ask({{"do", "drop"}}); });
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
    throw UsageError(fmt::format("--cases \"{}\": {}", a.cases, error.what()));
  }
  const auto keep = [&](const std::string& option, const std::string& value, auto&& wanted) {
    if (value.empty()) return;
    const size_t all = cases.size();
    std::erase_if(cases, [&](const CompareCase& c) { return !wanted(c); });
    if (!cases.empty()) return;
    throw UsageError(
        fmt::format("{} \"{}\" matches none of the {} cases; see --list", option, value, all));
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
                  {"pairs", a.pairs},
                  {"environment", environment_of(threads)},
                  {"load_before", load_average()}};
  write_compare_files(scratch.path());
  const std::string script = scratch.path() + "/compare_peer.py";
  io::write_file_atomically(script, [](io::FileWriter& file) { file.write(kComparePeer); });

  const auto program = [&](const char* name, std::vector<std::string> command) {
    command.insert(command.end(), {"--threads", std::to_string(threads), "--device", a.device,
                                   "--directory", scratch.path()});
    return Program(name, command, scratch.path(), a.timeout);
  };
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  Program weft = program("Weft", {self, "compare", "--serve"});
  Program peer = program("PyTorch", {a.python, "-u", script});
  report.about["weft"] = weft.ask({{"do", "hello"}});
  report.about["weft"]["command"] = weft.command_line();
  const bool has_peer = a.against != std::vector<std::string>{"none"};
  if (has_peer) {
    try {
      report.about["pytorch"] = peer.ask({{"do", "hello"}});
      report.about["pytorch"]["command"] = peer.command_line();
    } catch (const Error& error) {
      throw UsageError(fmt::format(
          "compare: no PyTorch: {}; --python FILE names a Python that has it, --against "
          "none times Weft alone",
          error.what()));
    }
  }
  const ordered_json& other = report.about["pytorch"];
  if (!a.json) {
    fmt::print("{}, cores {}, {} threads, {}\n", report.about["processor"].get<std::string>(),
               fmt::join(cores, ","), threads, a.device);
    if (has_peer) {
      fmt::print("PyTorch {}, Python {}\n", other.value("version", "?"),
                 other.value("python", "?"));
    } else {
      fmt::print("Weft alone\n");
    }
    fmt::print("{} {}\n\n", a.pairs,
               has_peer ? "pairs of turns; ratio: PyTorch's median over Weft's, above 1 Weft is "
                          "ahead; best: the same of their best samples"
                        : "turns");
  }

  io::Table table = compare_table();
  size_t lost = 0, failed = 0;
  for (const CompareCase& about : cases) {
    fmt::print(stderr, "weft: {} of {}: {}\n", report.cases.size() + 1, cases.size(), about.name);
    report.cases.push_back(measure(a, about, weft, has_peer ? &peer : nullptr));
    const CaseResult& result = report.cases.back();
    if (!a.json) print_rows(table, result);
    lost += result.is_lost();
    failed += !result.failure.empty();
  }
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
    const std::string ahead = has_peer ? fmt::format(" {} where PyTorch was ahead,", lost) : "";
    fmt::print("\n{} cases:{} {} failed\n", cases.size(), ahead, failed);
    if (!a.html.empty()) fmt::print("page {}\n", a.html);
  }
  return failed > 0 ? kFailure : 0;
}

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, compare, "compare", "Time the same work in Weft and in PyTorch, side by side",
      kMeasuringCommands);
  command.option_defaults()->group("Cases");
  add_option(command, "--cases", a.cases,
             "Regular expression: cases whose name or group it matches are run",
             {.takes = "REGEX", .usual = "all"});
  add_option(command, "--model", a.model, "Cases of this model", {.takes = "NAME", .usual = "all"});
  add_option(command, "--shape", a.shape, "Cases with this shape in their names, as 788x3072",
             {.takes = "SHAPE", .usual = "all"});
  add_option(command, "--case", a.file,
             "Functions of your own, in the place of these cases: docs/benchmarks.md",
             {.check = CLI::ExistingFile, .takes = "FILE.py", .usual = "none"});
  command.add_flag("--list", a.list, "Print the cases' groups and names, and run none");
  add_option(command, "--against", a.against,
             "Forms of PyTorch: eager, compile (torch.compile), fused (the optimizer); none: Weft "
             "alone",
             {.check = CLI::IsMember({"eager", "compile", "fused", "none"})})
      ->delimiter(',');
  add_option(command, "--python", a.python, "Python interpreter that has PyTorch",
             {.takes = "FILE"});
  add_option(command, "--device", a.device, "Where both compute: cpu or cuda", {.takes = "DEVICE"});
  add_threads_option(command, a.threads);

  command.option_defaults()->group("Measurement");
  add_option(command, "--pairs", a.pairs, "Turns that each program takes at a case",
             {.check = CLI::Range(1, 1000)});
  add_option(command, "--seconds", a.seconds, "Seconds that a turn lasts at least",
             {.check = CLI::Range(0.0, 1000.0), .usual = "0.15, of steps 0.6"});
  add_option(command, "--timeout", a.timeout,
             "Seconds after which a program that has not answered is given up",
             {.check = CLI::PositiveNumber});
  command.add_flag("--profile", a.profile,
                   "Record where each case's time goes, for --json and --html");

  command.option_defaults()->group("Output");
  command.add_flag("--json", a.json, kJsonObject);
  add_option(command, "--save", a.save, "Write that JSON object to this file, beside the table",
             {.takes = "FILE"});
  add_option(command, "--html", a.html, "Write a page with bars to this file", {.takes = "FILE"});
  // What the program starts itself as.
  command.add_flag("--serve", a.serve)->group("");
  command.add_option("--directory", a.directory)->group("");
}

}  // namespace weft::cli
