// --checkpoint and --weights: the trained model that a command works with.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "train/trained_model.h"

namespace weft::cli {

struct ModelSource {
  std::string checkpoint, weights;  // one of them
};

/// Adds --checkpoint and --weights, which exclude each other, to a command.
void add_model_options(CLI::App& command, ModelSource& source);

/// Throws UsageError where neither was given.
void check_given(const ModelSource& source);

/// The model of a checkpoint, or of a file of weights with what follows from its names. Throws
/// Error naming the file, the key or the tensor that is wrong.
train::TrainedModel load_model(const ModelSource& source);

}  // namespace weft::cli
