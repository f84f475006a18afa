// weft profile: where a training step's time goes, as a table by op and as a Chrome trace.
//
// Kernels are timed where they are launched; the tape says for which op (autograd/op_hook.h). Time
// outside kernels is dispatch, allocation and the tape itself; of a GPU, what it waits for the
// host. There phases end when their work is done, while ops are spans of the host's time. The trace
// is for chrome://tracing or https://ui.perfetto.dev; its format is "Trace Event Format", complete
// events ("ph": "X"), times in microseconds.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "cli/step/outermost_ops.h"
#include "cli/step/training_step.h"
#include "core/parallel.h"
#include "io/files.h"
#include "io/progress.h"
#include "kernels/profile.h"
#include "train/precision.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  StepOptions step;
  int steps = 3, warmup = 2, threads = 0;
  bool inference = false, by_shape = false, all = false, json = false;
  std::string device, trace;
};

/// Rows below this share of a step are left out of the table unless all are asked for.
constexpr double kLeastShare = 0.003;

/// Records phases, ops and kernels on this thread for as long as it lives.
class Recorder : public OutermostOps {
 public:
  struct Span {
    std::string phase, op;
    double begin = 0, end = 0;
  };
  struct Owner {
    std::string phase, op;
  };

  explicit Recorder(Device device) : device_(device), profile_(device) { set_op_hook(this); }
  ~Recorder() override { set_op_hook(nullptr); }

  void enter(const char* phase) {
    leave();
    phase_ = phase;
    phases_.push_back({phase_, "", profile_.now(), 0});
    since_ = phases_.back().begin;
  }
  void leave() {
    if (phase_.empty()) return;
    synchronize(device_);
    claim("");
    phases_.back().end = profile_.now();
    phase_.clear();
  }

  const kernels::Profile& kernels() const { return profile_; }
  const std::vector<Span>& phases() const { return phases_; }
  const std::vector<Span>& ops() const { return ops_; }
  /// Of launch i. A kernel that no op asked for, as the optimizer's, has its own op's name.
  Owner owner(size_t i) const {
    Owner owner = owners_[i];
    if (owner.op.empty()) owner.op = profile_.launches()[i].op;
    return owner;
  }

 private:
  void claim(std::string_view op) override {
    const double time = profile_.now();
    if (!op.empty()) ops_.push_back({phase_, std::string(op), since_, time});
    owners_.resize(profile_.size(), {phase_, std::string(op)});
    since_ = time;
  }

  const Device device_;
  kernels::Profile profile_;
  std::string phase_;
  double since_ = 0;
  std::vector<Span> phases_, ops_;
  std::vector<Owner> owners_;
};

struct Row {
  std::string phase, op, kernel;
  int64_t calls = 0;
  double seconds = 0;
};

std::vector<Row> rows_of(const Recorder& recorder, bool by_shape) {
  std::map<std::tuple<std::string, std::string, std::string>, Row> sums;
  const auto& launches = recorder.kernels().launches();
  for (size_t i = 0; i < launches.size(); ++i) {
    const Recorder::Owner owner = recorder.owner(i);
    const std::string kernel =
        by_shape ? launches[i].variant + " " + launches[i].problem : launches[i].variant;
    Row& row = sums[{owner.phase, owner.op, kernel}];
    row.phase = owner.phase, row.op = owner.op, row.kernel = kernel;
    ++row.calls;
    row.seconds += launches[i].own_seconds;
  }
  std::vector<Row> rows;
  for (auto& [key, row] : sums) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return rows;
}

