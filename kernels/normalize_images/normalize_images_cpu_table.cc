// A plane of an image at a time: bytes to numbers through the channel's table, a row's previous
// image beside it where images are mixed, then one conversion of the row. Memory-bound.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "kernels/elementwise/convert.h"
#include "kernels/normalize_images/normalize_images.h"

namespace weft::kernels {

void normalize_images_cpu_table(const NormalizeImagesProblem& p) {
  const int64_t images = p.x.size(0), height = p.x.size(2), width = p.x.size(3);
  const auto* x = p.x.data<uint8_t>();
  const auto item = static_cast<int64_t>(p.y.itemsize());
  // A row of an image's plane, erased.
  const auto read_row = [&](int64_t n, int64_t c, int64_t h, float* row) {
    const float* const values = p.values.data<float>() + 256 * c;
    const uint8_t* const bytes = x + ((n * 3 + c) * height + h) * width;
    for (int64_t w = 0; w < width; ++w) row[w] = values[bytes[w]];
    if (!p.erased.defined()) return;
    const int32_t* const r = p.erased.data<int32_t>() + 4 * n;
    if (h >= r[0] && h < r[0] + r[2]) std::fill_n(row + r[1], r[3], 0.0f);
  };
  parallel_for(images * 3, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(width), other(width);
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t n = plane / 3, c = plane % 3, previous = n > 0 ? n - 1 : images - 1;
      for (int64_t h = 0; h < height; ++h) {
        read_row(n, c, h, row.data());
        const bool is_cut = h >= p.cut_top && h < p.cut_top + p.cut_height && p.cut_width > 0;
        if (p.keep != 1 || is_cut) read_row(previous, c, h, other.data());
        if (p.keep != 1) {
          for (int64_t w = 0; w < width; ++w) {
            row[w] = p.keep * row[w] + (1 - p.keep) * other[w];
          }
        }
        if (is_cut) std::copy_n(other.data() + p.cut_left, p.cut_width, row.data() + p.cut_left);
        auto* const to = static_cast<std::byte*>(p.y.raw()) + (plane * height + h) * width * item;
        convert(row.data(), DType::f32, to, p.dtype(), width);
      }
    }
  });
}

}  // namespace weft::kernels
