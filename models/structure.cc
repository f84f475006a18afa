#include "models/structure.h"

#include "models/resnet.h"
#include "models/vit.h"

namespace weft::models {

dist::ModelStructure structure_of(nn::Module& model,
                                  std::function<std::unique_ptr<nn::Module>()> replica) {
  dist::ModelStructure structure(dist::wrap_modules<EncoderBlock, ResidualBlock>());
  for (const auto& [name, module] : model.named_modules()) {
    if (auto* mlp = dynamic_cast<MlpBlock*>(module)) {
      structure.mlps.emplace_back(&mlp->fc1, &mlp->fc2);
    }
    if (auto* encoder = dynamic_cast<Encoder*>(module)) {
      structure.tokens = {
          .begin = &encoder->dropout, .end = encoder, .between = {&encoder->layers, &encoder->ln}};
    }
    if (auto* linear = dynamic_cast<nn::Linear*>(module)) structure.head = linear;  // the last
  }
  if (auto* classifier = dynamic_cast<Classifier*>(&model)) {
    structure.segments = classifier->segments();
  }
  structure.replica = std::move(replica);
  return structure;
}

}  // namespace weft::models
