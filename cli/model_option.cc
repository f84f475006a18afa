#include "cli/model_option.h"

#include "cli/command.h"

namespace weft::cli {

void add_model_options(CLI::App& command, ModelSource& source) {
  CLI::Option* checkpoint = command.add_option(
      "--checkpoint", source.checkpoint,
      "The model: a run's directory, or one of its checkpoints; this or --weights is needed");
  checkpoint->type_name("DIR");
  add_option(command, "--weights", source.weights,
             "In the place of --checkpoint, a vision transformer's weights: a safetensors or "
             "torch.save file under torchvision's, timm's or Hugging Face's names",
             {.takes = "FILE"})
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
