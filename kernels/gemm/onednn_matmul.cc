#include "kernels/gemm/onednn_matmul.h"

#include <string_view>
#include <unordered_map>

#include "core/parallel.h"
#include "kernels/gemm/onednn.h"

namespace weft::kernels {
namespace {

using dnnl::memory;

/// [batch, rows, cols] without gaps; [rows, cols] when there is one matrix.
memory::desc matrix_desc(DType dtype, int64_t batch, bool repeated, int64_t rows, int64_t cols,
                         bool transposed) {
  const int64_t row_stride = transposed ? 1 : cols, col_stride = transposed ? rows : 1;
  if (batch == 1) return {{rows, cols}, onednn_type(dtype), {row_stride, col_stride}};
  return {{repeated ? 1 : batch, rows, cols},
          onednn_type(dtype),
          {rows * cols, row_stride, col_stride}};
}

struct Primitive {
  memory::desc a, b, b_plain, c, bias, scratchpad, reorder_scratchpad;
  dnnl::matmul matmul;
  dnnl::reorder reorder;  // of B; set when b differs from b_plain
  bool is_brgemm = false;

  explicit Primitive(const MatmulKey& key) {
    a = matrix_desc(key.input, key.batch, key.a_repeated, key.m, key.k, key.a_transposed);
    b_plain = matrix_desc(key.input, key.batch, key.b_repeated, key.k, key.n, key.b_transposed);
    c = matrix_desc(key.output, key.batch, false, key.m, key.n, false);
    b = key.reorders_b
            ? memory::desc(b_plain.dims(), onednn_type(key.input), memory::format_tag::any)
            : b_plain;
    dnnl::primitive_attr attributes = onednn_attributes();
    if (key.sum) {
      dnnl::post_ops post_ops;
      post_ops.append_sum();
      attributes.set_post_ops(post_ops);
    }
    if (key.bias) {
      bias = key.batch == 1
                 ? memory::desc({1, key.n}, memory::data_type::f32, memory::format_tag::ab)
                 : memory::desc({1, 1, key.n}, memory::data_type::f32, memory::format_tag::abc);
    }
    const dnnl::matmul::desc desc =
        key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc primitive_desc(desc, attributes, onednn_engine());
    matmul = dnnl::matmul(primitive_desc);
    b = primitive_desc.weights_desc();
    scratchpad = primitive_desc.scratchpad_desc();
    is_brgemm = std::string_view(primitive_desc.impl_info_str()).substr(0, 3) == "brg";
    if (b == b_plain) return;
    const dnnl::reorder::primitive_desc reorder_desc(onednn_engine(), b_plain, onednn_engine(), b,
                                                     onednn_attributes());
    reorder = dnnl::reorder(reorder_desc);
    reorder_scratchpad = reorder_desc.scratchpad_desc();
  }
};

}  // namespace

int matmul_threads() {
  return omp_in_parallel() ? 1 : std::min(num_threads(), omp_get_thread_limit());
}

bool onednn_has_bf16() {
  static const bool has = [] {
    // The values are sets of bits.
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
    return (isa & wanted) == wanted;
  }();
  return has;
}

bool onednn_keeps_bits(const MatmulKey& key) {
  const OnednnThreads threads(key.threads);
  return cached_primitive<Primitive>(key)->is_brgemm;
}

void onednn_matmul(const MatmulKey& key, const void* a, const void* b, void* c, const float* bias) {
  const OnednnThreads threads(key.threads);
  const auto primitive = cached_primitive<Primitive>(key);
  dnnl::stream stream(onednn_engine());
  const auto wrap = [](const memory::desc& desc, const void* data) {
    return OnednnMemory(desc, data).object;
  };
  memory weights = wrap(primitive->b_plain, b);
  Tensor blocked;
  if (primitive->reorder) {
    OnednnMemory scratchpad(primitive->reorder_scratchpad);
    OnednnMemory target(primitive->b);
    primitive->reorder.execute(stream, {{DNNL_ARG_FROM, weights},
                                        {DNNL_ARG_TO, target.object},
                                        {DNNL_ARG_SCRATCHPAD, scratchpad.object}});
    weights = target.object;
    blocked = target.bytes;
  }
  OnednnMemory scratchpad(primitive->scratchpad);
  std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, wrap(primitive->a, a)},
                                               {DNNL_ARG_WEIGHTS, weights},
                                               {DNNL_ARG_DST, wrap(primitive->c, c)},
                                               {DNNL_ARG_SCRATCHPAD, scratchpad.object}};
  if (key.bias) arguments.emplace(DNNL_ARG_BIAS, wrap(primitive->bias, bias));
  primitive->matmul.execute(stream, arguments);
}

}  // namespace weft::kernels
