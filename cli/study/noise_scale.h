// The gradient noise scale: the batch size beyond which larger batches save few steps.
//
//   B_noise = tr(Sigma) / |G|^2
//
// with G the gradient of the mean loss and Sigma the covariance of one image's. From the squared
// norms of gradients of batches of b and of B images, whose expectations are |G|^2 + tr(Sigma) / b
// and |G|^2 + tr(Sigma) / B, both are known without bias. McCandlish et al.: "An Empirical Model of
// Large-Batch Training", arXiv:1812.06162, appendix A.1.
#pragma once

#include <cstdint>
#include <string>

namespace weft::cli {

/// |g|^2 of gradients of `batch` images, in the mean.
struct GradientSquare {
  double images = 0, square = 0;
};
/// Images; NaN where the noise leaves nothing of |G|^2. Throws Error for batches of one size.
double noise_scale(const GradientSquare& small, const GradientSquare& large);

/// Of the model that a run ended with, in evaluation mode, on training images without
/// augmentation: at most `batches` batches of `images`, and all of them together, which should be
/// about as many as the scale, or noise hides |G|^2. Deterministic; measured once and kept in the
/// run's directory as noise_scale.json.
double noise_scale_of_run(const std::string& directory, int64_t batches = 64, int64_t images = 64);

}  // namespace weft::cli
