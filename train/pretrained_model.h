// A file of weights as a model to evaluate: what eval and predict take instead of a checkpoint.
#pragma once

#include "train/pretrained/pretrained.h"
#include "train/trained_model.h"

namespace weft::train {

/// The vision transformer whose weights the file holds, with the preprocessing of its source.
/// Classes that the file does not name are called "class 0", ...
/// Throws Error naming the file and what is missing.
TrainedModel load_pretrained_model(const io::Path& path);

/// True when the file names the model's classes.
bool has_class_names(const TrainedModel& model);

}  // namespace weft::train
