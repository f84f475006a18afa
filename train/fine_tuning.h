// What fine-tuning changes of a training run: parameters that stay as they are, and smaller steps
// for the layers near the input.
#pragma once

#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/structure.h"
#include "optim/optimizer.h"

namespace weft::train {

/// Takes out of training every parameter that one of the patterns names. A pattern is a parameter's
/// name, a module's (then it names all below it), or has '*' and '?' as a shell's, where '*' spans
/// dots: "conv_proj", "encoder.layers.encoder_layer_?.*", "*.bias".
/// Throws Error, and changes nothing, when a pattern names none and when nothing is left to train.
void freeze(nn::Module& model, const std::vector<std::string>& patterns);

/// Those that are trained.
NamedTensors trained_parameters(const nn::Module& model);

/// Splits groups of a model's parameters by depth and scales the learning rate of each by decay^(L
/// + 1 - depth). The depth is the number of the segment that has the parameter: 0 is what comes
/// before the L layers (patches, class token, positions), layer i has depth i + 1, and the final
/// norm and the head, at depth L + 1, learn at the full rate. Clark et al., "ELECTRA", 2020; Bao et
/// al., "BEiT", 2021. Throws Error when the model has no transformer's layers.
optim::ParameterGroups with_layer_decay(const optim::ParameterGroups& groups, double decay,
                                        const nn::ModelStructure& structure);

}  // namespace weft::train
