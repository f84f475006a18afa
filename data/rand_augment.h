// RandAugment: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced
// search space", 2019, with torchvision's operations, magnitudes (31 bins) and PIL's arithmetic.
#pragma once

#include "core/philox.h"
#include "data/image.h"

namespace weft::data {

enum class Operation {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
};
inline constexpr int kOperations = 14;
inline constexpr int kMagnitudes = 31;

/// The parameter of an operation at magnitude 0..30 for a height x width image: shear as a
/// tangent, translation in pixels, rotation in degrees, colour changes as an offset from factor 1,
/// bits kept by posterize, the threshold of solarize. Shear, translation, rotation and colour
/// changes also occur negated.
double operation_parameter(Operation operation, int magnitude, int height, int width);
bool is_signed(Operation operation);

/// Applies one operation. Geometric ones take the nearest pixel and fill with black.
Image apply_operation(const Image& image, Operation operation, double parameter);

/// Applies `count` uniformly chosen operations, signed ones negated with probability 1/2.
Image rand_augment(const Image& image, int count, int magnitude, Philox& random);

}  // namespace weft::data
