// The runs of a study: cells, each a configuration that is trained from several seeds.
//
//   std::vector<Cell> cells = {{{"linear", "256"}, config}, ...};
//   train_all(cells, {.output = "study", .seeds = 3});
//   cells[0].mean(&RunFigures::accuracy);
//
// Each run is a `weft train` of its own with a directory in the study's. A study that is given
// again takes up the runs that are complete, resumes the one that is not, and adds what is new.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/config.h"

namespace weft::cli {

/// What a run came to.
struct RunFigures {
  std::string directory;
  uint64_t seed = 0;
  int64_t step = 0;        // of its last figures
  bool failed = false;     // it ended by an error behind its first step, as where it diverges
  double accuracy = 0;     // on the validation images, in the last validation; NaN of text
  double loss = 0;         // the same; of text in nats a byte
  double seconds = 0;      // from the first step
  double noise_scale = 0;  // images (noise_scale.h); NaN: not measured
  struct Point {
    int64_t step;
    double accuracy, loss;
  };
  std::vector<Point> curve;  // of each validation
};

struct Cell {
  std::vector<std::string> labels;
  train::Config config;
  std::vector<RunFigures> runs;

  struct Spread {
    double mean = 0, deviation = 0;  // of a sample; NaN where there is none
    int64_t count = 0;
  };
  /// Over the runs that did not fail and have a figure.
  Spread spread(const std::function<double(const RunFigures&)>& figure) const;
};

struct StudyOptions {
  std::string output;
  int seeds = 3;
  int threads = 0;
  bool measures_noise = false;
};

/// Throws Error for a directory that holds a run of the same name with other settings, for a run
/// that came to no step, and for one whose figures end before its last checkpoint. Cells of the
/// same settings share their runs. Returns false when a run was interrupted.
bool train_all(std::vector<Cell>& cells, const StudyOptions& options);

/// "81.25 +- 0.40", of fractions in percent.
std::string text_of(const Cell::Spread& spread, double factor = 1, int digits = 2);

}  // namespace weft::cli
