// Runs that go on for long, and runs that are repeated.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <map>

#include "cli/torture/small_run.h"
#include "kernels/instruction_set.h"

namespace weft::cli {

void soak(Rack& rack, Tally& tally) {
  // An hour of epochs; the rack's end stops it.
  SmallRun small(rack, {}, 1);
  std::vector<std::string> words = small.start(small.fresh_output());
  *(std::ranges::find(words, "--epochs") + 1) = "100000";
  Child child = small.run(words);
  const char* const kFields[] = {"VmRSS", "Threads", "open files"};
  std::map<std::string, int64_t> early, late;
  const auto look = [&](std::map<std::string, int64_t>& seen) {
    for (const char* field : {"VmRSS", "Threads"}) {
      seen[field] = std::max(seen[field], process_status(child.pid(), field));
    }
    seen["open files"] = std::max(seen["open files"], open_files(child.pid()));
  };
  // What the first third takes at most, the last third must not exceed: half a MB is noise of the
  // allocator's.
  const auto begin = std::chrono::steady_clock::now();
  const double total =
      rack.is_short ? 12 : std::max(12.0, std::chrono::duration<double>(rack.end - begin).count());
  for (double seconds = 0; seconds < total && !child.has_ended(0.05);
       seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()) {
    if (seconds > total / 6 && seconds < total / 2) look(early);
    if (seconds > total / 2) look(late);
  }
  const bool is_alive = !child.has_ended(0);
  for (const char* field : kFields) {
    const int64_t slack = field == std::string("VmRSS") ? 512 << 10 : 0;
    tally.count(
        is_alive && late[field] <= early[field] + slack,
        fmt::format("{} grew from {} to {} in {:.0f} s", field, early[field], late[field], total));
  }
  child.signal(SIGTERM);
  const ChildEnd end = child.wait(kRunSeconds);
  tally.count(end.code == 130, "the soaked run did not stop: " + describe(end));
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
