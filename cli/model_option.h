// --checkpoint and --weights: the trained model that a command works with; --device-map and
// --max-memory: where its weights rest.
#pragma once

#include <string>

#include "io/command_line.h"
#include "train/trained_model.h"

namespace weft::cli {

struct ModelSource {
  std::string checkpoint, weights;  // one of them
  std::string device_map, max_memory;
};

/// Adds --checkpoint and --weights, which exclude each other, to a command.
void add_model_options(io::Command& command, ModelSource& source);
/// Adds --device-map and --max-memory.
void add_placement_options(io::Command& command, ModelSource& source);

/// Throws UsageError where neither was given.
void check_given(const ModelSource& source);

/// The model of a checkpoint, or of a file of weights with what follows from its names, on the
/// device that --device names, or spread out as --device-map says. Throws Error naming the file,
/// the key or the tensor that is wrong, UsageError for options that do not go together.
train::TrainedModel load_model(const ModelSource& source, const std::string& device);

}  // namespace weft::cli
