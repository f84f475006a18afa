// A model together with what turns an image into its input: what checkpoints hold, eval and predict
// read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/transforms.h"
#include "nn/module.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace weft::train {

struct TrainedModel {
  Config config;
  data::Preprocess preprocess;
  std::vector<std::string> classes;
  std::unique_ptr<nn::Module> model;
  Device device = {};

  /// Moves the model; an optimizer is to be made after it.
  void move_to(Device to);
};

/// A fresh model for these settings; its weights come from config.seed.
TrainedModel make_trained_model(const Config& config, const data::Preprocess& preprocess,
                                const std::vector<std::string>& classes);

/// What load_trained_model reads of a checkpoint's state.
nlohmann::json describe(const TrainedModel& model);
/// The model of a run's directory or of one of its checkpoints. Throws Error naming the file, the
/// key or the tensor that is wrong.
TrainedModel load_trained_model(const io::Path& path);
/// The same of a checkpoint in memory; errors name `path`. Without weights the model is left as its
/// constructor made it, which may be on the meta device (nn/meta.h).
TrainedModel restore_model(const Checkpoint& checkpoint, const io::Path& path,
                           bool with_weights = true);

/// The vision transformer whose weights a file holds, with the preprocessing of its source: what
/// eval and predict take instead of a checkpoint. Classes that the file does not name are called
/// "class 0", ... Throws Error naming the file and what is missing.
TrainedModel load_pretrained_model(const io::Path& path);
/// True when the file names the model's classes.
bool has_class_names(const TrainedModel& model);

}  // namespace weft::train