ordered_json trace_of(const Recorder& recorder, const ordered_json& about) {
  constexpr int kProcess = 1;
  // Phases and ops stand above the first thread's kernels: events of one thread nest by time.
  ordered_json events = ordered_json::array();
  const auto add = [&](const std::string& name, const char* category, double begin, double end,
                       int thread, ordered_json args) {
    events.push_back({{"name", name},
                      {"cat", category},
                      {"ph", "X"},
                      {"ts", 1e6 * begin},
                      {"dur", 1e6 * std::max(0.0, end - begin)},
                      {"pid", kProcess},
                      {"tid", thread},
                      {"args", std::move(args)}});
  };
  for (const Recorder::Span& phase : recorder.phases()) {
    add(phase.phase, "phase", phase.begin, phase.end, 0, ordered_json::object());
  }
  for (const Recorder::Span& op : recorder.ops()) {
    add(op.op, "op", op.begin, op.end, 0, {{"phase", op.phase}});
  }
  int threads = 1;
  const auto& launches = recorder.kernels().launches();
  for (const auto& launch : launches) threads = std::max(threads, launch.thread + 1);
  bool uses_device = false;
  for (size_t i = 0; i < launches.size(); ++i) {
    const kernels::Profile::Launch& launch = launches[i];
    uses_device = uses_device || launch.on_device;
    add(launch.variant, "kernel", launch.begin, launch.begin + launch.seconds,
        launch.on_device ? threads : launch.thread,
        {{"problem", launch.problem},
         {"kernel_op", launch.op},
         {"op", recorder.owner(i).op},
         {"phase", recorder.owner(i).phase},
         {"own_us", 1e6 * launch.own_seconds},
         {"threads", num_threads()}});
  }
  const auto name = [&](const char* what, int thread, const std::string& text) {
    events.push_back({{"name", what},
                      {"ph", "M"},
                      {"pid", kProcess},
                      {"tid", thread},
                      {"args", {{"name", text}}}});
  };
  name("process_name", 0, "weft");
  for (int i = 0; i < threads; ++i) {
    name("thread_name", i, i == 0 ? "main" : fmt::format("thread {}", i));
  }
  if (uses_device) name("thread_name", threads, "device");
  return {{"traceEvents", events}, {"displayTimeUnit", "ms"}, {"otherData", about}};
}

