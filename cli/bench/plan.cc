// weft bench plan: the planner's predictions against runs on this machine.
//
// Ranks are threads, through a network of a set latency and bandwidth
// (dist/comm/transport.cc). The time that a step computes is measured on two small batches without
// a network, as a constant and so much an image: for the data-parallel strategies in steps of ranks
// that talk to nobody, for the others, whose ranks compute something else, in their own. Memory is
// that of a rehearsed step. Nothing of the steps held back, on another batch through the network,
// enters a prediction. All are timed in turn, and the fastest step counts, for other work on the
// machine only adds to it.
#include "cli/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "cli/json_line.h"
#include "cli/step/rehearsed_step.h"
#include "core/parallel.h"
#include "dist/comm/in_process.h"
#include "dist/plan/cluster.h"
#include "io/progress.h"

namespace weft::cli {
namespace {

struct Arguments {
  std::string model = "vit_lite";
  std::vector<std::string> strategies = {"ddp", "zero1", "zero2", "fsdp", "tp", "pipeline"};
  int devices = 2, steps = 4;
  std::vector<int64_t> small = {4, 8};
  int64_t batch = 24;
  double latency_ms = 0.5, bandwidth_mb = 40;
  bool json = false, check = false;
};

constexpr double kTimeTolerance = 0.15, kMemoryTolerance = 0.05;

struct Observed {
  double seconds = 1e30;       // of the fastest step
  std::vector<int64_t> peaks;  // of each rank
};

/// The ranks of a run, each with its step; run() takes one step on all of them at once.
class Ranks {
 public:
  Ranks(const RankedStepOptions& options, int ranks, const dist::InProcessOptions& network,
        bool alone)
      : threads_per_rank_(std::max(1, num_threads() / ranks)),
        world_(dist::make_in_process_world(ranks, network)),
        turn_(ranks + 1) {
    observed_.peaks.resize(ranks);
    for (int r = 0; r < ranks; ++r) {
      threads_.emplace_back([this, r, options, alone] { serve(r, options, alone); });
    }
  }
  ~Ranks() {
    goes_on_ = false;
    turn_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(bool counts) {
    seconds_ = 0;
    turn_.arrive_and_wait();  // they begin a step
    turn_.arrive_and_wait();  // they have ended it
    if (failure_) std::rethrow_exception(failure_);
    if (counts) observed_.seconds = std::min(observed_.seconds, seconds_);
  }
  const Observed& observed() const { return observed_; }

 private:
  void serve(int rank, const RankedStepOptions& options, bool alone) {
    set_num_threads(threads_per_rank_);
    std::unique_ptr<RankedStep> step;
    std::vector<dist::CommunicatorPtr> own;
    while (true) {
      turn_.arrive_and_wait();
      if (!goes_on_) return;
      double seconds = 0;
      std::exception_ptr failure;
      try {
        if (!step) {
          if (alone) own = dist::make_in_process_world(1);
          step = std::make_unique<RankedStep>(options, alone ? own[0] : world_[rank]);
          step->run();
          step->run();
          step->account().reset_peak();
        }
        world_[rank]->barrier().wait();
        const auto begin = std::chrono::steady_clock::now();
        step->run();
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      } catch (const std::exception& error) {
        failure = std::current_exception();
        world_[rank]->leave(error.what());
      }
      {
        const std::lock_guard lock(mutex_);
        if (failure && !failure_) failure_ = failure;
        seconds_ = std::max(seconds_, seconds);
        if (step) observed_.peaks[rank] = step->account().total().peak;
      }
      turn_.arrive_and_wait();
    }
  }

  const int threads_per_rank_;
  const std::vector<dist::CommunicatorPtr> world_;
  std::barrier<> turn_;  // of the ranks, and of who has them run
  std::mutex mutex_;     // among the ranks
  bool goes_on_ = true;
  double seconds_ = 0;
  Observed observed_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

/// Whose ranks compute what one alone computes.
bool is_data_parallel(const Arguments& a, const std::string& strategy) {
  return dist::sharing_of(strategy, a.devices).data_devices() == a.devices;
}

RankedStepOptions options_of(const Arguments& a, const std::string& strategy, int64_t batch) {
  return {.model = a.model, .strategy = {.name = strategy}, .batch = batch};
}

using Runs = std::vector<std::unique_ptr<Ranks>>;

/// Of the two small batches.
Runs calibration_runs(const Arguments& a, const std::string& strategy) {
  const bool alone = is_data_parallel(a, strategy);
  Runs runs;
  for (int64_t batch : a.small) {
    runs.push_back(std::make_unique<Ranks>(options_of(a, alone ? "single" : strategy, batch),
                                           a.devices, dist::InProcessOptions{}, alone));
  }
  return runs;
}

/// What the held-back batch is expected to take, by the line through the small ones.
double extended_seconds(const Arguments& a, const Runs& runs) {
  const double one = runs[0]->observed().seconds, two = runs[1]->observed().seconds;
  // More images take no less: where the clock says so, it is noise.
  const double slope = std::max(0.0, two - one) / static_cast<double>(a.small[1] - a.small[0]);
  return one + slope * static_cast<double>(a.batch - a.small[0]);
}

struct Predicted {
  double seconds = 0;
  int64_t bytes = 0;  // on the fullest rank
};

Predicted predict(const Arguments& a, const std::string& strategy, double alone,
                  const dist::InProcessOptions& network) {
  const RankedStepOptions options = options_of(a, strategy, a.batch);
  const dist::Sharing sharing = dist::sharing_of(filled(options, a.devices), a.devices);
  const std::vector<dist::ModelLayout> layouts = layouts_of_model(options, a.devices);
  const auto seconds = [&](int ranks) {
    return dist::host_collective_seconds(ranks, network.latency_seconds, network.bytes_per_second);
  };
  const dist::GroupSeconds groups{.shard = seconds(sharing.shard),
                                  .replicate = seconds(sharing.replicas),
                                  .tensor = seconds(sharing.tensor),
                                  .message = [network](double bytes) {
                                    return network.latency_seconds +
                                           bytes / network.bytes_per_second;
                                  }};
  Predicted predicted;
  const dist::StrategyKind& kind = dist::find_strategy(strategy);
  std::vector<dist::RankWork> ranks;
  // The optimizer is part of the computation that was measured.
  if (sharing.stages > 1) {
    // What fills and empties the pipeline was measured with the rest.
    const auto turns = static_cast<double>(sharing.micro_batches + sharing.stages - 1);
    const double turn = alone / turns;
    for (int s = 0; s < sharing.stages; ++s) {
      ranks.push_back({layouts[s], {.before = {turn / 3, 2 * turn / 3}}});
    }
  } else {
    ranks.push_back({layouts[0], dist::deal_out({alone / 3, 2 * alone / 3}, layouts[0], 0)});
  }
  predicted.seconds =
      kind.timeline(ranks, sharing, groups, {.images = images_of(options, sharing)}).end;
  predicted.bytes = fullest(rehearse(options, a.devices)).peak;
  return predicted;
}

int run(const Arguments& a) {
  as_usage([&] {
    for (const std::string& strategy : a.strategies) {
      const dist::Sharing sharing = dist::sharing_of(dist::find_strategy(strategy).name, a.devices);
      WEFT_CHECK(sharing.ranks() > 1, "bench plan: {}'s threads have no network between them",
                 strategy);
    }
    WEFT_CHECK(a.small.size() == 2 && a.small[0] != a.small[1],
               "--small-batches: expected two different ones");
  });
  const dist::InProcessOptions network{.latency_seconds = 1e-3 * a.latency_ms,
                                       .bytes_per_second = 1e6 * a.bandwidth_mb};
  std::map<std::string, Runs> calibrations;  // "": of the data-parallel ones
  Runs held_back;
  const auto kind = [&](const std::string& strategy) {
    return is_data_parallel(a, strategy) ? "" : strategy;
  };
  for (const std::string& strategy : a.strategies) {
    Runs& runs = calibrations[kind(strategy)];
    if (runs.empty()) runs = calibration_runs(a, strategy);
    held_back.push_back(
        std::make_unique<Ranks>(options_of(a, strategy, a.batch), a.devices, network, false));
  }
  for (int i = 0; i <= a.steps; ++i) {
    for (auto& [name, runs] : calibrations) {
      for (auto& ranks : runs) ranks->run(i > 0);
    }
    for (auto& ranks : held_back) ranks->run(i > 0);
  }

  io::Table table({{"strategy", 8, io::Table::Align::kLeft},
                   {"predicted", 10},
                   {"measured", 10},
                   {"error", 7},
                   {"predicted", 10},
                   {"measured", 10},
                   {"error", 7}});
  bool holds = true;
  for (size_t i = 0; i < a.strategies.size(); ++i) {
    const std::string& strategy = a.strategies[i];
    const double alone = extended_seconds(a, calibrations.at(kind(strategy)));
    const Predicted predicted = predict(a, strategy, alone, network);
    const Observed observed = held_back[i]->observed();
    const int64_t peak = *std::ranges::max_element(observed.peaks);
    const double time_error = predicted.seconds / observed.seconds - 1;
    const double memory_error =
        static_cast<double>(predicted.bytes) / static_cast<double>(peak) - 1;
    holds = holds && std::abs(time_error) <= kTimeTolerance &&
            std::abs(memory_error) <= kMemoryTolerance;
    if (a.json) {
      print_json({{"strategy", strategy},
                  {"model", a.model},
                  {"devices", a.devices},
                  {"batch", a.batch},
                  {"seconds",
                   {{"predicted", predicted.seconds},
                    {"measured", observed.seconds},
                    {"error", time_error}}},
                  {"bytes",
                   {{"predicted", predicted.bytes}, {"measured", peak}, {"error", memory_error}}}});
    } else {
      const auto ms = [](double s) { return fmt::format("{:.1f} ms", 1e3 * s); };
      const auto mb = [](int64_t bytes) {
        return fmt::format("{:.2f} MB", 1e-6 * static_cast<double>(bytes));
      };
      table.row({strategy, ms(predicted.seconds), ms(observed.seconds),
                 fmt::format("{:+.1f}%", 100 * time_error), mb(predicted.bytes), mb(peak),
                 fmt::format("{:+.1f}%", 100 * memory_error)});
    }
  }
  WEFT_CHECK(holds || !a.check,
             "bench plan: a prediction is more than {}% off in time or {}% in memory",
             100 * kTimeTolerance, 100 * kMemoryTolerance);
  return 0;
}

}  // namespace

void add_bench_plan(Command& bench, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      bench, action, run, "plan", "Compare the planner's predictions with measured steps");
  command.group("Step");
  command.option("--model", a.model, kModelHelp);
  command.option("--strategy", a.strategies, "Strategies to predict and then to measure",
                 {.delimiter = ','});
  command.option("--devices", a.devices, "Number of ranks, each a thread",
                 {.check = in_range(2, 64)});
  command.option("--small-batches", a.small,
                 "Two batch sizes of the steps that the planner learns this machine from",
                 {.delimiter = ',', .count = {{2, 2}}});
  command.option("--batch-size,--batch", a.batch,
                 "Images in the batch of each rank, in the steps that it predicts",
                 {.check = positive()});

  command.group("Network");
  command.option("--latency", a.latency_ms, "Latency of the simulated network, in milliseconds",
                 {.check = non_negative()});
  command.option("--bandwidth", a.bandwidth_mb, "Bandwidth of the simulated network, in MB/s",
                 {.check = positive()});

  command.group("Measurement and output");
  command.option("--steps", a.steps, "Number of timed steps of each strategy",
                 {.check = positive()});
  command.flag("--json", a.json, kJsonLines);
  command.flag("--check", a.check,
               "Fail where a prediction is more than 15% off in time, or 5% in memory");
}

}  // namespace weft::cli
