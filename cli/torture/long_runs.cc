// Runs that go on for long, and runs that are repeated.
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>

#include "cli/torture/small_run.h"
#include "core/allocator.h"
#include "core/tensor.h"
#include "dist/comm/in_process.h"
#include "kernels/instruction_set.h"
#include "train/checkpoint.h"

namespace weft::cli {

namespace {

/// The most that a process was seen to hold, by field: "VmRSS", "Threads" and so on.
using Holdings = std::map<std::string, int64_t>;

void look(pid_t pid, Holdings& most) {
  const auto see = [&](const char* field, int64_t held) {
    most[field] = std::max(most[field], held);
  };
  for (const char* field : {"VmRSS", "Threads"}) see(field, process_status(pid, field));
  see("open files", open_files(pid));
  if (pid == ::getpid()) {
    see("live bytes", static_cast<int64_t>(allocator(Device{}).stats().live));
  }
}

/// Calls `step` for so many seconds, or until it is false. What the process holds at most in the
/// second third of the first half, it must not exceed in the second half.
void watch(Tally& tally, const std::string& what, pid_t pid, double seconds,
           const std::function<bool()>& step) {
  using Clock = std::chrono::steady_clock;
  Holdings early, late;
  const auto begin = Clock::now();
  bool goes_on = true;
  for (double now = 0; goes_on && now < seconds;
       now = std::chrono::duration<double>(Clock::now() - begin).count()) {
    goes_on = step();
    if (now > seconds / 6 && now < seconds / 2) look(pid, early);
    if (now > seconds / 2 && goes_on) look(pid, late);
  }
  // Half a MB is noise of the allocator's, and joined threads may be counted for a moment.
  const Holdings slack = {{"VmRSS", 512 << 10}, {"Threads", 2}};
  for (const auto& [field, most] : late) {
    const auto noise = slack.find(field);
    tally.count(most <= early[field] + (noise == slack.end() ? 0 : noise->second),
                fmt::format("{}: {} grew from {} to {} in {:.0f} s", what, field, early[field],
                            most, seconds));
  }
  tally.count(goes_on, what + " ended before its time");
}

}  // namespace

void soak(Rack& rack, Tally& tally) {
  const std::chrono::duration<double> left = rack.end - std::chrono::steady_clock::now();
  const double seconds = rack.is_short ? 12 : std::max(12.0, left.count() / 2);
  {
    // An hour of epochs; the end of its time stops it.
    SmallRun small(rack, {}, 1);
    std::vector<std::string> words = small.start(small.fresh_output());
    *(std::ranges::find(words, "--epochs") + 1) = "100000";
    Child child = small.run(words);
    watch(tally, "a training", child.pid(), seconds, [&] { return !child.has_ended(0.05); });
    child.signal(SIGTERM);
    const ChildEnd end = child.wait(kRunSeconds);
    tally.count(end.code == 130, "the soaked run did not stop: " + describe(end));
  }
  // The rest in this process, where each trial counts.
  const io::Path saves = rack.scratch / "saves";
  io::make_directories(saves);
  train::Checkpoint checkpoint;
  checkpoint.model.emplace_back("weight", Tensor::full({256, 256}, 1));
  watch(tally, "saving and loading", ::getpid(), seconds / 2, [&] {
    ++checkpoint.step;
    const io::Path step = train::save_checkpoint(saves, checkpoint, 2);
    tally.count(train::load_checkpoint(step).step == checkpoint.step, "another step was loaded");
    return true;
  });
  watch(tally, "launching ranks", ::getpid(), seconds / 2, [&] {
    double sum = 0;
    dist::run_ranks(2, [&](dist::Communicator& world) {
      const Tensor x = Tensor::full({}, world.rank() + 1);
      world.all_reduce(x).wait();
      if (world.rank() == 0) sum = x.item();
    });
    tally.count(sum == 3, fmt::format("ranks 0 and 1 brought 1 and 2, and have {}", sum));
    return true;
  });
}

namespace {

/// `words` with another value of an option.
std::vector<std::string> with(std::vector<std::string> words, const std::string& option,
                              int64_t value) {
  *(std::ranges::find(words, option) + 1) = std::to_string(value);
  return words;
}

}  // namespace

void repeat(Rack& rack, Tally& tally) {
  // Of one instruction set the bits are the same on any number of threads, and of a batch that is
  // summed as a fixed tree on any number of ranks.
  std::vector<std::string> sets = {"baseline", "avx2", "avx512"};
  sets.resize(
      1 + std::ranges::distance(sets.begin(), std::ranges::find(sets, kernels::instruction_set())));
  std::deque<SmallRun> of_sets;
  for (const std::string& set : sets) {
    of_sets.emplace_back(rack, std::vector<std::string>{}, 2,
                         std::map<std::string, std::string>{{"WEFT_INSTRUCTION_SET", set}});
  }
  SmallRun tree(rack, {"--deterministic-reduce=4", "--global-batch-size", "8", "--devices", "1"});
  const auto few = static_cast<int64_t>(2 * sets.size() + 2);
  for (int64_t i = 0; rack.goes_on(i, few); ++i) {
    const size_t kind = static_cast<size_t>(i) % (sets.size() + 1);
    const bool is_tree = kind == sets.size();
    SmallRun& small = is_tree ? tree : of_sets[kind];
    const io::Path output = small.fresh_output();
    const int64_t threads = 1 + i % 3, ranks = is_tree ? 2 << i / 4 % 2 : 1;
    std::vector<std::string> words = with(small.start(output), "--threads", threads);
    if (is_tree) words = with(words, "--devices", ranks);
    const ChildEnd end = small.run(words).wait(kRunSeconds);
    const std::string loss = end.code == 0 ? small.finish(output) : describe(end);
    tally.count(loss.empty(),
                fmt::format("{} on {} threads of {} ranks: {}",
                            is_tree ? "repeated as a tree" : sets[kind], threads, ranks, loss));
  }
}

}  // namespace weft::cli