int profile(Arguments a) {
  if (a.threads > 0) set_num_threads(a.threads);
  as_usage([&] { train::find_precision(a.step.precision); }, "--precision");
  a.step.device = chosen_device(a.device);
  const Device device = a.step.device;
  const bool on_cpu = device.type == DeviceType::cpu;
  TrainingStep step(a.step);
  if (a.inference) step.model().eval();
  const auto work = [&](Recorder* recorder) {
    const auto start = std::chrono::steady_clock::now();
    const auto enter = [&](const char* phase) {
      if (recorder) recorder->enter(phase);
    };
    if (a.inference) {
      enter("forward");
      step.infer();
    } else {
      step.run(enter);
    }
    if (recorder) recorder->leave();
    synchronize(device);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double plain = 0;  // of the last step before the recorder watches
  for (int i = 0; i <= a.warmup; ++i) plain = work(nullptr);

  Recorder recorder(device);
  double total = 0;
  for (int i = 0; i < a.steps; ++i) total += work(&recorder);
  const double step_seconds = total / a.steps;
  const double kernel_seconds = recorder.kernels().total_seconds() / a.steps;
  std::vector<std::pair<std::string, double>> phases;  // per step
  for (const Recorder::Span& span : recorder.phases()) {
    auto phase = std::ranges::find(phases, span.phase, &std::pair<std::string, double>::first);
    if (phase == phases.end()) phase = phases.insert(phase, {span.phase, 0});
    phase->second += (span.end - span.begin) / a.steps;
  }

  ordered_json result = {{"model", a.step.model},
                         {"parameters", step.model().num_parameters()},
                         {"batch", a.step.batch},
                         {"precision", a.step.precision},
                         {"work", a.inference ? "inference" : "training step"},
                         {"device", to_string(device)},
                         {"threads", num_threads()},
                         {"steps", a.steps},
                         {"step_ms", 1e3 * step_seconds},
                         {"unprofiled_step_ms", 1e3 * plain},
                         {"kernel_ms", 1e3 * kernel_seconds},
                         {"outside_kernels_ms", 1e3 * (step_seconds - kernel_seconds)}};
  for (const auto& [phase, seconds] : phases) result["phases_ms"][phase] = 1e3 * seconds;
  if (!a.trace.empty()) {
    const std::string text = trace_of(recorder, result).dump();
    io::write_file_atomically(a.trace, [&](io::FileWriter& file) { file.write(text); });
  }

  const std::vector<Row> rows = rows_of(recorder, a.by_shape);
  if (a.json) {
    ordered_json ops = ordered_json::array();
    for (const Row& row : rows) {
      ops.push_back({{"phase", row.phase},
                     {"op", row.op},
                     {"kernel", row.kernel},
                     {"calls", static_cast<double>(row.calls) / a.steps},
                     {"ms", 1e3 * row.seconds / a.steps},
                     {"share", row.seconds / total}});
    }
    result["ops"] = std::move(ops);
    if (!a.trace.empty()) result["trace"] = a.trace;
    print_json(result);
    return 0;
  }
  fmt::print("{} of {} ({} parameters), batch {}, {}, {}; {} step{}\n",
             a.inference ? "inference" : "training step", a.step.model,
             step.model().num_parameters(), a.step.batch, a.step.precision,
             on_cpu ? fmt::format("{} threads", num_threads()) : to_string(device), a.steps,
             a.steps == 1 ? "" : "s");
  const int width = a.by_shape ? 90 : 28;
  constexpr auto kLeft = io::Table::Align::kLeft;
  io::Table table({{"phase", 8, kLeft},
                   {"op", 20, kLeft},
                   {"kernel", width, kLeft},
                   {"calls", 6},
                   {"ms", 9},
                   {"share", 6}});
  const auto add_row = [&](const Row& row, const std::string& calls) {
    table.row({row.phase, row.op, row.kernel.substr(0, static_cast<size_t>(width)), calls,
               fmt::format("{:.3f}", 1e3 * row.seconds / a.steps),
               fmt::format("{:.1f}%", 100 * row.seconds / total)});
  };
  Row hidden;
  for (const Row& row : rows) {
    if (a.all || row.seconds >= kLeastShare * total) {
      add_row(row, fmt::format("{:g}", static_cast<double>(row.calls) / a.steps));
    } else {
      hidden.kernel = fmt::format("{} smaller ones (--all)", ++hidden.calls);
      hidden.seconds += row.seconds;
    }
  }
  if (hidden.calls > 0) add_row(hidden, "");
  add_row({.kernel = "outside kernels", .seconds = total - kernel_seconds * a.steps}, "");
  std::vector<std::string> parts;
  for (const auto& [phase, seconds] : phases) {
    parts.push_back(fmt::format("{} {:.2f}", phase, 1e3 * seconds));
  }
  fmt::print("a step {:.2f} ms ({:.2f} unprofiled): {} ms\n", 1e3 * step_seconds, 1e3 * plain,
             fmt::join(parts, ", "));
  if (!a.trace.empty()) {
    fmt::print("trace {}: open it in https://ui.perfetto.dev or chrome://tracing\n", a.trace);
  }
  return 0;
}

}  // namespace

void add_profile(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, profile, "profile",
      "Show where a training step's time goes, as a table by op and as a trace",
      kMeasuringCommands);
  command.group("Step");
  command.option("--model", a.step.model, kModelHelp);
  command.option("--batch-size,--batch", a.step.batch, "Images in the batch",
                 {.check = positive()});
  command.option("--precision", a.step.precision,
                 fmt::format("What is computed in which format: {}", train::precision_names()));
  add_model_size_options(command, a.step.options);
  command.flag("--inference", a.inference, "Run the forward pass alone, without the tape");
  add_device_option(command, a.device);
  add_threads_option(command, a.threads);

  command.group("Measurement and output");
  command.option("--steps", a.steps, "Number of steps to record", {.check = in_range(1, 1000)});
  command.flag("--by-shape", a.by_shape, "Show a row for each shape that a kernel met");
  command.flag("--all", a.all, "Show rows below 0.3% of a step, too");
  command.option("--trace", a.trace,
                 "Write a trace for chrome://tracing or ui.perfetto.dev to this file",
                 {.takes = "FILE"});
  command.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
