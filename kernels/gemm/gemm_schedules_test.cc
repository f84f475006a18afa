// The pipelined kernels under all eight schedules: two orders, two random ones, each with copies
// and tensor cores as early and as late as allowed. Small problems that go round each ring; the
// same bits in all.
#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/gemm/gemm_cases.h"
#include "kernels/simt/emulator.h"

using namespace weft;
using namespace weft::kernels;

TEST_CASE("Pipelined GEMM kernels give the same bits under every schedule") {
  const OpTable table = gemm_table();
  int runs = 0;
  for (const char* variant : {"gemm_cuda_mma", "gemm_cuda_wgmma"}) {
    for (const CaseEntry& entry : table.cases) {
      if (entry.name != "72x136x584_bf16_bf16_TTN_bias_integers" &&
          entry.name != "264x200x120_bf16_bf16_NNN_bias_integers") {
        continue;
      }
      std::vector<unsigned char> first;
      for (simt::Completion completion : {simt::Completion::eager, simt::Completion::on_wait}) {
        for (int order = 0; order < 4; ++order) {
          simt::options() = {.order = static_cast<simt::Order>(std::min(order, 2)),
                             .seed = static_cast<uint64_t>(order),
                             .completion = completion};
          INFO(variant << " " << entry.name << ", order " << order << ", completion "
                       << static_cast<int>(completion));
          Inputs in(entry.seed);
          REQUIRE(entry.make(in)(variant) == Ran::yes);
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
  CHECK(runs == 2 * 2 * 8);
}
