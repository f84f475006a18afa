// Weft's half of vit_check.py: a ViT-B/16's logits, loss, gradients and ten AdamW steps.
//
//   vit_check INPUT OUTPUT f32|f64
//
// INPUT, a safetensors file: model.<parameter>, images [N, 3, 224, 224], labels i64 [N], and lr and
// weight_decay f64 []. OUTPUT: logits and loss of the first step, losses of all, grad.<parameter>
// of the first step, and final.<parameter> after the last. All floats in the given dtype.
#include <cstdio>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "io/safetensors.h"
#include "models/vit.h"
#include "nn/loss.h"
#include "optim/adam.h"

namespace weft {
namespace {

constexpr int kSteps = 10;

void run(const std::string& input, const std::string& output, DType dtype) {
  NamedTensors state;
  Tensor images, labels;
  double lr = 0, weight_decay = 0;
  for (const auto& [name, tensor] : io::read_safetensors(input).tensors) {
    if (name.starts_with("model.")) state.emplace_back(name.substr(6), tensor);
    if (name == "images") images = ops::cast(tensor, dtype);
    if (name == "labels") labels = tensor;
    if (name == "lr") lr = tensor.item();
    if (name == "weight_decay") weight_decay = tensor.item();
  }
  WEFT_CHECK(images && labels, "{}: expected images and labels", input);

  models::VisionTransformer model(models::VitConfig::b_16());
  model.to(dtype);
  model.load_state_dict(state);
  optim::AdamW optimizer(model.named_parameters(), {.lr = lr, .weight_decay = weight_decay});

  NamedTensors results;
  const Tensor losses = Tensor::empty({kSteps}, DType::f64);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor logits = model(images);
    const Tensor loss = nn::cross_entropy(logits, labels);
    backward(loss);
    losses.data<double>()[step] = loss.item();
    if (step == 0) {
      results.emplace_back("logits", detach(logits));
      results.emplace_back("loss", detach(loss));
      for (const auto& [name, parameter] : model.named_parameters()) {
        WEFT_CHECK(parameter.grad(), "{} has no gradient", name);
        results.emplace_back("grad." + name, parameter.grad());
      }
    }
    optimizer.step();
  }
  results.emplace_back("losses", losses);
  for (const auto& [name, parameter] : model.named_parameters()) {
    results.emplace_back("final." + name, detach(parameter));
  }
  io::write_safetensors(output, results);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: vit_check INPUT OUTPUT f32|f64\n");
    return 2;
  }
  try {
    weft::run(argv[1], argv[2], weft::parse_dtype(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vit_check: %s\n", error.what());
    return 1;
  }
  return 0;
}
