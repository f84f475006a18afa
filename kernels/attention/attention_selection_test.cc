// Which of the kernels for CUDA attention takes a problem.
#include <catch2/catch.hpp>

#include "core/emulated.h"
#include "core/philox.h"
#include "core/view.h"
#include "kernels/attention/attention.h"
#include "kernels/dropout/dropout.h"

using namespace weft;
using namespace weft::kernels;

namespace {

const Device kCuda{DeviceType::cuda, 0};

struct Options {
  int64_t queries = 197, keys = 197, width = 64;
  DType dtype = DType::bf16;
  bool backward = false, rounds_scores = true;
  double scale = 0.125, dropout = 0;
  int64_t gap = 0;  // elements behind each row
  Tf32 tf32 = Tf32::kOff;
};

std::string_view choice(const Options& o) {
  const auto heads = [&](int64_t tokens) {
    const Tensor rows = Tensor::empty({2, 3, tokens, o.width + o.gap}, o.dtype, kCuda);
    return view::narrow(rows, 3, 0, o.width);
  };
  AttentionProblem p{.q = heads(o.queries), .k = heads(o.keys), .v = heads(o.keys)};
  p.out = heads(o.queries);
  p.lse = Tensor::empty({2, 3, o.queries}, DType::f32, kCuda);
  p.scale = o.scale;
  p.dropout = o.dropout;
  p.rounds_scores = o.rounds_scores;
  p.numerics = {Accumulation::kIeee, o.tf32};
  if (o.backward) {
    p.dout = heads(o.queries), p.dq = heads(o.queries);
    p.dk = heads(o.keys), p.dv = heads(o.keys);
  }
  return select_variant(attention_op(), p).name;
}

}  // namespace

TEST_CASE("attention drops the scores that dropout drops") {
  // 0.7 lies above its neighbour of f32, and a word's number between them.
  for (double p : {0.0, 0.1, 0.5, 0.7, 0.9, 1 - 0x1p-24}) {
    const uint32_t threshold = AttentionProblem{.dropout = p}.threshold();
    CHECK(threshold == DropoutProblem{.p = p}.threshold());
    for (uint32_t number : {threshold - 1, threshold}) {
      if (number >> 23 == 0) CHECK((number < threshold) == (uniform_from_bits(number << 9) < p));
    }
  }
}

TEST_CASE("Attention on CUDA takes the kernel that its lengths and layout ask for") {
  emulated::use_gpu("a100");
  for (bool backward : {false, true}) {
    INFO("backward " << backward);
    for (DType dtype : {DType::f16, DType::bf16}) {
      CHECK(choice({.dtype = dtype, .backward = backward}) == "attention_cuda_short");
    }
    CHECK(choice({.queries = 1, .keys = 256, .backward = backward}) == "attention_cuda_short");
    CHECK(choice({.keys = 257, .backward = backward}) == "attention_cuda_flash");
    CHECK(choice({.queries = 4096, .keys = 4096, .backward = backward}) == "attention_cuda_flash");
    CHECK(choice({.width = 128, .backward = backward, .gap = 8}) == "attention_cuda_flash");
    CHECK(choice({.keys = 128, .width = 128, .backward = backward}) == "attention_cuda_short");
    CHECK(choice({.dtype = DType::f32, .backward = backward}) == "attention_cuda_tiled");
    CHECK(choice({.dtype = DType::f16, .backward = backward, .rounds_scores = false}) ==
          "attention_cuda_tiled");
    CHECK(choice({.backward = backward, .scale = -1}) == "attention_cuda_tiled");
    CHECK(choice({.backward = backward, .gap = 1}) == "attention_cuda_tiled");
    CHECK(choice({.width = 136, .backward = backward}) == "attention_cuda_naive");
    for (Tf32 tf32 : {Tf32::kTruncate, Tf32::kNearest}) {
      const auto of_f32 = [&](int64_t keys, int64_t width, int64_t gap = 0) {
        return choice({.keys = keys,
                       .width = width,
                       .dtype = DType::f32,
                       .backward = backward,
                       .gap = gap,
                       .tf32 = tf32});
      };
      CHECK(of_f32(197, 136) == "attention_cuda_naive");
      CHECK(of_f32(197, 64, 2) == "attention_cuda_tiled");
      if (tf32 == Tf32::kNearest) {  // tensor cores truncate
        CHECK(of_f32(197, 64) == "attention_cuda_tiled");
        continue;
      }
      CHECK(of_f32(197, 64) == "attention_cuda_short");  // ViT-B/16
      CHECK(of_f32(197, 64, 4) == "attention_cuda_short");
      CHECK(of_f32(257, 64) == "attention_cuda_flash");
      CHECK(of_f32(197, 128) == "attention_cuda_flash");
    }
  }
  emulated::use_gpu("h100");
}

TEST_CASE("Attention on Hopper takes wgmma for what TMA can address") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (int64_t width : {64, 80, 96, 128, 256}) {
      CHECK(choice({.width = width, .dtype = dtype}) == "attention_cuda_wgmma");
    }
    CHECK(choice({.queries = 4096, .keys = 4096, .dtype = dtype}) == "attention_cuda_wgmma");
    CHECK(choice({.dtype = dtype, .dropout = 0.1}) == "attention_cuda_wgmma");
    CHECK(choice({.width = 128, .dtype = dtype, .backward = true, .dropout = 0.1}) ==
          "attention_cuda_wgmma_backward");
    CHECK(choice({.dtype = dtype, .gap = 8}) == "attention_cuda_wgmma");
    CHECK(choice({.dtype = dtype, .gap = 1}) == "attention_cuda_tiled");
    CHECK(choice({.width = 32, .dtype = dtype}) == "attention_cuda_short");
    CHECK(choice({.width = 264, .dtype = dtype}) == "attention_cuda_naive");
    CHECK(choice({.dtype = dtype, .scale = -1}) == "attention_cuda_tiled");
    CHECK(choice({.dtype = dtype, .backward = true}) == "attention_cuda_wgmma_backward");
    CHECK(choice({.keys = 257, .dtype = dtype, .backward = true}) ==
          "attention_cuda_wgmma_backward");
    CHECK(choice({.width = 32, .dtype = dtype, .backward = true}) == "attention_cuda_short");
    CHECK(choice({.width = 128, .dtype = dtype, .backward = true}) ==
          "attention_cuda_wgmma_backward");
    CHECK(choice({.width = 256, .dtype = dtype, .backward = true}) ==
          "attention_cuda_wgmma_backward");
    CHECK(choice({.width = 264, .dtype = dtype, .backward = true}) == "attention_cuda_naive");
  }
  CHECK(choice({.dtype = DType::f16, .rounds_scores = false}) == "attention_cuda_tiled");
  CHECK(choice({.dtype = DType::f32, .tf32 = Tf32::kTruncate}) == "attention_cuda_short");
}
