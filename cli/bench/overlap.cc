// weft bench overlap: how much of its communication a strategy hides behind computation.
//
// Ranks are threads, through a network of a set latency and bandwidth
// (dist/comm/transport.cc). A step without it gives the time of the computation, the
// strategy's timeline (dist/strategy/strategy_kind.h) what could be hidden behind it. Both kinds of
// step are timed in turn, and the fastest counts, for other work on the machine only adds to it.
#include "cli/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

#include "cli/json_line.h"
#include "cli/step/ranked_step.h"
#include "dist/comm/flight_recorder.h"
#include "dist/comm/in_process.h"
#include "dist/plan/cluster.h"
#include "dist/strategy/strategy_kind.h"
#include "io/files.h"
#include "io/progress.h"
#include "kernels/op.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model = "vit_lite", trace;
  std::vector<std::string> strategies = {"ddp", "fsdp"};
  int devices = 2, steps = 5;
  int64_t batch = 16;
  double latency_ms = 0.5, bandwidth_mb = 0;  // 0: such that communication takes half the time
  bool json = false;
};

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Kernels and phases of the ranks, each a thread, as events of Chrome's trace format.
class Recorder : public kernels::LaunchHook {
 public:
  Recorder() { kernels::set_launch_hook(this); }
  ~Recorder() override { kernels::set_launch_hook(nullptr); }

  /// This thread is that rank.
  static void become(int rank) { this_rank() = rank; }
  void begin(std::string_view, std::string_view variant, Device, const std::string&) override {
    open().push_back({std::string(variant), Clock::now()});
  }
  void end() noexcept override { add("kernel"); }
  void phase(const std::string& name, Clock::time_point begin) {
    open().push_back({name, begin});
    add("phase");
  }
  struct Event {
    std::string name, category;
    int rank = 0;
    Clock::time_point begin, end;
  };
  const std::vector<Event>& events() const { return events_; }

 private:
  static int& this_rank() {
    thread_local int rank = -1;
    return rank;
  }
  static std::vector<std::pair<std::string, Clock::time_point>>& open() {
    thread_local std::vector<std::pair<std::string, Clock::time_point>> stack;
    return stack;
  }
  void add(const std::string& category) {
    auto [name, begin] = std::move(open().back());
    open().pop_back();
    if (this_rank() < 0) return;
    std::lock_guard lock(mutex_);
    events_.push_back({std::move(name), category, this_rank(), begin, Clock::now()});
  }

  std::mutex mutex_;
  std::vector<Event> events_;
};

using Communications = std::vector<dist::FlightRecorder::Entry>;  // of a rank

struct Steps {
  double alone = 1e30, slowed = 1e30;  // seconds of the fastest
  ordered_json events = ordered_json::array();
};

ordered_json span(const std::string& name, const std::string& category, int rank, int lane,
                  double begin, double seconds) {
  return {{"name", name}, {"cat", category},   {"ph", "X"},           {"pid", rank},
          {"tid", lane},  {"ts", 1e6 * begin}, {"dur", 1e6 * seconds}};
}

ordered_json lane_name(int rank, int lane, const std::string& name) {
  return {{"name", "thread_name"},
          {"ph", "M"},
          {"pid", rank},
          {"tid", lane},
          {"args", {{"name", name}}}};
}

/// The timeline of one slowed step of all ranks.
ordered_json trace_of(const std::vector<Recorder::Event>& events,
                      const std::vector<Communications>& of_ranks, Clock::time_point origin) {
  ordered_json trace = ordered_json::array();
  for (int rank = 0; rank < static_cast<int>(of_ranks.size()); ++rank) {
    trace.push_back({{"name", "process_name"},
                     {"ph", "M"},
                     {"pid", rank},
                     {"args", {{"name", fmt::format("rank {}", rank)}}}});
    trace.push_back(lane_name(rank, 0, "computation"));
    std::map<std::string, int> lanes;
    for (const auto& e : of_ranks[rank]) {
      if (e.started < origin || e.collective.starts_with("barrier")) continue;
      const auto [lane, is_new] = lanes.try_emplace(e.group, static_cast<int>(lanes.size()) + 1);
      if (is_new) trace.push_back(lane_name(rank, lane->second, e.group));
      trace.push_back(span(e.collective, "communication", rank, lane->second,
                           seconds_between(origin, e.started),
                           seconds_between(e.started, e.finished)));
    }
  }
  for (const Recorder::Event& e : events) {
    trace.push_back(span(e.name, e.category, e.rank, 0, seconds_between(origin, e.begin),
                         seconds_between(e.begin, e.end)));
  }
  return trace;
}

