// What a trained model makes of the images it is validated on: which classes it takes for which,
// and the images that it is most wrong about. `weft train` keeps it as validation.json in the run's
// directory; `weft report` draws it.
//
//   std::vector<Verdict> verdicts;
//   evaluate(model, loader, {.each = [&](const data::Batch& batch, const Tensor& logits) {
//              append_verdicts(verdicts, batch, logits);
//            }});
//   write_findings(run / kFindingsFile, make_findings(verdicts, *dataset));
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "io/files.h"

namespace weft::train {

inline constexpr const char* kFindingsFile = "validation.json";

/// What was made of one image.
struct Verdict {
  int64_t batch = 0, row = 0;  // where it stood: by these the images are in the data set's order
  int64_t label = 0, predicted = 0;
  double loss = 0;         // cross-entropy
  double probability = 0;  // of `predicted`
};

/// Of a batch of a loader that does not shuffle, and of its logits [N, classes].
void append_verdicts(std::vector<Verdict>& verdicts, const data::Batch& batch,
                     const Tensor& logits);

/// As rows f64 [N, 6], which ranks can send each other, and back.
Tensor to_rows(const std::vector<Verdict>& verdicts);
std::vector<Verdict> from_rows(const Tensor& rows);

struct WrongImage {
  int64_t index = 0;  // in the data set
  int64_t label = 0, predicted = 0;
  double loss = 0, probability = 0;
  int height = 0, width = 0;  // of the picture: the image, or a smaller one where it is large
  std::string png;
};

struct Findings {
  int64_t step = 0;
  std::vector<std::string> classes;
  int64_t images = 0;
  double loss = 0, accuracy = 0;                             // means
  std::map<std::pair<int64_t, int64_t>, int64_t> confusion;  // images by (label, predicted)
  std::vector<WrongImage> most_wrong;                        // by loss, the worst first
};

/// Of verdicts, in any order, over the first images of a data set. Throws Error when an image is
/// missing or there twice.
Findings make_findings(std::vector<Verdict> verdicts, const data::Dataset& dataset);

/// Evaluates the last checkpoint of a run, or the one that `run` is, on its validation images.
/// Throws Error naming what is missing: the checkpoint, or the data.
Findings evaluate_run(const io::Path& run);

/// One JSON object; throws Error naming the file that cannot be written, or read, and why.
void write_findings(const io::Path& file, const Findings& findings);
Findings read_findings(const io::Path& file);

}  // namespace weft::train
