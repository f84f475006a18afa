// Weft's half of `weft compare`: does the work that it is told to, and says how long it took.
//
// Speaks the protocol of benchmarks/pytorch/peer_protocol.py, the other halves, so that each
// program is measured in a process of its own and by the same rules.
#pragma once

#include <string>

#include "core/device.h"

namespace weft::cli {

/// Answers requests from standard input on standard output until that ends. Files go to
/// `directory`. Kinds of work, and what describes them:
///
///   train, infer   model, batch, precision: a step of training (zero_grad, forward, loss,
///                  backward, AdamW; with "graph" as one CUDA graph), logits alone
///   gemm           m, n, k: x W^T, as in linear layers
///   softmax, layer_norm, gelu, cross_entropy, chain    shape
///   attention      batch, heads, tokens, depth
///   sum            shape, dims
///   cast           shape, from, to
///   max_pool       shape: 3x3, stride 2, padding 1
///   adamw          model: one update of all its parameters
///   dispatch       tape, repeats: that many additions of two numbers, recorded or not
///   jpeg           path: decode, shorter side to 256, centre crop of 224, normalise; one thread
///   save, load     model: its state on the disk, and back into the model
///
/// Ops have a precision and "backward": with the gradients of all inputs, given the output's.
void serve_work(Device device, const std::string& directory);

}  // namespace weft::cli
