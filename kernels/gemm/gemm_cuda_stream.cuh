// Few large tiles leave most of a GPU idle when K is long, as in the gradient of a weight. Blocks
// then take stretches of equal length of all tiles' K, one tile's behind the other's, whatever
// tiles they begin and end in (stream-K: Osama et al., arXiv:2301.03598): all multiprocessors
// multiply to the end, and a tile has two or three pieces. A piece's sums lie in memory as they lay
// in registers; a second kernel adds a tile's pieces in order: the same bits in every run, as no
// atomics of floats would give.
#pragma once

#include "kernels/gemm/gemm_cuda_split.cuh"

namespace weft::kernels {

/// How units of work share the tiles' steps of K.
struct Stream {
  uint32_t tiles = 0, steps = 0;  // of a tile
  uint32_t length = 0;            // of a unit, in steps; 0: a unit is a tile
  uint32_t units = 0;

  static Stream whole(uint32_t tiles, uint32_t steps) { return {tiles, steps, 0, tiles}; }
  static Stream of_length(uint32_t tiles, uint32_t steps, uint32_t length) {
    return {tiles, steps, length, (tiles * steps + length - 1) / length};
  }

  /// Slots for pieces' sums. A piece of a unit and a tile has their sum as its number: both grow
  /// along the stream, one at a time.
  __host__ __device__ uint32_t slots() const { return tiles + units; }
  /// The first and the last unit that has a piece of a tile.
  __device__ uint32_t first_unit(uint32_t tile) const { return tile * steps / length; }
  __device__ uint32_t last_unit(uint32_t tile) const { return ((tile + 1) * steps - 1) / length; }

  /// Calls f(tile, slot, first step, steps) for the pieces of the units first, first + step, ...
  /// The last tile's piece comes first: units that begin a tile do so all at one time.
  template <class F>
  __device__ __forceinline__ void for_each_piece(uint32_t first, uint32_t step, F f) const {
    for (uint32_t unit = first; unit < units; unit += step) {
      uint32_t tile = unit, origin = 0, begin = 0, end = steps;  // in the stream, or in the tile
      if (length > 0) {
        begin = unit * length;
        end = min(begin + length, tiles * steps);
        tile = (end - 1) / steps;
        origin = tile * steps;
      }
      do {
        const uint32_t from = max(begin, origin);
        f(tile, unit + tile, static_cast<int>(from - origin), static_cast<int>(end - from));
        end = from;
        origin -= steps;
        --tile;
      } while (end > begin);
    }
  }
  /// The step that a piece of steps from..from + count begins with; behind its last comes `from`.
  /// Units of whatever tiles so go through the same stretch of K at one time, and share its rows of
  /// A and B in the second-level cache.
  __device__ __forceinline__ int start(int from, int count) const {
    const int unit = static_cast<int>(length);
    if (unit == 0) return from;
    const int aligned = (from + unit - 1) / unit * unit;
    return aligned < from + count ? aligned : from;
  }
};

}  // namespace weft::kernels
