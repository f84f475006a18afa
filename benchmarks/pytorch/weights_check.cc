// Weft's half of weights_check.py: the logits that a file of weights gives.
//
//   weights_check WEIGHTS IMAGES OUTPUT f32|f64 [IMAGE_SIZE torchvision|timm]
//
// WEIGHTS, of any kind that Weft reads, decides the architecture. IMAGES, a safetensors file:
// images [N, 3, S, S], normalised. OUTPUT: logits in the given dtype and `positions`, the position
// embeddings as loaded, f32; with IMAGE_SIZE interpolated to it, and then without logits.
#include <cstdio>

#include "autograd/ops.h"
#include "io/safetensors.h"
#include "train/pretrained/pretrained.h"

namespace weft {
namespace {

void run(int count, char** arguments) {
  const train::Pretrained pretrained = train::read_pretrained(arguments[0]);
  const DType dtype = parse_dtype(arguments[3]);
  models::VitConfig config = train::vit_config_of(pretrained);
  auto rule = train::Interpolation::kTorchvision;
  if (count == 6) {
    config.image_size = std::stoll(arguments[4]);
    rule = train::parse_interpolation(arguments[5]);
  }
  models::VisionTransformer model(config);
  for (const std::string& note : train::load_pretrained(model, pretrained, rule)) {
    std::fprintf(stderr, "  Weft: %s\n", note.c_str());
  }
  const NoGrad guard;
  model.eval();
  NamedTensors results = {{"positions", ops::clone(model.encoder.pos_embedding)}};
  if (count == 4) {
    model.to(dtype);
    for (const auto& [name, tensor] : io::read_safetensors(arguments[1]).tensors) {
      if (name == "images") results.emplace_back("logits", model(ops::cast(tensor, dtype)));
    }
    WEFT_CHECK(results.size() == 2, "{}: no images", arguments[1]);
  }
  io::write_safetensors(arguments[2], results);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc != 5 && argc != 7) {
    std::fprintf(stderr,
                 "usage: weights_check WEIGHTS IMAGES OUTPUT f32|f64 [IMAGE_SIZE "
                 "torchvision|timm]\n");
    return 2;
  }
  try {
    weft::run(argc - 1, argv + 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weights_check: %s\n", error.what());
    return 1;
  }
  return 0;
}
