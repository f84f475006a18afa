// Shapes, layouts and dtypes that attention is tested and timed on.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/view.h"
#include "kernels/attention/attention.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// What a case varies; everything else follows.
struct AttentionCase {
  int64_t batch, heads, queries, keys, width;
  DType dtype = DType::f32;
  bool backward = false, causal = false;
  double dropout = 0;
  /// q, k and v are views of one [B, T, 3, H, D] buffer (needs queries = keys), the outputs of
  /// [B, T, H D] buffers, with a gap behind each row where has_gaps.
  bool fused = false;
  Accumulation accumulation = Accumulation::kIeee;
  bool rounds_scores = false;  // of f16: allows it
  Tf32 tf32 = Tf32::kOff;      // of f32
  int64_t sharing = 1;         // heads of q for each of k and v
  bool has_gaps = true;
  enum class Mask { kNone, kOfKeys, kFull, kAdded } mask = Mask::kNone;

  std::string name() const {
    constexpr std::string_view kTf32[] = {"", "_tf32", "_tf32_nearest"};
    constexpr std::string_view kMasks[] = {"", "_masked_keys", "_masked", "_added_mask"};
    return fmt::format("{}x{}x{}x{}x{}_{}{}{}{}{}{}{}{}{}{}", batch, heads, queries, keys, width,
                       weft::name(dtype), backward ? "_backward" : "", causal ? "_causal" : "",
                       dropout > 0 ? "_dropout" : "", fused ? "_fused" : "",
                       accumulation == Accumulation::kExact ? "_exact" : "",
                       rounds_scores ? "_rounded" : "", kTf32[static_cast<int>(tf32)],
                       kMasks[static_cast<int>(mask)],
                       sharing > 1 ? fmt::format("_shared_by_{}", sharing) : "");
  }

  Tensor output(Inputs& in, int64_t heads, int64_t tokens) const {
    if (!fused) return in.output({batch, heads, tokens, width}, dtype);
    const Shape row_shape = {batch, tokens, heads * width};
    const Tensor rows =
        has_gaps ? in.row_strided_output(row_shape, dtype) : in.output(row_shape, dtype);
    const Shape shape = {batch, heads, tokens, width};
    return Tensor::view_of(rows.storage(), shape, {rows.stride(0), width, rows.stride(1), 1},
                           rows.offset(), dtype);
  }

  AttentionProblem make(Inputs& in) const {
    AttentionProblem p{.scale = 1 / std::sqrt(static_cast<double>(width)),
                       .causal = causal,
                       .dropout = dropout,
                       .seed = 7,
                       .stream = 3,
                       .offset = 5,
                       .rounds_scores = rounds_scores,
                       .numerics = {accumulation, tf32}};
    if (dropout > 0 && fused) p.moved = in.values({4}, {1}, DType::i64);
    const int64_t key_heads = heads / sharing;
    const auto random = [&](int64_t heads, int64_t tokens, double size) {
      return in.uniform({batch, heads, tokens, width}, dtype, -size, size);
    };
    if (fused) {
      const Tensor qkv = in.uniform({batch, queries, 3, heads, width}, dtype, -2, 2);
      const auto part = [&](int64_t i) {
        return view::permute(view::select(qkv, 2, i), {0, 2, 1, 3});
      };
      p.q = part(0), p.k = part(1), p.v = part(2);
    } else {
      p.q = random(heads, queries, 2), p.k = random(key_heads, keys, 2);
      p.v = random(key_heads, keys, 2);
    }
    const DType sums = dtype == DType::f64 ? DType::f64 : DType::f32;
    if (mask == Mask::kOfKeys) {
      p.mask = view::expand(in.integers({batch, 1, 1, keys}, DType::boolean, 0, 1),
                            {batch, heads, queries, keys});
    } else if (mask == Mask::kFull) {
      // Queries that see no key are among them.
      const Tensor shown = in.integers({batch, heads, queries, keys}, DType::boolean, 0, 1);
      std::fill_n(shown.data<bool>(), std::min(shown.numel(), 2 * keys), false);
      p.mask = in.strided(shown);
    } else if (mask == Mask::kAdded) {
      // The same for all heads, with hidden keys, some of them by a finite number, a query that
      // sees none, and forward one that sees such alone.
      const Tensor added = in.normal({batch, 1, queries, keys}, sums);
      visit_dtype(sums, [&]<class T>(TypeTag<T>) {
        if constexpr (std::is_floating_point_v<T>) {
          for (int64_t i = 0; i < added.numel(); ++i) {
            T& value = added.data<T>()[i];
            if (i < keys || i % 10 == 2) value = -std::numeric_limits<T>::infinity();
            const bool is_of_second = !backward && i >= keys && i < 2 * keys;
            if (is_of_second || (i >= keys && i % 10 == 7))
              value = std::numeric_limits<T>::lowest();
          }
        }
      });
      p.mask = view::expand(added, {batch, heads, queries, keys});
    }
    if (!backward) {
      p.out = output(in, heads, queries);
      p.lse = in.output({batch, heads, queries}, sums);
      return p;
    }
    // lse near that of the forward pass, out of the size of a mean of v.
    const double log_keys = std::log(static_cast<double>(std::max<int64_t>(keys, 1)));
    p.out = random(heads, queries, 0.5);
    p.dout = random(heads, queries, 1);
    p.lse = in.uniform({batch, heads, queries}, sums, log_keys, log_keys + 2);
    p.dq = output(in, heads, queries);
    p.dk = output(in, key_heads, keys);
    p.dv = output(in, key_heads, keys);
    return p;
  }
};

