// A look at every layer of a model between its gradients and the optimizer's step, for who looks
// for the layer that explodes or vanishes: `weft train --watch`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"
#include "train/precision.h"

namespace weft::train {

/// A module with parameters of its own that are trained and have gradients. All figures are of
/// these alone; NaN where one of the elements is.
struct LayerFigures {
  std::string name;          // the module's; the model's own parameters: "model"
  double weight_amax = 0;    // largest magnitude of a parameter
  double grad_amax = 0;      // of a gradient
  double grad_norm = 0;      // 2-norm over the gradients
  double underflow = 0;      // share of the gradients' elements that are not 0 and would be in
                             // underflow_format()
  std::vector<double> grad;  // the gradients' elements, at most kWatchedElements evenly spaced ones
};

inline constexpr size_t kWatchedElements = 10000;

/// The narrow format that gradients of this precision have to fit: bf16 of the bf16 precisions,
/// e5m2 of fp8, f16 of all others, as a question whether f16 would do.
DType underflow_format(const Precision& precision);

/// Of `trained` alone: the gradients of other parameters, which nobody drops, add up from step to
/// step. Gradients are to be as the optimizer takes them, without a scale of the loss. The share of
/// underflow is taken at `loss_scale`, in e5m2 at the scale that brings the amax to its largest
/// number.
std::vector<LayerFigures> watch_layers(nn::Module& model, const Tensors& trained,
                                       const Precision& precision, double loss_scale);

/// Of each layer watch/weight_amax/LAYER, watch/grad_amax/LAYER, watch/grad_norm/LAYER and
/// watch/underflow/LAYER.
std::vector<std::pair<std::string, double>> named_figures(const std::vector<LayerFigures>& layers);

}  // namespace weft::train
