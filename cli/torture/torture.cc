// weft torture: the promises of docs/reliability.md, tried.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "cli/command.h"
#include "cli/json_line.h"
#include "cli/torture/ordeal.h"
#include "io/progress.h"

namespace weft::cli {
namespace {

constexpr Ordeal kOrdeals[] = {
    {"kill", "a run killed at any moment goes on to the same bits", 3, kill_at_random},
    {"kill-io", "... before any operation on a file", 3, kill_at_each_file_operation},
    {"fail-io", "a disk that fails or is full is named, and costs no checkpoint", 2,
     fail_each_file_operation},
    {"signal", "a run asked to stop saves, and goes on to the same bits", 2, signal_at_random},
    {"two-runs", "a second run on a directory is refused", 0.5, share_a_directory},
    {"places",
     "data or a directory that vanishes, or a full disk, is named, and costs no checkpoint", 1,
     take_places_away},
    {"flip", "a flipped bit of a checkpoint or of weights is found, not loaded", 2, flip_bits},
    {"truncate", "so is a file that was cut short", 0.5, truncate},
    {"files", "no file, however damaged, ends the program", 2, read_hostile_files},
    {"ranks",
     "a rank killed, stopped or mistaken ends the run in time, by name, and costs no checkpoint", 3,
     hurt_ranks},
    {"parts",
     "so does one that is killed, or whose disk fails, as it writes its part of a checkpoint", 2,
     lose_parts},
    {"soak", "a long run grows in memory, threads and open files no more", 2, soak},
    {"repeat",
     "a repeated run has the same bits on any number of threads, and of ranks where asked", 1,
     repeat},
};

struct Arguments {
  double minutes = 5;
  uint64_t seed = 0;
  std::vector<std::string> only;
  bool is_short = false, as_json = false;

  bool takes(const Ordeal& ordeal) const {
    return only.empty() || std::ranges::count(only, ordeal.name) > 0;
  }
};

int run_torture(const Arguments& a) {
  using Clock = std::chrono::steady_clock;
  std::string place = (std::filesystem::temp_directory_path() / "weft-torture-XXXXXX").string();
  WEFT_CHECK(::mkdtemp(place.data()) != nullptr, "cannot make a directory like {}: {}", place,
             std::strerror(errno));
  const io::Path scratch = place;
  double shares = 0;
  for (const Ordeal& ordeal : kOrdeals) {
    if (a.takes(ordeal)) shares += ordeal.share;
  }
  io::Table table({{"ordeal", 9, io::Table::Align::kLeft},
                   {"tried", 9},
                   {"held", 9},
                   {"lost", 6},
                   {"time", 8}});
  bool is_lost = false;
  std::vector<std::string> losses;
  for (const Ordeal& ordeal : kOrdeals) {
    if (!a.takes(ordeal)) continue;
    const auto begin = Clock::now();
    const double seconds = 60 * a.minutes * ordeal.share / shares;
    Rack rack{
        scratch / ordeal.name, Philox(a.seed, static_cast<uint64_t>(&ordeal - kOrdeals)),
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)),
        a.is_short};
    io::make_directories(rack.scratch);
    Tally tally;
    ordeal.run(rack, tally);
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    is_lost = is_lost || !tally.losses.empty() || tally.tried == 0;
    if (a.as_json) {
      print_json({{"ordeal", ordeal.name},
                  {"promise", ordeal.promise},
                  {"tried", tally.tried},
                  {"held", tally.held},
                  {"losses", tally.losses},
                  {"seconds", took}});
    } else {
      table.row({ordeal.name, std::to_string(tally.tried), std::to_string(tally.held),
                 std::to_string(tally.tried - tally.held), io::format_duration(took)});
      for (const std::string& loss : tally.losses) {
        losses.push_back(fmt::format("{}: {}", ordeal.name, loss));
      }
    }
    // What was lost stays to be looked at.
    if (tally.losses.empty()) io::remove_tree(rack.scratch);
    std::fflush(stdout);
  }
  if (!a.as_json) {
    for (const std::string& loss : losses) fmt::print("lost: {}\n", loss);
    if (is_lost) {
      fmt::print("seed {}; what was lost is in {}\n", a.seed, scratch.string());
    } else {
      fmt::print("nothing lost\n");
    }
  }
  if (!is_lost) io::remove_tree(scratch);
  return is_lost ? kFailure : 0;
}

}  // namespace

void add_torture(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run_torture, "torture",
      "Kill runs, damage files, hurt ranks, and see that nothing is lost", kMeasuringCommands);
  std::vector<std::string> names;
  std::string promises = "Ordeals, and what must hold:";
  for (const Ordeal& ordeal : kOrdeals) {
    names.emplace_back(ordeal.name);
    promises += fmt::format("\n  {:<9} {}", ordeal.name, ordeal.promise);
  }
  command.option("--minutes", a.minutes, "Time for all ordeals together", {.check = positive()});
  command.option("--seed", a.seed, "Seed of moments, places and changes");
  command.option("--only", a.only, "The ordeals to run",
                 {.check = one_of(names), .takes = "NAME,...", .usual = "all", .delimiter = ','});
  command.flag("--short", a.is_short, "Try each thing a few times, whatever --minutes says");
  command.flag("--json", a.as_json, kJsonLines);
  command.footer(promises + "\n\nThe exit code is 1 when anything was lost.");
}

}  // namespace weft::cli
