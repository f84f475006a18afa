// What is read from nvdisasm's and ptxas's words: a kernel with a loop in a loop.
#include "cli/report/machine_code.h"

#include <catch2/catch.hpp>

using namespace weft::cli;

namespace {

constexpr const char* kDisassembly = R"(
	.headerflags	@"EF_CUDA_SM90"
.text._ZN4weft7kernels12_GLOBAL__N_16kernelILi2EEEvPf:
        .type           kernel,@function
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8 ;
.L_x_1:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   STL [R1+0x4], R4 ;
.L_x_2:
        /*0040*/                   MUFU.EX2 R4, R4 ;
        /*0050*/              @!P0 FFMA R4, R4, R4, R5 ;
        /*0060*/                   MUFU.EX2 R6, R6 ;
        /*0070*/                   STG.E.U16 desc[UR4][R2.64], R4 ;
        /*0080*/               @P1 BRA `(.L_x_2) ;
        /*0090*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24 ;
        /*00a0*/                   CALL.REL.NOINC `(helper) ;
        /*00b0*/              @!P2 BRA P3, `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.L_x_3:
        /*00d0*/                   BRA `(.L_x_3);
)";

constexpr const char* kPtxas =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function '_ZN4weft7kernels12_GLOBAL__N_16kernelILi2EEEvPf' "
    "for "
    "'sm_90a'\n"
    "ptxas info    : Function properties for _ZN4weft7kernels12_GLOBAL__N_16kernelILi2EEEvPf\n"
    "    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
    "ptxas info    : Function properties for helper\n"
    "    64 bytes stack frame, 40 bytes spill stores, 80 bytes spill loads\n"
    "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n";

int in_pipe(const CodeLoop& loop, Pipe pipe) { return loop.mix[static_cast<size_t>(pipe)]; }

}  // namespace

TEST_CASE("a kernel's figures and its loops are read") {
  const std::vector<KernelCode> kernels = read_machine_code(kDisassembly, kPtxas);
  REQUIRE(kernels.size() == 1);
  const KernelCode& kernel = kernels[0];
  CHECK(kernel.name == "kernel<2>");
  CHECK(kernel.instructions == 14);
  CHECK(kernel.registers == 168);
  CHECK(kernel.most_registers == 232);
  CHECK(kernel.shared_bytes == 1024);
  CHECK(kernel.stack_bytes == 16);
  CHECK(kernel.spilled_bytes == 12);
  // 12 warps of 168 registers, of 64.
  CHECK(kernel.occupancy(64) == 12.0 / 64);

  REQUIRE(kernel.loops.size() == 2);
  const CodeLoop &outer = kernel.loops[0], &inner = kernel.loops[1];
  CHECK(outer.depth == 0);
  CHECK(outer.instructions == 5);  // without the inner loop's
  CHECK(outer.loaded_bytes == 16);
  CHECK(outer.calls == 1);
  CHECK(in_pipe(outer, Pipe::kTensor) == 1);
  CHECK(in_pipe(outer, Pipe::kLocal) == 1);
  CHECK(outer.exponentials == 0);
  CHECK(inner.depth == 1);
  CHECK(inner.instructions == 5);
  CHECK(inner.stored_bytes == 2);
  CHECK(inner.exponentials == 2);
  CHECK(inner.per_exponential() == 2.5);
  CHECK(in_pipe(inner, Pipe::kFloat) == 1);
}

TEST_CASE("opcodes belong to pipes by how they begin") {
  CHECK(pipe_of("LDGSTS.E.BYPASS.128") == Pipe::kAsync);
  CHECK(pipe_of("LDG.E") == Pipe::kGlobal);
  CHECK(pipe_of("LDS.U.128") == Pipe::kShared);
  CHECK(pipe_of("F2FP.BF16.F32.PACK_AB") == Pipe::kConvert);
  CHECK(pipe_of("FENCE.VIEW.ASYNC") == Pipe::kAsync);
  CHECK(pipe_of("DFMA") == Pipe::kDouble);
  CHECK(pipe_of("DEPBAR.LE") == Pipe::kAsync);
  CHECK(pipe_of("UIADD3") == Pipe::kInteger);
}
