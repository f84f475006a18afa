// Plain loops over the header's operations, each rounded to f32: the bound is 0.
#include "kernels/normalize_images/normalize_images.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> normalize_images_reference(const NormalizeImagesProblem& p) {
  const int64_t images = p.x.size(0), height = p.x.size(2), width = p.x.size(3);
  const auto* x = p.x.data<uint8_t>();
  const float* values = p.values.data<float>();
  const auto inside = [](int64_t h, int64_t w, const auto& r) {
    return h >= r[0] && h < r[0] + r[2] && w >= r[1] && w < r[1] + r[3];
  };
  const auto element = [&](int64_t n, int64_t c, int64_t h, int64_t w) {
    if (p.erased.defined() && inside(h, w, p.erased.data<int32_t>() + 4 * n)) return 0.0f;
    return values[256 * c + x[((n * 3 + c) * height + h) * width + w]];
  };
  const std::vector<int> cut = {p.cut_top, p.cut_left, p.cut_height, p.cut_width};
  Expected expected;
  for (int64_t n = 0; n < images; ++n) {
    const int64_t previous = n > 0 ? n - 1 : images - 1;
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t h = 0; h < height; ++h) {
        for (int64_t w = 0; w < width; ++w) {
          float value = element(n, c, h, w);
          if (p.keep != 1) {
            const float mine = p.keep * value, other = (1 - p.keep) * element(previous, c, h, w);
            value = mine + other;
          }
          if (inside(h, w, cut)) value = element(previous, c, h, w);
          expected.add(numerics::round_to(value, p.dtype()), 0);
        }
      }
    }
  }
  return {expected};
}

}  // namespace weft::kernels
