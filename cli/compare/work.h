// Weft's half of `weft compare`: does the work that it is told to, and says how long it took.
//
// Speaks the protocol of benchmarks/pytorch/compare_peer.py, the other half, so that each program
// is measured in a process of its own and by the same rules.
#pragma once

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "core/device.h"

namespace weft::cli {

/// A case's work, warm, and what is to be said of it ("parameters", "bytes").
struct Work {
  std::function<void()> run;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
};

/// Makes the work that `spec` describes; files go to `directory`. Throws Error naming an unknown
/// kind.
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
Work make_work(const nlohmann::json& spec, Device device, const std::string& directory);

/// Answers requests from standard input on standard output until that ends.
void serve_work(Device device, const std::string& directory);

}  // namespace weft::cli
