// GPT-2's weights: those that transformers' GPT2LMHeadModel and GPT2Model save, and Weft's own.
//
//   const Pretrained pretrained = read_pretrained("gpt2/");
//   models::Gpt model(gpt2_config_of(pretrained));
//   load_pretrained(model, pretrained);
//
// transformers' keys begin with "transformer.", those of the first published file do not; its
// matrices are [in, out] ("Conv1D"), Weft's [out, in]. Its causal masks, which some files hold as
// "attn.bias" and "attn.masked_bias", are no weights. A head that is wte's equal is the tied one.
#pragma once

#include "models/gpt.h"
#include "train/pretrained/pretrained.h"

namespace weft::train {

/// Whether these are a GPT-2's, transformers' or Weft's.
bool recognise_gpt2(const NamedTensors& state);

/// The state under Weft's names; matrices are views. Others' names stay as they are. Throws Error
/// naming a matrix that fits neither layout, and two keys of one meaning.
NamedTensors to_gpt2(const NamedTensors& state);

/// A state under Weft's names under those of transformers' GPT2LMHeadModel; matrices are views. A
/// tied head has no tensor of its own, as in files that it saves. Throws Error naming a tensor that
/// a GPT-2 does not have, such as Llama's.
NamedTensors from_gpt2(const NamedTensors& state);

/// What a config.json beside `file` says of a GPT-2: heads, eps and dropout go to `pretrained`.
/// Throws Error naming a setting under which GPT-2 computes what Weft's does not.
void apply_gpt2_files(Pretrained& pretrained, const io::Path& directory);

/// The architecture that the tensors' shapes tell. The number of heads, which they do not, is the
/// file's, or that of heads 64 wide. Throws Error naming the tensor that does not fit.
models::GptConfig gpt2_config_of(const Pretrained& pretrained);

}  // namespace weft::train