inline OpTable attention_table() {
  std::vector<Case<AttentionProblem>> cases;
  const auto add = [&](AttentionCase c, bool timed = false, bool is_large = false,
                       const char* emulated_on = "") {
    for (bool backward : {false, true}) {
      c.backward = backward;
      const double scores =
          static_cast<double>(c.batch * c.heads) * static_cast<double>(c.queries * c.keys);
      const double tokens = static_cast<double>(c.batch * c.heads) *
                            static_cast<double>((c.queries + c.keys) * c.width);
      const Cost cost{.flops = (backward ? 10.0 : 4.0) * scores * static_cast<double>(c.width),
                      .bytes = (backward ? 4.5 : 2.0) * tokens * itemsize(c.dtype)};
      cases.push_back({c.name(), [c](Inputs& in) { return c.make(in); }, timed ? cost : Cost{},
                       is_large, emulated_on});
    }
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (int64_t tokens : {1, 17, 65}) {
      add({1, 2, tokens, tokens, 32, dtype});
      add({2, 1, tokens, tokens, 24, dtype, false, true});
    }
    for (int64_t width : {64, 128}) {
      add({1, 2, 33, 33, width, dtype, false, false, 0, true});
    }
    add({1, 1, 130, 130, 16, dtype, false, true, 0.25, true});
    add({1, 2, 9, 197, 24, dtype, false, false, 0.1});
    add({1, 2, 197, 9, 24, dtype, false, true});
    add({5, 3, 7, 7, 32, dtype, false, false, 0.5, true});
    add({1, 1, 3, 0, 8, dtype});
    add({1, 1, 0, 3, 8, dtype});
  }
  // More rows than a warp's, a block's or a ring's.
  for (DType dtype : {DType::f32, DType::bf16}) {
    add({1, 1, 197, 197, 32, dtype});
    add({1, 1, 35, 1100, 16, dtype});
    add({1, 1, 1100, 35, 16, dtype});
  }
  // Tensor cores: several tiles of queries and keys, rings gone round twice, a tail in each
  // dimension, each width of a tile (32, 64, 128) with columns to spare, and more than a tile's.
  for (DType dtype : {DType::f16, DType::bf16}) {
    const auto add_mma = [&](AttentionCase c) {
      c.dtype = dtype;
      c.rounds_scores = dtype == DType::f16;
      add(c);
    };
    for (int64_t width : {8, 40, 120, 136, 256}) add_mma({1, 2, 18, 67, width});
    add_mma({.batch = 2,
             .heads = 2,
             .queries = 70,
             .keys = 70,
             .width = 40,
             .causal = true,
             .dropout = 0.3,
             .fused = true});
    if (dtype == DType::f16) continue;  // it differs from bf16 in instructions, not in structure
    add_mma({1, 1, 150, 20, 40});
    add_mma({.batch = 1, .heads = 1, .queries = 200, .keys = 200, .width = 16, .causal = true});
    for (int64_t width : {8, 40, 72}) {
      const int64_t longest = width == 72 ? 290 : 450;
      add_mma({1, 1, 18, longest, width});
      add_mma({1, 1, longest, 18, width});
    }
  }
  // TF32: products of half the depth, keys and values of twice the bytes. Heads of 120 columns come
  // 32 tokens at a time; 9 columns lie off 16 bytes, 136 are more than a tile's.
  const auto add_tf32 = [&](AttentionCase c) {
    c.dtype = DType::f32;
    if (c.tf32 == Tf32::kOff) c.tf32 = Tf32::kTruncate;
    add(c);
  };
  for (int64_t width : {8, 40, 120}) {
    add_tf32({1, 2, 18, 67, width});
    add_tf32({.batch = 1,
              .heads = 1,
              .queries = 40,
              .keys = 67,
              .width = width,
              .causal = true,
              .tf32 = Tf32::kNearest});
    const int64_t longest = width == 120 ? 146 : width == 40 ? 290 : 450;
    add_tf32({1, 1, 18, longest, width});
    add_tf32({1, 1, longest, 18, width});
  }
  add_tf32({.batch = 2,
            .heads = 2,
            .queries = 70,
            .keys = 70,
            .width = 40,
            .causal = true,
            .dropout = 0.3,
            .fused = true});
  add_tf32({1, 1, 197, 197, 32});
  add_tf32({1, 1, 200, 200, 16, DType::f32, false, true});
  add_tf32({1, 1, 0, 3, 8});
  add_tf32({1, 1, 3, 0, 8});
  for (Tf32 rounding : {Tf32::kTruncate, Tf32::kNearest}) {
    for (int64_t width : {9, 136}) {
      add_tf32(
          {.batch = 1, .heads = 2, .queries = 17, .keys = 33, .width = width, .tf32 = rounding});
    }
  }
  // The bounds of ieee sums hold for exact ones.
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Accumulation exact = Accumulation::kExact;
    add({2, 3, 65, 65, 32, dtype, false, false, 0, true, exact});
    add({1, 2, 17, 33, 24, dtype, false, true, 0.25, false, exact});
    add({.batch = 2,
         .heads = 4,
         .queries = 17,
         .keys = 17,
         .width = 24,
         .dtype = dtype,
         .causal = true,
         .accumulation = exact,
         .sharing = 2});
  }
  // Grouped heads and masks: several blocks of queries and of keys, of which one may hide all.
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    using Mask = AttentionCase::Mask;
    add({.batch = 2,
         .heads = 4,
         .queries = 19,
         .keys = 33,
         .width = 24,
         .dtype = dtype,
         .sharing = 2});
    for (Mask mask : {Mask::kOfKeys, Mask::kFull, Mask::kAdded}) {
      add({.batch = 2,
           .heads = 3,
           .queries = 50,
           .keys = 21,
           .width = 16,
           .dtype = dtype,
           .dropout = 0.2,
           .sharing = 3,
           .mask = mask});
      add({.batch = 1,
           .heads = 1,
           .queries = 9,
           .keys = 140,
           .width = 8,
           .dtype = dtype,
           .causal = mask != Mask::kOfKeys,
           .mask = mask});
    }
  }
  // The same in other arithmetic.
  for (auto mask :
       {AttentionCase::Mask::kOfKeys, AttentionCase::Mask::kFull, AttentionCase::Mask::kAdded}) {
    AttentionCase c{.batch = 2,
                    .heads = 4,
                    .queries = 17,
                    .keys = 21,
                    .width = 16,
                    .causal = mask == AttentionCase::Mask::kFull,
                    .dropout = 0.2,
                    .sharing = 2,
                    .mask = mask};
    add_tf32(c);
    c.accumulation = Accumulation::kExact;
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      c.dtype = dtype;
      add(c);
    }
  }
  // Hopper's tiles: each width of them with columns to spare or none, both steps of keys (128 and
  // 208), several tiles of queries and steps, more tiles than blocks, both orders of tiles. They
  // say nothing new of other variants, which take minutes of an emulator for them.
  const auto add_wgmma = [&](AttentionCase c) {
    if (c.dtype == DType::f32) c.dtype = DType::bf16;
    c.rounds_scores = c.dtype == DType::f16;
    add(c, false, false, "wgmma");
  };
  add_wgmma({1, 3, 150, 197, 64});
  add_wgmma({1, 3, 40, 197, 64, DType::f16});
  add_wgmma({.batch = 2,
             .heads = 2,
             .queries = 260,
             .keys = 260,
             .width = 64,
             .causal = true,
             .fused = true,
             .has_gaps = false});
  add_wgmma({1, 1, 70, 300, 80});
  add_wgmma({1, 1, 20, 140, 80, DType::f16});
  add_wgmma({.batch = 1, .heads = 2, .queries = 30, .keys = 140, .width = 96, .causal = true});
  add_wgmma({1, 1, 20, 180, 128});
  add_wgmma({1, 1, 20, 200, 136});
  add_wgmma({.batch = 1, .heads = 1, .queries = 130, .keys = 130, .width = 256, .causal = true});
  // Backward: so many heads that a block owns two of the three blocks of their keys.
  add_wgmma({2, 33, 8, 260, 40});
  for (auto mask :
       {AttentionCase::Mask::kOfKeys, AttentionCase::Mask::kFull, AttentionCase::Mask::kAdded}) {
    add_wgmma({.batch = 2,
               .heads = 4,
               .queries = 70,
               .keys = 150,
               .width = mask == AttentionCase::Mask::kFull ? 72 : 40,
               .causal = mask == AttentionCase::Mask::kAdded,
               .sharing = 2,
               .mask = mask});
  }
  // Dropout: numbers of scores that are multiples of four from row to row, and that are not; each
  // width of a tile, alone and under a mask.
  for (int64_t width : {64, 80, 128, 136}) {
    add_wgmma({.batch = 1, .heads = 2, .queries = 70, .keys = 150, .width = width, .dropout = 0.3});
    add_wgmma({.batch = 1,
               .heads = 2,
               .queries = 70,
               .keys = 197,
               .width = width,
               .dtype = width == 80 ? DType::f16 : DType::bf16,
               .dropout = 0.1,
               .sharing = 2,
               .mask = AttentionCase::Mask::kAdded});
  }
  add_wgmma({.batch = 2,
             .heads = 2,
             .queries = 132,
             .keys = 132,
             .width = 64,
             .causal = true,
             .dropout = 0.3,
             .fused = true,
             .has_gaps = false});
  // Timed: ViT-B/16 with 4 images and the compact model with 64, each from a fused buffer.
  for (DType dtype : {DType::f32, DType::bf16}) {
    const auto add_timed = [&](AttentionCase c) {
      c.dtype = dtype;
      c.fused = true;
      c.has_gaps = false;
      add(c, true);
    };
    add_timed({4, 12, 197, 197, 64});
    add_timed({64, 4, 65, 65, 32});
    add_timed({1, 4, 1024, 1024, 64});
    add_timed({.batch = 1, .heads = 4, .queries = 1024, .keys = 1024, .width = 64, .causal = true});
  }
  // And on a GPU: ViT-B/16 with 128 images, and long sequences.
  for (AttentionCase c :
       {AttentionCase{128, 12, 197, 197, 64},
        {4, 16, 4096, 4096, 64},
        {.batch = 4, .heads = 16, .queries = 4096, .keys = 4096, .width = 64, .causal = true},
        {4, 16, 4096, 4096, 128}}) {
    c.dtype = DType::bf16;
    c.fused = true;
    c.has_gaps = false;
    add(c, true, true);
  }
  return make_table(attention_op(), std::move(cases), attention_reference);
}

}  // namespace weft::kernels
