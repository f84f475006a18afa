// A language model of bytes as a run leaves it, and text from it.
#pragma once

#include <memory>
#include <string>

#include "models/generate.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace weft::train {

struct TextModel {
  Config config;
  std::unique_ptr<models::Gpt> model;
};

/// A fresh model of these settings, its weights from config.seed.
TextModel make_text_model(const Config& config);

/// That of a run's directory or of one of its checkpoints. Throws Error naming the file, the key or
/// the tensor that is wrong, and a run of images.
TextModel load_text_model(const io::Path& path);

/// `bytes` more bytes after a prompt, in the run's precision. Of what does not fit into the model's
/// context it sees the latest half. Throws Error as models::generate() does.
std::string continue_text(TextModel& model, const std::string& prompt, int64_t bytes,
                          models::GenerateOptions options);

}  // namespace weft::train
