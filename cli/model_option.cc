#include "cli/model_option.h"

#include "cli/command.h"
#include "train/weights/pretrained_model.h"

namespace weft::cli {

void add_model_options(CLI::App& command, ModelSource& source) {
  CLI::Option* checkpoint = command.add_option("--checkpoint", source.checkpoint,
                                               "A run's directory, or one of its checkpoints");
  command
      .add_option("--weights", source.weights,
                  "Instead: a vision transformer's weights, safetensors or torch.save's, under "
                  "torchvision's, timm's or Hugging Face's names")
      ->excludes(checkpoint);
}

void check_given(const ModelSource& source) {
  if (source.checkpoint.empty() && source.weights.empty()) {
    throw UsageError("--checkpoint is required, or --weights");
  }
}

train::TrainedModel load_model(const ModelSource& source) {
  return source.weights.empty() ? train::load_trained_model(source.checkpoint)
                                : train::load_pretrained_model(source.weights);
}

}  // namespace weft::cli
