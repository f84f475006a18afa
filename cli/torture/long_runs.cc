// Runs that go on for long, and runs that are repeated.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <map>

#include "cli/torture/small_run.h"

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

void repeat(Rack& rack, Tally& tally) {
  SmallRun small(rack);
  for (int64_t i = 0; rack.goes_on(i, 3); ++i) {
    const io::Path output = small.fresh_output();
    std::vector<std::string> words = small.start(output);
    const std::string threads = std::to_string(1 + i % 3);
    *(std::ranges::find(words, "--threads") + 1) = threads;
    const ChildEnd end = small.run(words).wait(kRunSeconds);
    const std::string loss = end.code == 0 ? small.finish(output) : describe(end);
    tally.count(loss.empty(), fmt::format("repeated on {} threads: {}", threads, loss));
  }
}

}  // namespace weft::cli
