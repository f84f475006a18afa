// The pipelined kernels under all eight schedules: two orders, two random ones, each with copies as
// early and as late as allowed. Small problems that go round each ring; the same bits in all.
#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/attention/attention_cases.h"
#include "kernels/simt/emulator.h"

using namespace weft;
using namespace weft::kernels;

namespace {

std::vector<unsigned char> bits_of(const std::vector<Tensor>& outputs) {
  std::vector<unsigned char> bits;
  for (const Tensor& output : outputs) {
    REQUIRE(output.is_contiguous());
    const auto* bytes = static_cast<const unsigned char*>(output.raw());
    bits.insert(bits.end(), bytes, bytes + output.nbytes());
  }
  return bits;
}

/// Runs of a case whose bits were compared: 8, or 0 where there is no such case.
int runs_of(const OpTable& table, const std::string& variant, const std::string& name) {
  const auto entry = std::ranges::find(table.cases, name, &CaseEntry::name);
  if (entry == table.cases.end()) return 0;
  std::vector<unsigned char> first;
  int runs = 0;
  for (simt::Completion completion : {simt::Completion::kEager, simt::Completion::kOnWait}) {
    for (int order = 0; order < 4; ++order) {
      simt::options() = {.order = static_cast<simt::Order>(std::min(order, 2)),
                         .seed = static_cast<uint64_t>(order),
                         .completion = completion};
      INFO(variant << " " << name << ", order " << order << ", completion "
                   << static_cast<int>(completion));
      Inputs in(entry->seed);
      REQUIRE(entry->make(in)(variant) == Ran::kYes);
      const std::vector<unsigned char> bits = bits_of(in.outputs());
      if (first.empty()) first = bits;
      CHECK(bits == first);
      ++runs;
    }
  }
  simt::options() = {};
  return runs;
}

}  // namespace

TEST_CASE("Pipelined attention kernels give the same bits under every schedule") {
  const OpTable table = attention_table();
  const auto check = [&](const std::string& variant, const std::string& name) {
    CHECK(runs_of(table, variant, name) == 8);
  };
  for (const char* width : {"8", "40", "72"}) {
    const std::string longest = width == std::string("72") ? "290" : "450";
    check("attention_cuda_flash", fmt::format("1x1x18x{}x{}_bf16", longest, width));
    check("attention_cuda_flash", fmt::format("1x1x18x{}x{}_bf16_backward", longest, width));
    check("attention_cuda_flash", fmt::format("1x1x{}x18x{}_bf16_backward", longest, width));
    check("attention_cuda_short", fmt::format("1x1x{}x18x{}_bf16", longest, width));
    check("attention_cuda_short", fmt::format("1x1x{}x18x{}_bf16_backward", longest, width));
  }
  check("attention_cuda_short", "1x1x197x197x32_bf16");
  check("attention_cuda_short", "1x1x197x197x32_bf16_backward");
  // Hopper: several steps of the ring and several tiles of a block.
  for (const char* name :
       {"1x3x150x197x64_bf16", "2x2x260x260x64_bf16_causal_fused", "1x1x70x300x80_bf16",
        "1x1x20x200x136_bf16", "2x4x70x150x40_bf16_masked_keys_shared_by_2",
        "1x2x70x197x128_bf16_dropout_added_mask_shared_by_2"}) {
    check("attention_cuda_wgmma", name);
  }
  for (const char* name :
       {"1x1x70x300x80_bf16_backward", "2x4x70x150x40_bf16_backward_masked_keys_shared_by_2",
        "2x2x260x260x64_bf16_backward_causal_fused",
        "1x2x70x197x128_bf16_backward_dropout_added_mask_shared_by_2",
        "1x2x70x150x136_bf16_backward_dropout"}) {
    check("attention_cuda_wgmma_backward", name);
  }
  // TF32: rings of fewer stages, and for wide heads of shorter ones.
  for (const char* shape : {"450x8", "290x40", "146x120"}) {
    const std::string forward = fmt::format("1x1x18x{}_f32_tf32", shape);
    const std::string backward = fmt::format("1x1x18x{}_f32_backward_tf32", shape);
    check("attention_cuda_flash", forward);
    check("attention_cuda_flash", backward);
  }
  for (const char* name : {"1x1x450x18x8", "1x1x146x18x120", "1x1x197x197x32"}) {
    check("attention_cuda_short", fmt::format("{}_f32_tf32", name));
    check("attention_cuda_flash", fmt::format("{}_f32_backward_tf32", name));
    check("attention_cuda_short", fmt::format("{}_f32_backward_tf32", name));
  }
}
