// Transposition through shared memory: a block reads a tile of 32 x 32 elements along the dimension
// in which x is dense and writes it along the one in which y is, so that both sides move whole
// sectors. The tile's rows are one element longer than a bank cycle: columns are read without
// conflicts. Memory-bound.
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/cuda.h"
#include "kernels/elementwise/walk.h"

namespace weft::kernels {
namespace {

constexpr int kTile = 32, kRows = 8;

struct Transposition {
  const void* x;
  void* y;
  int64_t rows, columns;    // sizes of the dimensions dense in y and in x
  int64_t x_row, y_column;  // strides of the other tensor there
  int64_t row_tiles, column_tiles;
  int outer_dims;
  int64_t outer[kMaxDims], x_outer[kMaxDims], y_outer[kMaxDims];
};

/// A block moves a tile: the blocks number the tiles of all matrices in row-major order. Thread (a,
/// b) moves column a of the tile's rows b, b + 8, ...
template <class Word>
__global__ void __launch_bounds__(kTile* kRows) transpose_kernel(Transposition t) {
  WEFT_SHARED(Word, tile, [kTile][kTile + 1]);
  int64_t rest = blockIdx.x, x_base = 0, y_base = 0;
  const int64_t first_column = rest % t.column_tiles * kTile;
  rest /= t.column_tiles;
  const int64_t first_row = rest % t.row_tiles * kTile;
  rest /= t.row_tiles;
  for (int d = t.outer_dims - 1; d >= 0; --d) {
    const int64_t place = rest % t.outer[d];
    rest /= t.outer[d];
    x_base += place * t.x_outer[d];
    y_base += place * t.y_outer[d];
  }
  const Word* x = static_cast<const Word*>(t.x) + x_base;
  Word* y = static_cast<Word*>(t.y) + y_base;
  const int a = static_cast<int>(threadIdx.x), b = static_cast<int>(threadIdx.y);
  for (int r = b; r < kTile; r += kRows) {
    const int64_t row = first_row + r, column = first_column + a;
    if (row < t.rows && column < t.columns) tile[r][a] = x[row * t.x_row + column];
  }
  __syncthreads();
  for (int c = b; c < kTile; c += kRows) {
    const int64_t row = first_row + a, column = first_column + c;
    if (row < t.rows && column < t.columns) y[column * t.y_column + row] = tile[a][c];
  }
}

}  // namespace

void copy_cuda_tiles(const CopyProblem& p) {
  if (p.x.numel() == 0) return;
  const Walk walk({p.y, p.x});
  // y is dense in the walk's last dimension, x in another.
  const int row_dim = walk.shape().size() - 1;
  int column_dim = 0;
  while (walk.strides(1)[column_dim] != 1) ++column_dim;
  Transposition t = {};
  t.x = p.x.raw();
  t.y = p.y.raw();
  t.rows = walk.shape()[row_dim];
  t.columns = walk.shape()[column_dim];
  t.x_row = walk.strides(1)[row_dim];
  t.y_column = walk.strides(0)[column_dim];
  t.row_tiles = (t.rows + kTile - 1) / kTile;
  t.column_tiles = (t.columns + kTile - 1) / kTile;
  int64_t tiles = t.row_tiles * t.column_tiles;
  for (int d = 0; d < row_dim; ++d) {
    if (d == column_dim) continue;
    t.outer[t.outer_dims] = walk.shape()[d];
    t.x_outer[t.outer_dims] = walk.strides(1)[d];
    t.y_outer[t.outer_dims] = walk.strides(0)[d];
    ++t.outer_dims;
    tiles *= walk.shape()[d];
  }
  const auto grid = static_cast<unsigned>(tiles);
  const dim3 block(kTile, kRows);
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  with_word(p.x.itemsize(), [&](auto word) {
    WEFT_LAUNCH(transpose_kernel<decltype(word)>, grid, block, 0, stream, t);
  });
}

}  // namespace weft::kernels
