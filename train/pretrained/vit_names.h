// The names that a vision transformer's parameters have in torchvision, timm and Hugging Face's
// transformers, and the way from each to each.
//
// torchvision's are Weft's own. Hugging Face keeps query, key and value apart where the others have
// one matrix of the three, one above the other. On reading, older and other forms are known too:
// torchvision's mlp.linear_1/2, and of Hugging Face ViTModel's names, which lack "vit.", and those
// that transformers 5 uses in memory ("vit.layers.0.attention.q_proj.weight").
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace weft::train {

enum class VitNames { kTorchvision, kTimm, kHuggingFace };

/// "torchvision", "timm", "huggingface".
std::string_view name(VitNames names);
/// Throws Error listing the three.
VitNames parse_vit_names(std::string_view text);

/// Whose names these are; none when they are not a vision transformer's.
std::optional<VitNames> recognise_vit(const NamedTensors& state);

struct RenamedState {
  NamedTensors state;
  std::vector<std::string> dropped;  // known and of no use here: poolers, mask tokens
};

/// The state under torchvision's names. Query, key and value are joined; other tensors are the same
/// handles. Unknown names stay as they are. Throws Error naming the key when one of query, key and
/// value is missing or does not fit the others, and when two keys have the same meaning.
RenamedState to_torchvision(const NamedTensors& state, VitNames from);

/// A state with torchvision's names under those of `to`. Query, key and value are views.
/// Throws Error naming a key that has no counterpart.
NamedTensors from_torchvision(const NamedTensors& state, VitNames to);

/// Takes "module." and "_orig_mod.", which DataParallel and torch.compile put in front of every
/// key, off all of them.
NamedTensors without_wrapper_prefixes(NamedTensors state);

}  // namespace weft::train
