// The built-in image set: ten kinds of figure, drawn, not read.
//
// Ten classes of 32 x 32 colour images: disc, ring, square, triangle, cross, star, crescent,
// stripes, checkerboard, dots. The figure's place, size, turn, proportions and colours, the sloped
// background, up to two strokes or spots laid under it and the noise are all drawn at random, and
// a figure is as often darker than its ground as brighter. What tells the classes apart is shape
// alone: a linear classifier on the pixels, the nearest neighbour and a colour histogram all stay
// below 40% (data/sets/builtin_test.cc), while a convolution or attention over patches learns it.
//
// The images are a function of split and index: the same bits whatever the number of threads.
#pragma once

#include <cstdint>

#include "data/dataset.h"

namespace weft::data {

enum class BuiltinPart { kTrain, kValidation, kTest };

/// Draws one split, in well under a second on all threads: 12,000, 1,000 and 2,000 images, every
/// class equally often.
DatasetPtr builtin_images(BuiltinPart part);

/// Draws image `index` of a part; its class is index % 10.
Image draw_builtin_image(BuiltinPart part, int64_t index);

}  // namespace weft::data
