// Waves that products of ViT-B/16 take on an H200's 132 multiprocessors.
#include "kernels/gemm/gemm_tiling.h"

#include <catch2/catch.hpp>
#include <utility>

using namespace weft::kernels;

namespace {

constexpr int64_t kTokens = 197, kPatches = 196;

/// Of all but the classifier, which has 0.2% of a layer's work and fills no device.
struct Layer {
  int64_t out, in, tokens = kTokens;
};
constexpr Layer kLayers[] = {
    {2304, 768}, {768, 768}, {3072, 768}, {768, 3072}, {768, 768, kPatches}};

}  // namespace

TEST_CASE("weight gradients of ViT-B/16 occupy 95% of the multiprocessors") {
  for (int64_t batch = 64; batch <= 512; ++batch) {
    for (const auto& [out, in, tokens] : kLayers) {
      const GemmTiling tiling = choose_tiling(1, out, in, batch * tokens, true);
      INFO(batch << " images, " << out << " x " << in << ": " << tiling.columns << " columns, "
                 << tiling.length << " steps of " << tiling.steps);
      CHECK(tiling.length > 0);
      CHECK(tiling.waves == 1);
      CHECK(tiling.occupied() >= 0.95);
      CHECK(tiling.occupied() <= 1);
      // All of K, in steps of 64.
      CHECK(tiling.steps * 64 >= batch * tokens);
      CHECK((tiling.steps - 1) * 64 < batch * tokens);
    }
  }
}

TEST_CASE("a unit of a stream has a depth that pays") {
  // A tile of 16 steps: four units of four, or as many as are asked for.
  CHECK(stream_length(1, 16, 4, 132) == 4);
  CHECK(stream_length(1, 16, 4, 3) == 6);
  CHECK(stream_length(3, 5, 4, 132) == 5);
  CHECK(stream_length(72, 394, 4, 132) == 215);
  CHECK(stream_length(1, 7, 4, 132) == 0);
}

TEST_CASE("products with many tiles have whole ones") {
  for (int64_t batch = 64; batch <= 512; ++batch) {
    for (const auto& [out, in, tokens] : kLayers) {
      // Forward, and the gradient of the input.
      for (const auto& [n, k] : {std::pair(out, in), std::pair(in, out)}) {
        const GemmTiling tiling = choose_tiling(1, batch * tokens, n, k, true);
        INFO(batch << " images, " << n << " x " << k << ": " << tiling.columns << " columns");
        CHECK(tiling.length == 0);
        // Rows are what they are: where batches are multiples of 64 they fill the last wave. Else
        // fuller waves of narrower tiles may take longer, by an H100's times.
        CHECK(tiling.occupied() >= (batch % 64 == 0 ? 0.93 : 0.75));
      }
    }
  }
  const GemmTiling square = choose_tiling(1, 8192, 8192, 8192, true);
  CHECK(square.columns == 256);
  CHECK(!square.ping_pong);
}

TEST_CASE("a width may be asked for, and tiles left whole") {
  for (int columns : {128, 192, 256}) {
    CHECK(choose_tiling(2, 768, 768, 12608, true, {}, {columns}).columns == columns);
    CHECK(choose_tiling(1, 768, 768, 12608, false, {}, {columns}).length == 0);
  }
  const GemmTiling small = choose_tiling(1, 1, 1, 1, true);
  CHECK(small.length == 0);
  CHECK(small.tiles == 1);
}

TEST_CASE("consumers work in ping-pong where an end weighs") {
  const TileEnd gelu = {tiling::kEnd + 31 * tiling::kInstruction, true};
  for (int64_t batch : {64, 128, 256}) {
    // 768 of K, and a GELU.
    CHECK(choose_tiling(1, batch * kTokens, 768, 768, true).ping_pong);
    CHECK(choose_tiling(1, batch * kTokens, 3072, 768, true, gelu).ping_pong);
  }
  // Nothing is hidden where each multiprocessor has one tile.
  CHECK(!choose_tiling(1, 1024, 2304, 768, false, gelu).ping_pong);
  CHECK(!choose_tiling(1, 12608, 768, 768, true, {}, {192}).ping_pong);
  const GemmTiling forced = choose_tiling(1, 8192, 8192, 8192, true, {}, {2 * kPingPongColumns});
  CHECK(forced.ping_pong);
  CHECK(forced.columns == kPingPongColumns);
  // Sums that TMA does not store, and those of parts of K.
  const TileEnd by_elements = {gelu.time, false};
  CHECK(!choose_tiling(1, 12608, 3072, 768, true, by_elements).ping_pong);
  const GemmTiling other =
      choose_tiling(1, 768, 768, 768, true, by_elements, {2 * kPingPongColumns});
  CHECK(!other.ping_pong);
  CHECK(other.columns == kPingPongColumns);
  CHECK(!choose_tiling(1, 768, 768, 50432, true).ping_pong);
}

TEST_CASE("blocks are paired where that is asked for") {
  CHECK(!choose_tiling(1, 8192, 8192, 8192, true).paired);
  CHECK(!choose_tiling(1, 12608, 768, 768, true).paired);
  // 99 rows of 4 tiles are three waves, 50 pairs of them four.
  const GemmTiling lone = choose_tiling(1, 12608, 768, 768, true, {}, {0, 1});
  CHECK(lone.tiles == 99 * 4);
  CHECK(lone.waves == 3);
  const GemmTiling paired = choose_tiling(1, 12608, 768, 768, true, {}, {192, 2});
  CHECK(paired.paired);
  CHECK(paired.tiles == 99 * 4);
  CHECK(paired.waves == 4);
  CHECK(!choose_tiling(1, 128, 8192, 8192, true, {}, {0, 2}).paired);
}
