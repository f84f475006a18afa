// Blending the images of a batch with one another, labels with them.
//
// Each example is paired with the one before it in the batch, the first with the last, as in
// torchvision: the order of a batch is random already.
#pragma once

#include <cstdint>
#include <span>

#include "core/philox.h"
#include "data/transforms.h"

namespace weft::data {

/// A batch in place: images [batch, 3, size, size], soft labels [batch, classes], row-major.
struct MixedBatch {
  float* images;
  float* soft_labels;
  int64_t batch;
  int size;
  int64_t classes;
};

/// One-hot rows.
void one_hot(std::span<const int64_t> labels, int64_t classes, float* soft_labels);

/// What is done to a batch: x_i = keep x_i + (1 - keep) x_{i-1}, then inside of `cut` x_i =
/// x_{i-1}; labels are blended with a weight of their own.
struct Mixing {
  float keep = 1;
  Window cut = {};
  float keep_labels = 1;
};

/// Throws Error for a parameter of the beta distribution that is neither 0, for none, nor in
/// [0.001, 1000]: beyond, f64 has no such random numbers.
void check_mixing(const char* name, double alpha);

/// Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2017:
/// x_i = lambda x_i + (1 - lambda) x_{i-1}, labels likewise.
Mixing mixup(float lambda);
/// Yun et al., "CutMix", 2019: a rectangle of area about 1 - lambda around a random centre, cut off
/// at the border, comes from x_{i-1}; labels are weighted by the areas. The same rectangle for the
/// whole batch, of images size x size.
Mixing cutmix(float lambda, int size, Philox& random);
/// Draws lambda from Beta(alpha, alpha) for mixup, cutmix or, when both alphas are positive, one of
/// the two with equal probability.
Mixing draw_mixing(double mixup_alpha, double cutmix_alpha, int size, Philox& random);

/// A batch of one stays as it is.
void apply(const Mixing& mixing, const MixedBatch& batch);
/// Of labels alone, [batch, classes].
void apply_to_labels(const Mixing& mixing, float* soft_labels, int64_t batch, int64_t classes);

}  // namespace weft::data
