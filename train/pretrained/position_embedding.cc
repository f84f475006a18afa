#include "train/pretrained/position_embedding.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "autograd/ops.h"
#include "io/nearest.h"
#include "io/quote.h"

namespace weft::train {
namespace {

/// Keys' cubic with its free parameter.
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

/// Weights [to, from], dense: there are a few dozen rows.
std::vector<double> torchvision_weights(int64_t from, int64_t to) {
  constexpr double a = -0.75;
  std::vector<double> weights(to * from, 0.0);
  const double scale =
      to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0;  // corners aligned
  for (int64_t i = 0; i < to; ++i) {
    const double centre = scale * static_cast<double>(i);
    const auto base = static_cast<int64_t>(std::floor(centre));
    for (int64_t k = base - 1; k <= base + 2; ++k) {
      const int64_t row = std::clamp<int64_t>(k, 0, from - 1);
      weights[i * from + row] += cubic(centre - static_cast<double>(k), a);
    }
  }
  return weights;
}

std::vector<double> timm_weights(int64_t from, int64_t to) {
  constexpr double a = -0.5;
  std::vector<double> weights(to * from, 0.0);
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double widening = std::max(scale, 1.0), support = 2 * widening;
  for (int64_t i = 0; i < to; ++i) {
    const double centre = scale * (static_cast<double>(i) + 0.5);
    const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
    const int64_t last = std::min(from, static_cast<int64_t>(centre + support + 0.5));
    double sum = 0;
    for (int64_t k = first; k < last; ++k) {
      const double w = cubic((static_cast<double>(k) - centre + 0.5) / widening, a);
      weights[i * from + k] = w;
      sum += w;
    }
    for (int64_t k = first; k < last; ++k) weights[i * from + k] /= sum;
  }
  return weights;
}

/// out[to, n] += weights[to, from] * in[from, n]
void resample(const std::vector<double>& weights, int64_t from, int64_t to, const double* in,
              int64_t n, double* out) {
  for (int64_t i = 0; i < to; ++i) {
    for (int64_t k = 0; k < from; ++k) {
      const double w = weights[i * from + k];
      if (w == 0) continue;
      for (int64_t j = 0; j < n; ++j) out[i * n + j] += w * in[k * n + j];
    }
  }
}

int64_t side_of(int64_t patches, const Tensor& embedding) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(patches))));
  WEFT_CHECK(patches > 0 && side * side == patches,
             "position embeddings {}: {} patches do not make a square grid", embedding, patches);
  return side;
}

}  // namespace

Interpolation parse_interpolation(std::string_view text) {
  if (text == "torchvision") return Interpolation::kTorchvision;
  if (text == "timm") return Interpolation::kTimm;
  WEFT_FAIL("interpolation: {} is not one of torchvision, timm{}", io::quote(text),
            io::did_you_mean(text, {"torchvision", "timm"}));
}

Tensor interpolate_positions(const Tensor& embedding, int64_t tokens, int64_t prefix,
                             Interpolation rule) {
  WEFT_CHECK(embedding.dim() == 3 && embedding.size(0) == 1 && is_floating(embedding.dtype()),
             "position embeddings: expected floats [1, tokens, width], got {}", embedding);
  const int64_t from = side_of(embedding.size(1) - prefix, embedding),
                to = side_of(tokens - prefix, embedding), width = embedding.size(2);
  const std::vector<double> weights =
      rule == Interpolation::kTorchvision ? torchvision_weights(from, to) : timm_weights(from, to);
  const std::vector<double> source = embedding.to_vector();
  const double* grid = source.data() + prefix * width;  // [from, from, width]

  const NoGrad guard;
  const Tensor result = Tensor::empty({1, tokens, width}, DType::f64);
  double* out = result.data<double>();
  out = std::copy(source.begin(), source.begin() + prefix * width, out);
  std::vector<double> columns(from * to * width, 0.0);  // [from, to, width]
  for (int64_t y = 0; y < from; ++y) {
    resample(weights, from, to, grid + y * from * width, width, &columns[y * to * width]);
  }
  std::fill(out, out + to * to * width, 0.0);
  resample(weights, from, to, columns.data(), to * width, out);
  return ops::cast(result, embedding.dtype());
}

}  // namespace weft::train
