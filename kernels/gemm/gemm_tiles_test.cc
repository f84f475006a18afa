// Every kernel that gemm_cuda_wgmma is made of: each width of a tile, layout of the operands and
// dtype, in halves, in ping-pong and tall, alone and in clusters of two, on cases with several
// tiles and tails in each dimension, and each end of a product. The width that a problem would get
// on its own depends on the number of its tiles.
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "core/scoped_value.h"
#include "kernels/gemm/gemm_cases.h"
#include "kernels/gemm/gemm_tiling.h"
#include "kernels/gemm/gemm_tma.h"
#include "kernels/simt/emulator.h"

using namespace weft;
using namespace weft::kernels;

namespace {

/// Checks gemm_cuda_wgmma on the case with a width of tile and blocks of a cluster, and K streamed
/// or as is chosen; the bytes of shared memory that it took, which tell the widths apart.
size_t check_tile(const OpTable& table, const std::string& name, int columns, int blocks = 1,
                  bool streams = false) {
  const ScopedValue forced(forced_wgmma_tile(), {columns, blocks, streams});
  for (const CaseEntry& entry : table.cases) {
    if (entry.name != name) continue;
    INFO(name << " in tiles of " << columns << " columns, " << blocks << " to a cluster");
    const CheckResult result = check_case(table, entry, "gemm_cuda_wgmma", entry.expected());
    CHECK(result.ran == Ran::kYes);
    CHECK(result.failure == "");
    return simt::launch_shape.dynamic_shared_bytes;
  }
  FAIL("no case " << name);
  return 0;
}

}  // namespace

TEST_CASE("Every width of wgmma's tile takes every layout and dtype") {
  const OpTable table = gemm_table();
  std::set<size_t> shared_bytes;
  for (int columns : kWgmmaTileColumns) {
    for (const char* dtype : {"f16", "bf16"}) {
      for (const char* layout : {"NN", "NT", "TN", "TT"}) {
        const std::string name =
            fmt::format("264x200x120_{0}_{0}_{1}N_bias_integers", dtype, layout);
        shared_bytes.insert(check_tile(table, name, columns));
        if (dtype[0] == 'b') check_tile(table, name, columns, 2);
      }
    }
    check_tile(table, "264x200x120_f32_f32_NTN_bias_integers_ieee_tf32", columns);
  }
  // In ping-pong 192 columns take what they take in halves.
  CHECK(shared_bytes.size() == std::size(kWgmmaTileColumns) - 1);
}

TEST_CASE("Every width of wgmma's tile has every end") {
  const OpTable table = gemm_table();
  for (int columns : kWgmmaTileColumns) {
    for (const char* dtypes : {"f16_f16", "f16_f32", "bf16_bf16", "bf16_f32"}) {
      for (const char* end : {"136x200x72_{}_NTN_bias", "136x200x72_{}_NTN_bias_gelu",
                              "136x200x72_{}_NTN_bias_dgelu_bias_gradient",
                              "136x72x40_{}_NTN_residual", "200x72x616_{}_TNN_accumulate"}) {
        const std::string name = fmt::format(fmt::runtime(end), dtypes);
        check_tile(table, name, columns);
        if (dtypes[0] == 'b') check_tile(table, name, columns, 2);
      }
    }
    for (const char* end :
         {"136x200x72_f32_f32_NTN_bias_ieee_tf32", "72x132x40_f32_f32_NTN_bias_gelu_ieee_tf32",
          "72x132x40_f32_f32_NTN_bias_dgelu_bias_gradient_ieee_tf32"}) {
      check_tile(table, end, columns);
    }
  }
}

TEST_CASE("Every width of wgmma's tile streams K, alone and in clusters") {
  const OpTable table = gemm_table();
  // Units with parts of several tiles, and tiles of several units; each end, a batch.
  for (const char* name :
       {"264x200x120_bf16_f32_TNN_bias_integers", "264x200x264_f16_f16_NTN_bias_integers",
        "72x136x584_bf16_bf16_NTN_bias_integers", "72x136x584_f16_f32_TTN_bias_integers",
        "40x72x584_bf16_bf16_NNN_dgelu_bias_gradient", "200x72x616_bf16_f32_TNN_accumulate",
        "200x72x616_f16_f16_TNN_accumulate", "[3]40x72x88_bf16_bf16_NNN"}) {
    for (int columns : {256, 192, 128}) {
      for (int blocks : {1, 2}) check_tile(table, name, columns, blocks, true);
    }
  }
}

TEST_CASE("Consumers in ping-pong take turns at tiles of more steps than stages") {
  const OpTable table = gemm_table();
  for (const char* dtype : {"f16", "bf16"}) {
    for (const char* shape : {"264x200x264", "72x776x264"}) {
      const std::string name = fmt::format("{0}_{1}_{1}_NTN_bias_integers", shape, dtype);
      for (int blocks : {1, 2}) check_tile(table, name, 2 * kPingPongColumns, blocks);
    }
  }
}
