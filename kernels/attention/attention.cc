#include "kernels/attention/attention.h"

#include "core/runtime.h"
#include "kernels/attention/attention_heads.h"
#include "kernels/attention/attention_short.h"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

/// Bytes that a block of the problem's device may ask for.
int64_t shared_memory_of(const AttentionProblem& p) {
  return static_cast<int64_t>(runtime::limits(p.device().index).shared_memory_per_block);
}

bool attention_is_ieee(const AttentionProblem& p) { return gemm_is<GemmArithmetic::kIeee>(p); }

bool attention_has_numerics(const AttentionProblem& p) { return !attention_is_ieee(p); }

/// What the kernels of plain arithmetic for CUDA multiply.
bool attention_is_plain(const AttentionProblem& p) {
  return gemm_is<GemmArithmetic::kIeee, GemmArithmetic::kTf32>(p);
}

/// What those for tensor cores multiply, TF32 as the tensor cores read it; rounding P and dS must
/// be allowed.
bool attention_is_for_mma(const AttentionProblem& p) {
  if (p.dtype() == DType::f32) {
    return gemm_is<GemmArithmetic::kTf32>(p) && p.numerics.tf32 == Tf32::kTruncate;
  }
  return attention_is_ieee(p) && (p.dtype() == DType::bf16 || p.rounds_scores);
}

// oneDNN pays for bf16, whose products it forms at twice the rate of f32; in f32 the two variants
// take the same time at 197 tokens, and attention_cpu_flash 5 to 12% less at 65. Its scores of a
// block of queries against every key stay in a core's cache up to these lengths; under a causal
// mask half of them are useless work that attention_cpu_flash skips.
bool attention_has_short_rows(const AttentionProblem& p) {
  return attention_is_ieee(p) && attention_is_unmasked(p) && p.q.numel() > 0 && p.k.numel() > 0 &&
         p.k.size(2) <= (p.causal ? 512 : 2048);
}

// Heads of 32 columns would fill half of a tile.
bool is_for_wgmma(const AttentionProblem& p) {
  constexpr int64_t kMostTokens = int64_t{1} << 30;  // the kernels count them in int
  const auto is_addressed = [&](int d) {             // the kernels count a mask's bytes in int, too
    return p.mask.size(d) == 1 ||
           p.mask.stride(d) * static_cast<int64_t>(p.mask.itemsize()) < INT32_MAX;
  };
  if (p.mask.defined() && !(is_addressed(2) && is_addressed(3))) return false;
  const int64_t width = p.q.size(3);
  return p.dtype() != DType::f32 && attention_is_for_mma(p) && p.scale > 0 && width > 32 &&
         width <= 256 && has_tma_rows(p.q) && has_tma_rows(p.k) && has_tma_rows(p.v) &&
         p.q.size(2) < kMostTokens && p.k.size(2) < kMostTokens &&
         attention_pairs(p) * (std::max(p.q.size(2), p.k.size(2)) / 64 + 1) < INT32_MAX &&
         runtime::limits(p.device().index).compute_capability == 90;
}

}  // namespace

#define WEFT_OP attention
#define WEFT_PROBLEM AttentionProblem
#include "kernels/op_list_inl.h"

bool attention_is_unmasked(const AttentionProblem& p) {
  return !p.mask.defined() && p.q.size(1) == p.k.size(1);
}

bool attention_fits_shared_rows(const AttentionProblem& p) {
  if (!attention_is_plain(p)) return false;
  const auto size = static_cast<int64_t>(p.dtype() == DType::f64 ? sizeof(double) : sizeof(float));
  const int64_t longest =
      p.backward() ? std::max(p.k.size(2), 2 * p.q.size(2) * heads_per_key(p)) : p.k.size(2);
  return longest * size <= shared_memory_of(p);
}

bool attention_fits_tiles(const AttentionProblem& p) {
  return attention_is_plain(p) && attention_is_unmasked(p) && p.q.size(3) <= 128 &&
         p.q.size(0) * p.q.size(1) * (std::max(p.q.size(2), p.k.size(2)) / 32 + 1) < INT32_MAX;
}

bool attention_fits_mma(const AttentionProblem& p) {
  constexpr int64_t kMostTokens = int64_t{1} << 30;  // the kernels count them in int
  // A kernel's largest score is the one with the largest product only under a positive scale.
  return attention_is_for_mma(p) && attention_is_unmasked(p) && p.scale > 0 && p.q.size(3) <= 128 &&
         p.q.size(2) < kMostTokens && p.k.size(2) < kMostTokens &&
         p.q.size(0) * p.q.size(1) * (std::max(p.q.size(2), p.k.size(2)) / 64 + 1) < INT32_MAX &&
         has_aligned_rows(p.q) && has_aligned_rows(p.k) && has_aligned_rows(p.v) &&
         (!p.backward() || (has_aligned_rows(p.out) && has_aligned_rows(p.dout)));
}

bool attention_fits_wgmma(const AttentionProblem& p) {
  return !p.backward() && is_for_wgmma(p) && has_tma_rows(p.out);
}

bool attention_fits_wgmma_backward(const AttentionProblem& p) {
  return p.backward() && is_for_wgmma(p) && has_tma_rows(p.dout) && has_tma_rows(p.dk) &&
         has_tma_rows(p.dv) && has_aligned_rows(p.out) && has_aligned_rows(p.dq);
}

bool attention_fits_flash(const AttentionProblem& p) {
  if (!attention_fits_mma(p)) return false;
  const FlashShape shape = {short_tile_width(p.q.size(3)), static_cast<int64_t>(p.q.itemsize()),
                            p.dropout > 0};
  return shape.shared_bytes(p.backward()) <= shared_memory_of(p);
}

bool attention_fits_short(const AttentionProblem& p) {
  const int64_t pairs = p.q.size(0) * p.q.size(1), keys = p.k.size(2), queries = p.q.size(2);
  const int64_t tile_width = short_tile_width(p.q.size(3));
  const auto element_bytes = static_cast<int64_t>(p.q.itemsize());
  if (!attention_fits_mma(p) || keys > short_most_keys(tile_width, element_bytes) ||
      p.q.numel() == 0) {
    return false;
  }
  if (!p.backward()) {
    const ShortForward split(pairs, queries, element_bytes);
    return split.shared_bytes(keys, tile_width) <= shared_memory_of(p);
  }
  // A block takes all queries of a head: of many it would be one of few that work.
  constexpr int64_t kMostQueries = 1024;
  const ShortBackward split(keys, tile_width, element_bytes, shared_memory_of(p));
  return queries <= kMostQueries && split.warps <= kShortBackwardWarps &&
         split.shared_bytes() <= shared_memory_of(p);
}

std::string AttentionProblem::tuning_key() const {
  return operand_key("q", q) + operand_key("k", k) + operand_key("v", v) + operand_key("out", out) +
         operand_key("dout", dout) + operand_key("dq", dq) + operand_key("dk", dk) +
         operand_key("dv", dv) + operand_key("mask", mask) +
         fmt::format("{}{}{}{}", causal ? "causal, " : "", dropout > 0 ? "dropout, " : "",
                     rounds_scores ? "" : "exact scores, ", to_string(numerics));
}

std::vector<Tensor> AttentionProblem::written() const {
  if (backward()) return {dq, dk, dv};
  return {out, lse};
}

std::string AttentionProblem::describe() const {
  return fmt::format("attention(q={}, k={}, scale={}, causal={}, mask={}, dropout={}, backward={})",
                     q, k, scale, causal, mask.defined(), dropout, backward());
}

}  // namespace weft::kernels
