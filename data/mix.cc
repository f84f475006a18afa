#include "data/mix.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "data/random.h"

namespace weft::data {
namespace {

// Calls f(rows_i, rows_{i-1}), the latter as it was before.
template <class F>
void with_previous(float* rows, int64_t count, int64_t length, F&& f) {
  // Needed once more when the first is reached.
  const std::vector<float> last(rows + (count - 1) * length, rows + count * length);
  for (int64_t i = count - 1; i >= 0; --i) {
    float* row = rows + i * length;
    f(row, i > 0 ? row - length : last.data());
  }
}

// rows_i = keep * rows_i + (1 - keep) * rows_{i-1}
void blend_with_previous(float* rows, int64_t count, int64_t length, float keep) {
  if (count < 2) return;
  with_previous(rows, count, length, [&](float* row, const float* previous) {
    for (int64_t k = 0; k < length; ++k) row[k] = keep * row[k] + (1 - keep) * previous[k];
  });
}

}  // namespace

void one_hot(std::span<const int64_t> labels, int64_t classes, float* soft_labels) {
  std::fill_n(soft_labels, static_cast<int64_t>(labels.size()) * classes, 0.0f);
  for (const int64_t label : labels) {
    WEFT_CHECK(label >= 0 && label < classes, "one_hot: label {} of {} classes", label, classes);
    soft_labels[label] = 1;
    soft_labels += classes;
  }
}

void check_mixing(const char* name, double alpha) {
  WEFT_CHECK(alpha == 0 || (alpha >= 0.001 && alpha <= 1000),
             "{}: expected 0, or a number in [0.001, 1000], got {}", name, alpha);
}

Mixing mixup(float lambda) { return {.keep = lambda, .keep_labels = lambda}; }

Mixing cutmix(float lambda, int size, Philox& random) {
  const auto centre_x = static_cast<int>(random.below(size));
  const auto centre_y = static_cast<int>(random.below(size));
  const auto half = static_cast<int>(0.5f * std::sqrt(1 - lambda) * static_cast<float>(size));
  const int left = std::max(centre_x - half, 0), right = std::min(centre_x + half, size);
  const int top = std::max(centre_y - half, 0), bottom = std::min(centre_y + half, size);
  const float cut = static_cast<float>((right - left) * (bottom - top)) /
                    (static_cast<float>(size) * static_cast<float>(size));
  return {.cut = {top, left, bottom - top, right - left}, .keep_labels = 1 - cut};
}

Mixing draw_mixing(double mixup_alpha, double cutmix_alpha, int size, Philox& random) {
  const bool take_mixup = mixup_alpha > 0 && (cutmix_alpha <= 0 || chance(random, 0.5));
  if (take_mixup) return mixup(static_cast<float>(beta_variable(random, mixup_alpha)));
  if (cutmix_alpha <= 0) return {};
  const auto lambda = static_cast<float>(beta_variable(random, cutmix_alpha));
  return cutmix(lambda, size, random);
}

void apply(const Mixing& mixing, const MixedBatch& batch) {
  const int64_t size = batch.size;
  if (mixing.keep != 1)
    blend_with_previous(batch.images, batch.batch, 3 * size * size, mixing.keep);
  const Window& cut = mixing.cut;
  if (cut.height > 0 && cut.width > 0) {
    with_previous(batch.images, batch.batch, 3 * size * size,
                  [&](float* image, const float* previous) {
                    for (int c = 0; c < 3; ++c) {
                      for (int y = cut.top; y < cut.top + cut.height; ++y) {
                        const int64_t first = (c * size + y) * size + cut.left;
                        std::copy_n(previous + first, cut.width, image + first);
                      }
                    }
                  });
  }
  apply_to_labels(mixing, batch.soft_labels, batch.batch, batch.classes);
}

void apply_to_labels(const Mixing& mixing, float* soft_labels, int64_t batch, int64_t classes) {
  blend_with_previous(soft_labels, batch, classes, mixing.keep_labels);
}

}  // namespace weft::data