/// Steps without and with the network, in turn.
Steps measure(const Arguments& a, const RankedStepOptions& options, double bandwidth) {
  dist::InProcessOptions network;
  network.latency_seconds = 1e-3 * a.latency_ms;
  network.bytes_per_second = bandwidth;
  const auto fast = dist::make_in_process_world(a.devices);
  Steps result;
  Recorder recorder;
  Clock::time_point begin;
  std::vector<Communications> communications(a.devices);
  const auto work = [&](dist::Communicator& world) {
    const int rank = world.rank();
    const dist::CommunicatorPtr slow(&world, [](dist::Communicator*) {});
    RankedStep alone(options, fast[rank]), slowed(options, slow);
    const auto timed = [&](RankedStep& step, bool records) {
      world.barrier().wait();
      const Clock::time_point start = Clock::now();
      if (rank == 0) begin = start;
      if (records) Recorder::become(rank);
      std::string name;
      Clock::time_point since = start;
      const auto leave = [&] {
        if (records && !name.empty()) recorder.phase(name, since);
      };
      step.run([&](const char* phase) {
        leave();
        name = phase;
        since = Clock::now();
      });
      leave();
      Recorder::become(-1);
      return seconds_between(start, Clock::now());
    };
    for (int i = 0; i < 2; ++i) timed(alone, false), timed(slowed, false);
    for (int i = 0; i < a.steps; ++i) {
      const double without = timed(alone, false);
      const bool is_last = i + 1 == a.steps;
      const double with = timed(slowed, is_last && !a.trace.empty());
      if (rank != 0) continue;
      result.alone = std::min(result.alone, without);
      result.slowed = std::min(result.slowed, with);
    }
    communications[rank] = world.recorder().entries();
  };
  dist::run_ranks(
      a.devices,
      [&](dist::Communicator& world) {
        try {
          work(world);
        } catch (const std::exception& error) {
          fast[world.rank()]->leave(error.what());
          throw;
        }
      },
      network);
  if (!a.trace.empty()) result.events = trace_of(recorder.events(), communications, begin);
  return result;
}

int run(const Arguments& a) {
  as_usage([&] {
    for (const std::string& strategy : a.strategies) {
      const dist::Sharing sharing = dist::sharing_of(dist::find_strategy(strategy).name, a.devices);
      WEFT_CHECK(sharing.ranks() > 1 && sharing.stages == 1,
                 "bench overlap: {} hides no collectives behind computation", strategy);
    }
  });
  io::Table table({{"strategy", 8, io::Table::Align::kLeft},
                   {"alone", 9},
                   {"network", 9},
                   {"at best", 9},
                   {"measured", 9},
                   {"hidden", 7}});
  ordered_json events = ordered_json::array();
  for (const std::string& strategy : a.strategies) {
    const RankedStepOptions options{
        .model = a.model, .strategy = {.name = strategy}, .batch = a.batch};
    const dist::StrategyKind& kind = dist::find_strategy(strategy);
    const dist::Sharing sharing = dist::sharing_of(strategy, a.devices);
    const dist::ModelLayout layout = layouts_of_model(options, a.devices)[0];
    const int64_t images = images_of(options, sharing);
    double bandwidth = 1e6 * a.bandwidth_mb;
    if (bandwidth == 0) {
      Arguments brief = a;
      brief.steps = 2, brief.trace.clear();
      const double alone = measure(brief, options, 1e12).alone;
      const int64_t sent = kind.sent_bytes(layout, sharing, {.images = images});
      bandwidth = static_cast<double>(sent) / (0.5 * alone);
    }
    const Steps steps = measure(a, options, bandwidth);
    const auto seconds = [&](int ranks) {
      return dist::host_collective_seconds(ranks, 1e-3 * a.latency_ms, bandwidth);
    };
    const dist::StepWork work = dist::deal_out({steps.alone / 3, 2 * steps.alone / 3}, layout, 0);
    const dist::Timeline ideal =
        kind.timeline({{layout, work}}, sharing,
                      {seconds(sharing.shard), seconds(sharing.replicas), seconds(sharing.tensor)},
                      {.images = images});
    const double share = ideal.hidden_share(steps.slowed);
    if (a.json) {
      print_json({{"strategy", strategy},
                  {"model", a.model},
                  {"devices", a.devices},
                  {"batch", a.batch},
                  {"latency_seconds", 1e-3 * a.latency_ms},
                  {"bytes_per_second", bandwidth},
                  {"computation_seconds", steps.alone},
                  {"communication_seconds", ideal.communication},
                  {"ideal_seconds", ideal.end},
                  {"step_seconds", steps.slowed},
                  {"hidden_share", share}});
    } else {
      const auto ms = [](double s) { return fmt::format("{:.1f} ms", 1e3 * s); };
      table.row({strategy, ms(steps.alone), ms(ideal.communication), ms(ideal.end),
                 ms(steps.slowed), fmt::format("{:.0f}%", 100 * share)});
    }
    events = steps.events;
  }
  if (!a.trace.empty()) {
    const std::string text = ordered_json{{"traceEvents", events}}.dump() + "\n";
    io::write_file_atomically(a.trace, [&](io::FileWriter& file) { file.write(text); });
  }
  return 0;
}

}  // namespace

void add_bench_overlap(Command& bench, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      bench, action, run, "overlap", "Measure how much communication is hidden behind computation");
  command.group("Step");
  command.option("--model", a.model, kModelHelp);
  command.option("--strategy", a.strategies, "Strategies to measure", {.delimiter = ','});
  command.option("--devices", a.devices, "Number of ranks, each a thread",
                 {.check = in_range(2, 64)});
  command.option("--batch-size,--batch", a.batch, "Images in the batch of each rank",
                 {.check = positive()});

  command.group("Network");
  command.option("--latency", a.latency_ms, "Latency of the simulated network, in milliseconds",
                 {.check = non_negative()});
  command.option(
      "--bandwidth", a.bandwidth_mb, "Bandwidth of the simulated network, in MB/s",
      {.check = positive(), .usual = "such that the traffic takes half of the computation's time"});

  command.group("Measurement and output");
  command.option("--steps", a.steps, "Number of timed steps", {.check = positive()});
  command.option("--trace", a.trace,
                 "Write the last step of the last strategy to this file, for chrome://tracing or "
                 "ui.perfetto.dev",
                 {.takes = "FILE"});
  command.flag("--json", a.json, kJsonLines);
}

}  // namespace weft::cli
