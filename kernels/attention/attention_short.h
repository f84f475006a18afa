// How attention over few keys is divided among blocks and warps, and what shared memory that takes:
// what the list's condition and attention_cuda_short agree on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace weft::kernels {

inline constexpr int kShortForwardWarps = 4, kShortBackwardWarps = 8;
inline constexpr int kShortQueries = 64;  // of a chunk of backward
inline constexpr int kShortStages = 2;    // of backward's ring of chunks
/// What a block may have on every architecture that the kernels are built for.
inline constexpr int64_t kShortSharedBytes = int64_t{163} << 10;

/// Columns of the tiles that hold heads of this width.
constexpr int64_t short_tile_width(int64_t width) {
  return width <= 32 ? 32 : width <= 64 ? 64 : 128;
}

/// Keys whose scores of 16 queries a warp's registers hold beside those queries' output; in
/// backward 8 warps hold the gradients of as many.
constexpr int short_most_keys(int64_t tile_width) { return tile_width == 128 ? 128 : 256; }

/// Blocks of 16 keys for each warp of backward. Their dk and dv take half its registers.
constexpr int short_backward_rows(int64_t tile_width) { return tile_width == 128 ? 1 : 2; }

/// Forward: blocks for each head, blocks of 16 queries for each of those, and its warps.
struct ShortForward {
  int parts, row_blocks, warps;

  ShortForward(int64_t pairs, int64_t queries) {
    constexpr int64_t kTargetBlocks = 264;  // two for each multiprocessor of an H100
    constexpr int64_t kMostRowBlocks = 16;
    const int64_t total = (queries + 15) / 16;
    const int64_t wanted = std::min((kTargetBlocks + pairs - 1) / pairs,
                                    std::max<int64_t>(total / kShortForwardWarps, 1));
    const int64_t least = std::max((total + kMostRowBlocks - 1) / kMostRowBlocks, wanted);
    row_blocks = static_cast<int>((total + least - 1) / least);
    parts = static_cast<int>((total + row_blocks - 1) / row_blocks);
    const int rounds = (row_blocks + kShortForwardWarps - 1) / kShortForwardWarps;
    warps = (row_blocks + rounds - 1) / rounds;
  }
  /// K, V and the block's rows of Q.
  int64_t shared_bytes(int64_t keys, int64_t tile_width) const {
    return ((keys + 15) / 16 * 2 + row_blocks) * 16 * tile_width * 2;
  }
};

/// Backward: the warps of a head's block.
struct ShortBackward {
  int64_t warps, tile_keys;

  ShortBackward(int64_t keys, int64_t tile_width) {
    const int64_t keys_of_warp = 16 * short_backward_rows(tile_width);
    warps = std::max<int64_t>((keys + keys_of_warp - 1) / keys_of_warp, 1);
    tile_keys = warps * keys_of_warp;
  }
  /// K, V and dS; q, dout, lse and delta of each stage's queries.
  int64_t shared_bytes(int64_t tile_width) const {
    return tile_keys * (2 * tile_width + kShortQueries) * 2 +
           int64_t{kShortStages} * 2 * kShortQueries * (tile_width * 2 + 4);
  }
};

}  // namespace weft::kernels
