#include "train/pretrained_model.h"

namespace weft::train {
namespace {

std::string numbered(size_t i) { return fmt::format("class {}", i); }

}  // namespace

TrainedModel load_pretrained_model(const io::Path& path) {
  const Pretrained pretrained = read_pretrained(path);
  TrainedModel trained;
  const models::VitConfig config = vit_config_of(pretrained);
  auto model = std::make_unique<models::VisionTransformer>(config);
  load_pretrained(*model, pretrained);
  trained.model = std::move(model);
  trained.config.model = "vision transformer";
  trained.config.weights = path.string();
  trained.preprocess = pretrained.preprocess;
  trained.classes = pretrained.classes;
  for (size_t i = trained.classes.size(); i < static_cast<size_t>(config.classes); ++i) {
    trained.classes.push_back(numbered(i));
  }
  return trained;
}

bool has_class_names(const TrainedModel& model) { return model.classes.at(0) != numbered(0); }

}  // namespace weft::train
