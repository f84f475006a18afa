#include "train/layer_watch.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/transfer.h"

namespace weft::train {
namespace {

/// The largest number and the smallest one above 0.
struct Range {
  double largest, least;
};
Range range_of(DType format) {
  if (format == DType::bf16) return {0x1.FEp127, 0x1p-133};
  if (format == DType::f8e5m2) return {57344, 0x1p-16};
  return {65504, 0x1p-24};
}

/// The larger of two, or NaN where one of them is.
double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

}  // namespace

DType underflow_format(const Precision& precision) {
  if (precision.is_fp8()) return DType::f8e5m2;
  return precision.products == DType::bf16 ? DType::bf16 : DType::f16;
}

std::vector<LayerFigures> watch_layers(nn::Module& model, const Tensors& trained,
                                       const Precision& precision, double loss_scale) {
  const NoGrad guard;
  const DType format = underflow_format(precision);
  const Range range = range_of(format);
  const NamedTensors parameters = model.named_parameters();
  std::vector<LayerFigures> layers;
  std::vector<double> gradients;  // of the layer at hand
  const auto finish = [&] {
    if (layers.empty()) return;
    LayerFigures& layer = layers.back();
    double squares = 0;
    for (const double g : gradients) {
      layer.grad_amax = larger(layer.grad_amax, std::abs(g));
      squares += g * g;
    }
    layer.grad_norm = std::sqrt(squares);
    const double scale = format == DType::f8e5m2 && layer.grad_amax > 0
                             ? range.largest / layer.grad_amax
                             : loss_scale;
    int64_t nonzero = 0, lost = 0;
    for (const double g : gradients) {
      nonzero += g != 0;
      // Half of the least number is rounded to the even neighbour, 0.
      lost += g != 0 && std::abs(g) * scale <= range.least / 2;
    }
    if (nonzero > 0) layer.underflow = static_cast<double>(lost) / static_cast<double>(nonzero);
    const size_t stride = (gradients.size() + kWatchedElements - 1) / kWatchedElements;
    for (size_t i = 0; i < gradients.size(); i += stride) layer.grad.push_back(gradients[i]);
    gradients.clear();
  };
  // A layer's parameters stand together.
  for (const auto& [name, parameter] : parameters) {
    const auto is_it = [&p = parameter](const Tensor& x) { return x.is_same(p); };
    if (!parameter.grad().defined() || std::ranges::none_of(trained, is_it)) continue;
    const size_t dot = name.rfind('.');
    const std::string layer = dot == name.npos ? "model" : name.substr(0, dot);
    if (layers.empty() || layers.back().name != layer) {
      finish();
      layers.push_back({.name = layer});
    }
    for (const double w : to_device(detach(parameter), Device{}).to_vector()) {
      layers.back().weight_amax = larger(layers.back().weight_amax, std::abs(w));
    }
    const std::vector<double> values = to_device(parameter.grad(), Device{}).to_vector();
    gradients.insert(gradients.end(), values.begin(), values.end());
  }
  finish();
  return layers;
}

std::vector<std::pair<std::string, double>> named_figures(const std::vector<LayerFigures>& layers) {
  std::vector<std::pair<std::string, double>> all;
  for (const LayerFigures& layer : layers) {
    all.emplace_back("watch/weight_amax/" + layer.name, layer.weight_amax);
    all.emplace_back("watch/grad_amax/" + layer.name, layer.grad_amax);
    all.emplace_back("watch/grad_norm/" + layer.name, layer.grad_norm);
    all.emplace_back("watch/underflow/" + layer.name, layer.underflow);
  }
  return all;
}

}  // namespace weft::train
