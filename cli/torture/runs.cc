// A training that is killed, stopped, meets a failing disk, or whose places vanish, at any moment.
#include <fmt/core.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>

#include "cli/torture/small_run.h"

namespace weft::cli {

void kill_at_random(Rack& rack, Tally& tally) {
  SmallRun runs[] = {SmallRun(rack), SmallRun(rack, sharded_on_two_ranks())};
  for (int64_t i = 0; rack.goes_on(i, 2); ++i) {
    SmallRun& small = runs[i % 2];
    const io::Path output = small.fresh_output();
    const uint64_t kills = 1 + rack.random.below(3);
    double moment = 0;
    for (uint64_t k = 0; k < kills; ++k) {
      moment = rack.random.uniform() * small.seconds();
      Child child = small.run(small.go_on(output));
      child.has_ended(moment);
      child.kill();
    }
    const std::string loss = small.finish(output);
    tally.count(loss.empty(), fmt::format("{} of {} kills, the last after {:.3f} s: {}",
                                          output.string(), kills, moment, loss));
  }
}

namespace {

/// Runs with a fault at the nth operation on files, n from 1 on until none is met: a process alone,
/// and ranks that write their parts of a checkpoint, each of which meets it.
template <class Check>
void at_each_file_operation(Rack& rack, Tally& tally, const std::string& fault,
                            const Check& check) {
  struct Tried {
    SmallRun run;
    int64_t few;  // a short rack takes operations so far apart, from one that the seed decides
    int64_t n = 0;
    bool is_done = false;
  };
  Tried all[] = {{SmallRun(rack), 167}, {SmallRun(rack, sharded_on_two_ranks()), 331}};
  while (!(all[0].is_done && all[1].is_done) && rack.goes_on(tally.tried, 2000)) {
    for (auto& [small, few, n, is_done] : all) {
      if (is_done) continue;
      const int64_t stride = rack.is_short ? few : 1;
      n += n == 0 ? 1 + static_cast<int64_t>(rack.random.below(stride)) : stride;
      const io::Path output = small.fresh_output();
      const ChildEnd end =
          small.run(small.start(output), {{"WEFT_FILE_FAULT", fmt::format("{}:{}", fault, n)}})
              .wait(kRunSeconds);
      is_done = end.code == 0;
      if (is_done) continue;
      std::string loss = check(end);
      if (loss.empty()) loss = small.finish(output);
      tally.count(loss.empty(),
                  fmt::format("{}: {} at operation {}: {}", output.string(), fault, n, loss));
    }
  }
}

}  // namespace

void kill_at_each_file_operation(Rack& rack, Tally& tally) {
  at_each_file_operation(rack, tally, "kill", [](const ChildEnd& end) {
    return end.code == 128 + SIGKILL ? "" : describe(end);
  });
}

void fail_each_file_operation(Rack& rack, Tally& tally) {
  const std::string fault = rack.random.below(2) == 0 ? "ENOSPC" : "EIO";
  at_each_file_operation(rack, tally, fault, [](const ChildEnd& end) -> std::string {
    const size_t error = end.err.find("weft: error: ");
    if (end.code == 1 && end.err.find("cannot ", error) != end.err.npos) return "";
    return "expected an error that says what cannot be written; " + describe(end);
  });
}

void signal_at_random(Rack& rack, Tally& tally) {
  SmallRun runs[] = {SmallRun(rack), SmallRun(rack, sharded_on_two_ranks())};
  constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  for (int64_t i = 0; rack.goes_on(i, 4); ++i) {
    SmallRun& small = runs[i % 2];
    const int signal = kSignals[i % 3];
    const io::Path output = small.fresh_output();
    Child child = small.run(small.start(output));
    const double moment = rack.random.uniform() * small.seconds();
    child.has_ended(moment);
    child.signal(signal);
    const ChildEnd end = child.wait(kRunSeconds);
    // Before the first step there is nothing to save; after the last one the run is done.
    const bool is_expected = end.code == 0 || end.code == 130 || end.code == 128 + signal;
    std::string loss = is_expected ? "" : describe(end);
    const bool said_so = end.err.find("--resume") != end.err.npos;
    if (loss.empty() && end.code == 130 && said_so && !std::filesystem::exists(output / "latest")) {
      loss = "it says how to resume, and has saved nothing";
    }
    if (loss.empty()) loss = small.finish(output);
    tally.count(loss.empty(), fmt::format("signal {} after {:.3f} s: {}", signal, moment, loss));
  }
}

void share_a_directory(Rack& rack, Tally& tally) {
  SmallRun small(rack);
  for (int64_t i = 0; rack.goes_on(i, 1); ++i) {
    const io::Path output = small.fresh_output();
    Child first = small.run(small.start(output));
    Child second(rack.scratch / "second", small.start(output));
    ChildEnd ends[] = {first.wait(kRunSeconds), second.wait(kRunSeconds)};
    std::ranges::sort(ends, {}, &ChildEnd::code);
    std::string loss;
    if (ends[0].code != 0) loss = "neither run came to its end: " + describe(ends[0]);
    // The second may also have come when all was done.
    const bool is_refused = ends[1].err.find("in use by process") != std::string::npos ||
                            ends[1].err.find("already holds a run") != std::string::npos;
    if (loss.empty() && (ends[1].code < 1 || ends[1].code > 2 || !is_refused)) {
      loss = "the second run was not refused: " + describe(ends[1]);
    }
    if (loss.empty()) loss = small.finish(output);
    tally.count(loss.empty(), "two runs at once: " + loss);
  }
}

namespace {

/// A disk of so many bytes at `place`, for whoever may mount one.
class SmallDisk {
 public:
  SmallDisk(const io::Path& place, int64_t bytes) : place_(place) {
    io::make_directories(place_);
    is_there_ = ::mount("tmpfs", place_.c_str(), "tmpfs", 0, size(bytes).c_str()) == 0;
  }
  ~SmallDisk() {
    if (is_there_) ::umount2(place_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool is_there() const { return is_there_; }
  void grow(int64_t bytes) const {
    ::mount("tmpfs", place_.c_str(), "tmpfs", MS_REMOUNT, size(bytes).c_str());
  }

 private:
  static std::string size(int64_t bytes) { return fmt::format("size={}", bytes); }
  const io::Path place_;
  bool is_there_ = false;
};

int64_t bytes_in(const io::Path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

/// An end is expected to be the run's own, or an error that names the place.
std::string explained(const ChildEnd& end, const io::Path& place) {
  const bool is_named = end.code == 1 && end.err.find("weft: error: ") != end.err.npos &&
                        end.err.find(place.filename().string()) != end.err.npos;
  return end.code == 0 || is_named
             ? ""
             : fmt::format("expected an error that names {}; {}", place.string(), describe(end));
}

}  // namespace

void take_places_away(Rack& rack, Tally& tally) {
  SmallRun small(rack);
  for (int64_t i = 0; rack.goes_on(i, 3); ++i) {
    const io::Path output =
        i % 3 == 2 ? rack.scratch / "disk" / fmt::format("run-{}", i) : small.fresh_output();
    std::string what, loss;
    if (i % 3 == 2) {
      // Room for one or two checkpoints of those that the run writes.
      const SmallDisk disk(rack.scratch / "disk", bytes_in(small.reference()) * 3 / 2);
      if (!disk.is_there()) continue;
      what = "a full disk";
      loss = explained(small.run(small.start(output)).wait(kRunSeconds), output);
      disk.grow(int64_t{1} << 30);
      if (loss.empty()) loss = small.finish(output);
    } else {
      const io::Path place = i % 3 == 0 ? output : small.an_image();
      const io::Path away = place.string() + ".away";
      const double moment = rack.random.uniform() * small.seconds();
      what = fmt::format("{} gone after {:.3f} s", place.string(), moment);
      Child child = small.run(small.start(output));
      // A run has read the list of its images when it makes its directory.
      while (!std::filesystem::exists(output) && !child.has_ended(0)) child.pause();
      child.has_ended(moment);
      std::filesystem::rename(place, away);
      loss = explained(child.wait(kRunSeconds), place);
      if (loss.empty() && std::filesystem::exists(place)) loss = "something has taken its place";
      if (loss.empty()) std::filesystem::rename(away, place);
      if (loss.empty()) loss = small.finish(output);
    }
    tally.count(loss.empty(), what + ": " + loss);
  }
}

}  // namespace weft::cli
