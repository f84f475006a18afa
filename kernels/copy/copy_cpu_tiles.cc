// Copies whose two sides have unit stride in different dimensions: transposes and most
// permutations.
//
// A tile is as many rows and columns as a cache line has elements. It is read whole lines at a time
// into a buffer and written whole lines at a time from it, so that strides of a power of two, which
// map all rows to one set of the cache, cost no line twice. In between squares of 16 bytes are
// turned in registers. Memory-bound, at whole lines from many pages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/copy/copy.h"
#include "kernels/elementwise/walk.h"

namespace weft::kernels {
namespace {

/// The dimension, other than the last, along which x has unit stride; -1 if none.
int column_dimension(const Walk& walk) {
  if (walk.numel() == 0 || walk.stride(0) != 1 || walk.stride(1) == 1) return -1;
  for (int d = 0; d + 1 < walk.shape().size(); ++d) {
    if (walk.strides(1)[d] == 1) return d;
  }
  return -1;
}

template <class Word>
constexpr int kSquare = 16 / sizeof(Word);
template <class Word>
using Vector [[gnu::vector_size(16)]] = Word;

/// The lower (half 0) or upper halves of a and b, element by element in turn.
template <int half, class Word, size_t... i>
Vector<Word> interleave(Vector<Word> a, Vector<Word> b, std::index_sequence<i...>) {
  constexpr int n = kSquare<Word>;
  return __builtin_shufflevector(a, b, (int{i} / 2 + int{i} % 2 * n + half * n / 2)...);
}

/// y (j, i) = x (i, j) for a square of 16 bytes by 16 bytes; strides in elements. Each of log2(n)
/// rounds interleaves row i with row i + n / 2.
template <class Word>
void transpose_square(const Word* x, int64_t x_stride, Word* y, int64_t y_stride) {
  constexpr int n = kSquare<Word>;
  constexpr auto kIndices = std::make_index_sequence<n>();
  Vector<Word> rows[n], turned[n];
  for (int i = 0; i < n; ++i) std::memcpy(&rows[i], x + i * x_stride, 16);
  for (int round = 1; round < n; round *= 2) {
    for (int i = 0; i < n / 2; ++i) {
      turned[2 * i] = interleave<0, Word>(rows[i], rows[i + n / 2], kIndices);
      turned[2 * i + 1] = interleave<1, Word>(rows[i], rows[i + n / 2], kIndices);
    }
    std::copy_n(turned, n, rows);
  }
  for (int i = 0; i < n; ++i) std::memcpy(y + i * y_stride, &rows[i], 16);
}

template <class Word>
void copy_tiles(const Walk& walk, const Word* x, Word* y) {
  constexpr int64_t kTile = 64 / sizeof(Word);
  const int a = column_dimension(walk), b = walk.shape().size() - 1;
  const int64_t size_a = walk.shape()[a], size_b = walk.shape()[b];
  const int64_t x_stride = walk.strides(1)[b], y_stride = walk.strides(0)[a];
  // What remains when both dimensions of the tile are taken out, and strips of tiles along b.
  Shape outer = walk.shape();
  Strides x_outer(walk.strides(1)), y_outer(walk.strides(0));
  for (Shape* s : {&outer, &x_outer, &y_outer}) {
    s->erase(b);
    s->erase(a);
  }
  const int64_t strips = (size_a + kTile - 1) / kTile;
  const int64_t elements = std::max<int64_t>(1, std::min(kTile, size_a) * size_b);
  const int64_t grain = std::max<int64_t>(1, 32768 / elements);
  parallel_for(numel(outer) * strips, grain, [&](int64_t begin, int64_t end) {
    alignas(64) Word tile[kTile * kTile];  // (a, b)
    for (int64_t task = begin; task < end; ++task) {
      const Word* source = x;
      Word* target = y;
      int64_t rest = task / strips;
      for (int d = outer.size() - 1; d >= 0; --d) {
        source += rest % outer[d] * x_outer[d];
        target += rest % outer[d] * y_outer[d];
        rest /= outer[d];
      }
      const int64_t a0 = task % strips * kTile, na = std::min(kTile, size_a - a0);
      source += a0;
      target += a0 * y_stride;
      for (int64_t b0 = 0; b0 < size_b; b0 += kTile) {
        const int64_t nb = std::min(kTile, size_b - b0);
        if (na == kTile && nb == kTile) {
          for (int64_t j = 0; j < kTile; j += kSquare<Word>) {
            for (int64_t i = 0; i < kTile; i += kSquare<Word>) {
              transpose_square(source + (b0 + j) * x_stride + i, x_stride, tile + i * kTile + j,
                               kTile);
            }
          }
          for (int64_t i = 0; i < kTile; ++i) {
            std::copy_n(tile + i * kTile, kTile, target + i * y_stride + b0);
          }
        } else {
          for (int64_t i = 0; i < na; ++i) {
            for (int64_t j = 0; j < nb; ++j) {
              target[i * y_stride + b0 + j] = source[i + (b0 + j) * x_stride];
            }
          }
        }
      }
    }
  });
}

}  // namespace

bool is_transposition(const CopyProblem& p) {
  if (p.x.dtype() != p.y.dtype()) return false;
  const Walk walk({p.y, p.x});
  const int column = column_dimension(walk);
  return column >= 0 && walk.shape()[column] >= 4 && walk.shape().back() >= 4;
}

void copy_cpu_tiles(const CopyProblem& p) {
  const Walk walk({p.y, p.x});
  with_word(p.x.itemsize(), [&]<class Word>(Word) {
    copy_tiles(walk, static_cast<const Word*>(p.x.raw()), static_cast<Word*>(p.y.raw()));
  });
}

}  // namespace weft::kernels
