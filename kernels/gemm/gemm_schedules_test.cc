// The pipelined kernels under all eight schedules: two orders, two random ones, each with copies
// and tensor cores as early and as late as allowed. Small problems that go round each ring; the
// same bits in all.
#include <catch2/catch.hpp>
#include <cstring>

#include "core/scoped_value.h"
#include "kernels/gemm/gemm_cases.h"
#include "kernels/simt/emulator.h"

using namespace weft;
using namespace weft::kernels;

TEST_CASE("Pipelined GEMM kernels give the same bits under every schedule") {
  const OpTable table = gemm_table();
  int runs = 0;
  struct Run {
    const char *variant, *name;
    ForcedTile tile = {};
  };
  const Run kRuns[] = {{"gemm_cuda_mma", "72x136x584_bf16_bf16_TTN_bias_integers"},
                       {"gemm_cuda_mma", "264x200x120_bf16_bf16_NNN_bias_integers"},
                       {"gemm_cuda_mma_tf32", "[2]72x132x148_f32_f32_NTN_ieee_tf32"},
                       {"gemm_cuda_mma_tf32", "67x65x133_f32_f32_NTN_integers_ieee_tf32_nearest"},
                       {"gemm_cuda_wgmma", "72x136x584_bf16_bf16_TTN_bias_integers"},
                       {"gemm_cuda_wgmma", "264x200x120_bf16_bf16_NNN_bias_integers"},
                       {"gemm_cuda_wgmma", "72x136x584_f32_f32_NTN_bias_integers_ieee_tf32"},
                       {"gemm_cuda_wgmma", "264x200x120_bf16_bf16_NTN_bias_integers", {384, 1}},
                       {"gemm_cuda_wgmma", "264x200x264_bf16_bf16_NTN_bias_integers", {384, 2}},
                       {"gemm_cuda_wgmma", "72x776x264_bf16_bf16_NTN_bias_integers", {384, 1}},
                       {"gemm_cuda_wgmma", "72x136x584_bf16_bf16_TTN_bias_integers", {384, 1}},
                       {"gemm_cuda_wgmma", "264x200x264_bf16_bf16_NTN_bias_integers", {256, 2}},
                       {"gemm_cuda_wgmma", "72x136x584_bf16_bf16_TTN_bias_integers", {768, 1}},
                       {"gemm_cuda_wgmma", "264x200x264_bf16_bf16_NTN_bias_integers", {768, 2}},
                       {"gemm_cuda_wgmma_fp8", "72x136x1160_f8e4m3_bf16_NTN_bias_integers"},
                       {"gemm_cuda_wgmma_fp8", "17x24x1160_f8e4m3_f32_NTN_h100"}};
  for (const auto& [variant, name, tile] : kRuns) {
    const ScopedValue forced(forced_wgmma_tile(), tile);
    for (const CaseEntry& entry : table.cases) {
      if (entry.name != name) continue;
      std::vector<unsigned char> first;
      for (simt::Completion completion : {simt::Completion::kEager, simt::Completion::kOnWait}) {
        for (int order = 0; order < 4; ++order) {
          simt::options() = {.order = static_cast<simt::Order>(std::min(order, 2)),
                             .seed = static_cast<uint64_t>(order),
                             .completion = completion};
          INFO(variant << " " << entry.name << ", tile " << tile.columns << ", cluster "
                       << tile.blocks << ", order " << order << ", completion "
                       << static_cast<int>(completion));
          Inputs in(entry.seed);
          REQUIRE(entry.make(in)(variant) == Ran::kYes);
          const Tensor& c = in.outputs().at(0);
          const auto* bytes = static_cast<const unsigned char*>(c.raw());
          const std::vector<unsigned char> bits(bytes, bytes + c.nbytes());
          if (first.empty()) first = bits;
          CHECK(bits == first);
          ++runs;
        }
      }
    }
  }
  simt::options() = {};
  CHECK(runs == static_cast<int>(std::size(kRuns)) * 8);
}
