// What torture puts a run through: an ordeal tries something many times and counts what held.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/philox.h"
#include "io/files.h"

namespace weft::cli {

/// What was tried and what held. A loss is something promised that did not happen.
struct Tally {
  int64_t tried = 0, held = 0;
  std::vector<std::string> losses;

  void count(bool is_held, const std::string& loss) {
    ++tried;
    if (is_held) {
      ++held;
    } else {
      losses.push_back(loss);
    }
  }
};

struct Rack {
  io::Path scratch;  // a directory of the ordeal's own
  Philox random;
  std::chrono::steady_clock::time_point end;
  bool is_short = false;  // try each thing once or a few times, whatever the time
  int outputs = 0;        // directories of runs so far

  /// Whether to try once more after `done` trials, of which a short rack takes `few`.
  bool goes_on(int64_t done, int64_t few) const {
    return is_short ? done < few : done == 0 || std::chrono::steady_clock::now() < end;
  }
};

struct Ordeal {
  const char* name;
  const char* promise;  // what must hold
  double share;         // of the time
  void (*run)(Rack&, Tally&);
};

// runs.cc
void kill_at_random(Rack& rack, Tally& tally);
void kill_at_each_file_operation(Rack& rack, Tally& tally);
void fail_each_file_operation(Rack& rack, Tally& tally);
void signal_at_random(Rack& rack, Tally& tally);
void share_a_directory(Rack& rack, Tally& tally);
void take_places_away(Rack& rack, Tally& tally);
// rot.cc
void flip_bits(Rack& rack, Tally& tally);
void truncate(Rack& rack, Tally& tally);
// files.cc
void read_hostile_files(Rack& rack, Tally& tally);
// ranks.cc
void hurt_ranks(Rack& rack, Tally& tally);
void lose_parts(Rack& rack, Tally& tally);
// long_runs.cc
void soak(Rack& rack, Tally& tally);
void repeat(Rack& rack, Tally& tally);

}  // namespace weft::cli
