// Weft's half of gpt2_check.py: the logits that a file of GPT-2's weights gives, and what follows.
//
//   gpt2_check WEIGHTS TOKENS OUTPUT f32|f64
//
// TOKENS, a safetensors file: tokens i64 [B, T] and prompt i64 [P]. OUTPUT: logits [B, T, V] in the
// given dtype, and `generated`, the kGenerated most probable tokens after the prompt, i64.
#include <cstdio>
#include <map>

#include "io/safetensors.h"
#include "models/generate.h"
#include "train/pretrained/gpt2.h"

namespace weft {
namespace {

constexpr int64_t kGenerated = 32;

void run(char** arguments) {
  const train::Pretrained pretrained = train::read_pretrained(arguments[0]);
  models::Gpt model(train::gpt2_config_of(pretrained));
  for (const std::string& note : train::load_pretrained(model, pretrained)) {
    std::fprintf(stderr, "  Weft: %s\n", note.c_str());
  }
  model.eval();
  model.to(parse_dtype(arguments[3]));
  const NamedTensors read = io::read_safetensors(arguments[1]).tensors;
  const std::map<std::string, Tensor> in(read.begin(), read.end());
  const Tensor prompt = in.at("prompt");
  const auto* first = prompt.data<int64_t>();
  const std::vector<int64_t> generated = models::generate(
      model, {first, first + prompt.numel()}, {.max_new_tokens = kGenerated, .temperature = 0});
  const NoGrad guard;
  io::write_safetensors(arguments[2], {{"logits", model(in.at("tokens"))},
                                       {"generated", Tensor::from(generated, {kGenerated})}});
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: gpt2_check WEIGHTS TOKENS OUTPUT f32|f64\n");
    return 2;
  }
  try {
    weft::run(argv + 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2_check: %s\n", error.what());
    return 1;
  }
  return 0;
}
