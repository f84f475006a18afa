// Waves that products of ViT-B/16 take on an H200's 132 multiprocessors.
#include "kernels/gemm/gemm_tiling.h"

#include <catch2/catch.hpp>
#include <utility>

using namespace weft::kernels;

namespace {

constexpr int64_t kTokens = 197;
constexpr std::pair<int64_t, int64_t> kLayers[] = {
    {768, 768}, {2304, 768}, {3072, 768}, {768, 3072}};

}  // namespace

TEST_CASE("weight gradients of ViT-B/16 occupy 95% of the multiprocessors") {
  for (int64_t batch = 64; batch <= 512; batch += 32) {
    for (const auto& [out, in] : kLayers) {
      const GemmTiling tiling = choose_tiling(1, out, in, batch * kTokens, true);
      INFO(batch << " images, " << out << " x " << in << ": " << tiling.columns << " columns, "
                 << tiling.parts << " parts");
      CHECK(tiling.occupied() >= 0.95);
      // All of K, in steps of 64; no part is empty.
      CHECK(tiling.depth * tiling.parts >= batch * kTokens);
      CHECK(tiling.depth * (tiling.parts - 1) < batch * kTokens);
      CHECK(tiling.depth % 64 == 0);
    }
  }
}

TEST_CASE("products with many tiles are not split") {
  for (int64_t batch : {64, 128, 256, 512}) {
    for (const auto& [out, in] : kLayers) {
      const GemmTiling tiling = choose_tiling(1, batch * kTokens, out, in, true);
      INFO(batch << " images, " << out << " x " << in << ": " << tiling.columns << " columns");
      CHECK(tiling.parts == 1);
      CHECK(tiling.depth == in);
      CHECK(tiling.occupied() >= 0.95);
    }
  }
  CHECK(choose_tiling(1, 8192, 8192, 8192, true).columns == 256);
}

TEST_CASE("a width may be asked for, and K left whole") {
  for (int columns : {128, 192, 256}) {
    CHECK(choose_tiling(2, 768, 768, 12608, true, columns).columns == columns);
    const GemmTiling whole = choose_tiling(1, 768, 768, 12608, false, columns);
    CHECK(whole.parts == 1);
    CHECK(whole.depth == 12608);
  }
  const GemmTiling small = choose_tiling(1, 1, 1, 1, true);
  CHECK(small.parts == 1);
  CHECK(small.tiles == 1);
}
