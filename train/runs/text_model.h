// A language model of bytes as a run leaves it, and text from it.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tensors/text_windows.h"
#include "models/generate.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace weft::train {

struct TextModel {
  Config config;
  std::unique_ptr<models::Gpt> model;
  std::vector<std::string> notes = {};  // what was done to make the weights fit
};

/// A fresh model of these settings, its weights from config.seed, or those of the file
/// config.weights, which says what a "gpt2" is. Of GPT-2's tokens it keeps those of single bytes.
/// Throws Error naming the file and what is wrong with it.
TextModel make_text_model(const Config& config);
/// The same without the file, for whoever has weights and `state`, what describe() said of them.
TextModel remake_text_model(const Config& config, const nlohmann::json& state);
/// What a checkpoint's state keeps of a model whose name does not say it.
nlohmann::json describe(const TextModel& text);

/// That of a run's directory or of one of its checkpoints. Throws Error naming the file, the key or
/// the tensor that is wrong, and a run of images.
TextModel load_text_model(const io::Path& path);
/// That of a file of weights: a GPT-2's, or those of a model of models/gpt_names.h.
TextModel load_text_weights(const io::Path& path);
/// Whether a run's directory, or one of its checkpoints, is of text. Throws Error as above.
bool is_run_on_text(const io::Path& path);

/// The mean loss of the windows [begin, end), one or more, in nats a byte, in config.precision;
/// `batch` at a time, after each of which `progress` hears how many are done and of the loss so
/// far.
double evaluate_text(TextModel& text, const data::WindowDataset& windows, int64_t begin,
                     int64_t end, int64_t batch,
                     const std::function<void(int64_t done, double loss)>& progress = {});

/// `bytes` more bytes after a prompt, in the run's precision. Of what does not fit into the model's
/// context it sees the latest half. Throws Error as models::generate() does.
std::string continue_text(TextModel& model, const std::string& prompt, int64_t bytes,
                          models::GenerateOptions options);

}  // namespace weft::train
