// How attention on tensor cores is divided among blocks and warps, and what shared memory that
// takes: what the list's conditions agree on with attention_cuda_short and attention_cuda_flash.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace weft::kernels {

/// Warps of a block. Two blocks of f32 heads do not fit a multiprocessor: one has its registers.
constexpr int short_forward_warps(int64_t element_bytes) { return element_bytes == 4 ? 8 : 4; }
inline constexpr int kShortBackwardWarps = 8;
/// Queries of a chunk of backward: as many as 163 KiB hold beside ViT's 197 keys; of 16-bit heads
/// half of them are as many as the 99 KiB of consumers' cards hold.
constexpr int short_queries(int64_t element_bytes) { return element_bytes == 4 ? 16 : 64; }
constexpr int short_few_queries(int64_t element_bytes) { return element_bytes == 4 ? 16 : 32; }
inline constexpr int kShortStages = 2;  // of backward's ring of chunks

/// Columns of the tiles that hold heads of this width.
constexpr int64_t short_tile_width(int64_t width) {
  return width <= 32 ? 32 : width <= 64 ? 64 : 128;
}

/// Elements from row to row of such a tile of f32: a chunk of 16 bytes of padding.
constexpr int padded_pitch(int tile_width) { return tile_width + 4; }
constexpr int64_t short_tile_pitch(int64_t tile_width, int64_t element_bytes) {
  return element_bytes == 4 ? padded_pitch(static_cast<int>(tile_width)) : tile_width;
}

/// Keys whose scores of 16 queries a warp's registers hold beside those queries' output; in
/// backward 8 warps hold the gradients of as many.
constexpr int short_most_keys(int64_t tile_width, int64_t element_bytes) {
  if (element_bytes == 4) return tile_width == 128 ? 112 : 208;
  return tile_width == 128 ? 128 : 256;
}

/// Blocks of 16 keys for each warp of backward. Their dk and dv take half its registers.
constexpr int short_backward_rows(int64_t tile_width) { return tile_width == 128 ? 1 : 2; }

/// Forward: blocks for each head, blocks of 16 queries for each of those, and its warps.
struct ShortForward {
  int parts, row_blocks, warps;
  int64_t element_bytes;

  ShortForward(int64_t pairs, int64_t queries, int64_t element_bytes)
      : element_bytes(element_bytes) {
    constexpr int64_t kTargetBlocks = 264;  // two for each multiprocessor of an H100
    const int64_t most_row_blocks = 32 / element_bytes;
    const int64_t most_warps = short_forward_warps(element_bytes);
    const int64_t total = (queries + 15) / 16;
    const int64_t wanted =
        std::min((kTargetBlocks + pairs - 1) / pairs, std::max<int64_t>(total / most_warps, 1));
    const int64_t least = std::max((total + most_row_blocks - 1) / most_row_blocks, wanted);
    row_blocks = static_cast<int>((total + least - 1) / least);
    parts = static_cast<int>((total + row_blocks - 1) / row_blocks);
    const int rounds = static_cast<int>((row_blocks + most_warps - 1) / most_warps);
    warps = (row_blocks + rounds - 1) / rounds;
  }
  /// K, V and the block's rows of Q.
  int64_t shared_bytes(int64_t keys, int64_t tile_width) const {
    const int64_t row_bytes = short_tile_pitch(tile_width, element_bytes) * element_bytes;
    return ((keys + 15) / 16 * 2 + row_blocks) * 16 * row_bytes;
  }
};

/// Backward: the warps of a head's block, and the queries of its chunks: as many as fit `limit`
/// bytes of shared memory.
struct ShortBackward {
  int64_t tile_width, element_bytes;
  int64_t warps, tile_keys;
  int queries;

  ShortBackward(int64_t keys, int64_t tile_width, int64_t element_bytes, int64_t limit)
      : tile_width(tile_width), element_bytes(element_bytes) {
    const int64_t keys_of_warp = 16 * short_backward_rows(tile_width);
    warps = std::max<int64_t>((keys + keys_of_warp - 1) / keys_of_warp, 1);
    tile_keys = warps * keys_of_warp;
    queries = short_queries(element_bytes);
    if (shared_bytes() > limit) queries = short_few_queries(element_bytes);
  }
  /// K, V and dS; q, dout, lse and delta of each stage's queries.
  int64_t shared_bytes() const {
    const int64_t row_bytes = short_tile_pitch(tile_width, element_bytes) * element_bytes;
    const int64_t ds_bytes = short_tile_pitch(queries, element_bytes) * element_bytes;
    return tile_keys * (2 * row_bytes + ds_bytes) +
           kShortStages * 2 * queries * (row_bytes + int64_t{sizeof(float)});
  }
};

/// Of attention_cuda_flash.
struct FlashShape {
  int64_t tile_width, element_bytes;
  bool has_dropout;

  constexpr bool is_wide() const { return element_bytes == 4; }
  constexpr int stages() const { return tile_width == 128 || is_wide() ? 2 : 3; }
  /// Tokens that a stage brings: with 64 of 512 bytes backward would exceed the 163 KiB of sm_80.
  constexpr int step() const { return tile_width == 128 && is_wide() ? 32 : 64; }
  /// Forward: 16-row blocks of a warp. Two share each fragment of K and V where the registers
  /// reach.
  constexpr int row_blocks() const { return tile_width == 128 || has_dropout ? 1 : 2; }
  /// The block's own rows, Q forward, two tensors' in backward, and the ring of the others.
  constexpr int64_t shared_bytes(bool backward) const {
    const int64_t row_bytes = short_tile_pitch(tile_width, element_bytes) * element_bytes;
    const int64_t own = backward ? 2 * kFlashTile : 16 * kFlashWarps * row_blocks();
    const int64_t of_rows = backward ? int64_t{sizeof(float)} : 0;  // lse and delta
    return own * row_bytes + stages() * 2 * step() * (row_bytes + of_rows);
  }

  static constexpr int kFlashWarps = 4;
  static constexpr int kFlashTile = 64;  // tokens that a block of backward owns
};

}  // namespace weft::kernels
