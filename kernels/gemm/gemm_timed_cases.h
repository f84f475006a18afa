// Shapes that gemm is timed on: products of a training step.
#pragma once

#include <charconv>
#include <optional>

#include "kernels/gemm/gemm_case.h"

namespace weft::kernels {

/// "512x768x64": m, n and k of a product x W^T, timed.
inline std::optional<Case<GemmProblem>> gemm_of_shape(std::string_view shape, DType dtype) {
  int64_t sizes[3] = {};
  const char *at = shape.data(), *const end = at + shape.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, sizes[i]);
    if (error != std::errc() || sizes[i] < 1 || (i < 2 && (next == end || *next != 'x'))) return {};
    at = i < 2 ? next + 1 : next;
  }
  if (at != end) return {};
  GemmCases cases{.types = {dtype}};
  cases.add({}, sizes[0], sizes[1], sizes[2], {.b_layout = 'T'}, Timing::kTimed);
  return cases.list[0];
}

/// A linear layer y = x W^T + b of `tokens` rows, and its gradients dx = dy W and dW = dy^T x.
struct TimedLayer {
  GemmCases& cases;
  int64_t tokens;
  Timing timing;

  void forward(int64_t in, int64_t out, Epilogue epilogue = Epilogue::kNone) const {
    cases.add({}, tokens, out, in, {.b_layout = 'T', .bias = true, .epilogue = epilogue}, timing);
  }
  void data_gradient(int64_t in, int64_t out, Epilogue epilogue = Epilogue::kNone) const {
    cases.add({}, tokens, in, out, {.epilogue = epilogue}, timing);
  }
  /// In f32 whatever the operands.
  void weight_gradient(int64_t in, int64_t out) const {
    const GemmTypes types = cases.types;
    cases.types.c = DType::f32;
    cases.add({}, out, in, tokens, {.a_layout = 'T'}, timing);
    cases.types = types;
  }
};

/// Products of a training step of ViT-B/16 with 4 images of 197 tokens and of the compact model
/// with 64 of 65; on GPUs, of ViT-B/16 with 128 images.
inline void add_training_step(GemmCases& cases, DType dtype) {
  cases.types = {dtype};
  for (const TimedLayer& layer :
       {TimedLayer{cases, 4 * 197, Timing::kTimed}, TimedLayer{cases, 128 * 197, Timing::kLarge}}) {
    layer.forward(768, 2304);
    layer.forward(768, 3072, Epilogue::kGelu);
    layer.forward(3072, 768);
    layer.data_gradient(3072, 768, Epilogue::kDgelu);
    layer.weight_gradient(768, 3072);
  }
  const TimedLayer large{cases, 128 * 197, Timing::kLarge};
  large.forward(768, 768);
  large.weight_gradient(768, 768);
  const TimedLayer compact{cases, 64 * 65, Timing::kTimed};
  compact.forward(128, 256, Epilogue::kGelu);
  compact.data_gradient(128, 384);
  compact.weight_gradient(128, 384);
  // Attention's values and scores.
  cases.add({48}, 197, 64, 197, {}, Timing::kTimed);
  cases.types = {dtype, dtype, DType::f32};
  cases.add({48}, 197, 197, 64, {.b_layout = 'T'}, Timing::kTimed);
  cases.add({256}, 65, 65, 32, {.b_layout = 'T'}, Timing::kTimed);
}

/// The three products of a layer of ViT-B/16 with 128 images, in fp8.
inline void add_fp8_training_step(GemmCases& cases) {
  const int64_t tokens = 128 * 197, width = 768, hidden = 3072;
  cases.types = {DType::f8e4m3, DType::f8e4m3, DType::bf16};
  cases.add({}, tokens, hidden, width, {.b_layout = 'T'}, Timing::kLarge);
  cases.types.a = DType::f8e5m2;
  cases.add({}, tokens, width, hidden, {}, Timing::kLarge);
  cases.types.c = DType::f32;
  cases.add({}, hidden, width, tokens, {.a_layout = 'T'}, Timing::kLarge);
}

inline void add_gemm_timed_cases(GemmCases& cases) {
  const auto add_numerics = [&](const GemmTypes& types, MatmulNumerics numerics, char b_layout) {
    cases.types = types;
    cases.numerics = numerics;
    cases.add({}, 256, 256, 256, {.b_layout = b_layout}, Timing::kTimed);
    cases.numerics = {};
  };
  add_numerics({DType::f8e4m3, DType::f8e4m3, DType::f32}, {}, 'T');
  add_numerics({}, {Accumulation::kExact}, 'N');
  add_numerics({DType::bf16, DType::bf16, DType::f32}, {Accumulation::kH100}, 'N');
  add_fp8_training_step(cases);
  for (DType dtype : {DType::f32, DType::bf16}) add_training_step(cases, dtype);
}

}  // namespace weft::kernels
