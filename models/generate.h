// Text from a language model, token by token.
//
//   const std::vector<int64_t> more = models::generate(model, prompt, {.temperature = 0.8});
#pragma once

#include <cstdint>
#include <vector>

#include "models/gpt.h"

namespace weft::models {

struct GenerateOptions {
  int64_t max_new_tokens = 100;
  double temperature = 1;  // divides the logits; 0: always the most probable token
  int64_t top_k = 0;       // draw from the k most probable tokens; 0: from all
  /// Draw from the fewest tokens, most probable first, that have this probability together.
  /// Holtzman et al., "The Curious Case of Neural Text Degeneration", arXiv:1904.09751.
  double top_p = 1;
  uint64_t seed = 0;
};

/// The tokens that follow the prompt. They depend on the model, the prompt and the options alone:
/// random numbers are Philox's. Dropout rests meanwhile. Where the model runs as a whole alone, its
/// weights on several devices or on disk (nn/dispatch.h), or set up by a Fabric on several devices
/// or in another precision, each token costs a pass over all before it. Of a model that ranks share
/// every rank has to call. Throws Error for an empty prompt, options
/// out of range, and a prompt that leaves no room in the context for what is wanted.
std::vector<int64_t> generate(Gpt& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options = {});

/// The probabilities that a token is drawn with, by its logits: temperature first, then top_k, then
/// top_p. Of equal logits the lower token counts as the more probable one. Throws Error for options
/// out of range and for logits that are no numbers.
std::vector<double> token_probabilities(const std::vector<double>& logits,
                                        const GenerateOptions& options);

}  // namespace weft::models
