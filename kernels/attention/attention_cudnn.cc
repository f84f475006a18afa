// cuDNN's fused attention, opened when first asked for: the yardstick of our own kernels, and a
// choice.
//
// The graphs are attention.h's equations, one operation for each sign in them, in the order in
// which cuDNN's fused engines look for them (its documentation, "Fused Flash Attention"). dq is
// written as one product, for which the library keeps dS in its workspace: summed across blocks in
// f32, as it would be otherwise, its bits would differ from run to run.
#include "kernels/attention/attention.h"
#include "kernels/device/cudnn_graph.h"

#if __has_include(<cudnn.h>)

#include <cmath>

#include "kernels/attention/attention_heads.h"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

using Value = CudnnGraph::Value;

/// Ids of the graphs' memory. delta: f32 [B, H, Tq, 1], dense, that backward needs beside the
/// problem's tensors.
enum Id : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDelta, kDq, kDk, kDv };

/// [B, H, T, D] memory, or the same read as [B, H, D, T].
Value heads(CudnnGraph& graph, int64_t id, const Tensor& t, bool transposed = false) {
  Shape shape = t.shape();
  Strides strides = t.strides();
  if (transposed) {
    std::swap(shape[2], shape[3]);
    std::swap(strides[2], strides[3]);
  }
  return graph.memory(id, t.dtype(), shape, strides);
}

/// What both passes begin with.
struct Scores {
  const AttentionProblem& p;
  CudnnGraph& graph;
  const Shape shape;  // [B, H, Tq, Tk]
  const Shape row;    // [B, H, Tq, 1]
  Value q, k_transposed, scale;

  Scores(const AttentionProblem& p, CudnnGraph& graph)
      : p(p),
        graph(graph),
        shape{p.q.size(0), p.q.size(1), p.q.size(2), p.k.size(2)},
        row{p.q.size(0), p.q.size(1), p.q.size(2), 1},
        q(heads(graph, kQ, p.q)),
        k_transposed(heads(graph, kK, p.k, true)),
        scale(graph.number(static_cast<float>(p.scale), 4)) {}

  Value temporary(DType dtype = DType::f32) const { return graph.temporary(dtype, shape); }
  Value row_memory(int64_t id) const {
    return graph.memory(id, DType::f32, row, contiguous_strides(row));
  }
  Value row_temporary() const { return graph.temporary(DType::f32, row); }
  Value apply(cudnnPointwiseMode_t op, Value x, Value b = nullptr) const {
    const Value y = temporary();
    graph.pointwise(op, y, x, b);
    return y;
  }
  Value scaled() const {
    const Value s = temporary();
    graph.matmul(q, k_transposed, s);
    return apply(CUDNN_POINTWISE_MUL, s, scale);
  }
  /// -inf where a causal mask hides the key.
  Value masked(Value s) const {
    if (!p.causal) return s;
    const Value query = temporary(DType::i32), key = temporary(DType::i32);
    const Value sees = temporary(DType::boolean), result = temporary();
    graph.index(2, query, s);
    graph.index(3, key, s);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, sees, query, key, nullptr, DType::boolean);
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, result, s, graph.number(-INFINITY, 4), sees);
    return result;
  }
  /// x with its last two dimensions exchanged, in the heads' dtype.
  Value transposed(Value x) const {
    const Shape exchanged = {shape[0], shape[1], shape[3], shape[2]};
    Strides strides = contiguous_strides(shape);
    std::swap(strides[2], strides[3]);
    const Value y = graph.temporary(p.dtype(), exchanged, strides);
    graph.reshape(y, x);
    return y;
  }
};

void forward(const AttentionProblem& p, CudnnGraph& graph) {
  const Scores scores(p, graph);
  const Value s = scores.masked(scores.scaled());
  const Value max = scores.row_temporary(), sum = scores.row_temporary();
  const Value log = scores.row_temporary();
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, max, s);
  const Value e = scores.apply(CUDNN_POINTWISE_EXP, scores.apply(CUDNN_POINTWISE_SUB, s, max));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, sum, e);
  graph.pointwise(CUDNN_POINTWISE_LOG, log, sum);
  graph.pointwise(CUDNN_POINTWISE_ADD, scores.row_memory(kLse), max, log);
  const Value probabilities = scores.temporary(p.dtype());
  graph.pointwise(CUDNN_POINTWISE_DIV, probabilities, e, sum);
  graph.matmul(probabilities, heads(graph, kV, p.v), heads(graph, kOut, p.out));
}

void backward(const AttentionProblem& p, CudnnGraph& graph) {
  const Scores scores(p, graph);
  const Value dout = heads(graph, kDout, p.dout), lse = scores.row_memory(kLse);
  const Value delta = scores.row_memory(kDelta);
  // delta = sum(dout out), times 1: where the scale of dropout would stand
  const Value products = graph.temporary(DType::f32, p.out.shape());
  const Value sums = scores.row_temporary();
  graph.pointwise(CUDNN_POINTWISE_MUL, products, dout, heads(graph, kOut, p.out));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, sums, products);
  graph.pointwise(CUDNN_POINTWISE_MUL, delta, sums, graph.number(1, 4));
  // P, dv
  const Value s = scores.masked(scores.apply(CUDNN_POINTWISE_SUB, scores.scaled(), lse));
  const Value probabilities = scores.apply(CUDNN_POINTWISE_EXP, s);
  graph.matmul(scores.transposed(probabilities), dout, heads(graph, kDv, p.dv));
  // dS times scale, dk, dq
  const Value dp = scores.temporary();
  graph.matmul(dout, heads(graph, kV, p.v, true), dp);
  const Value centred = scores.apply(CUDNN_POINTWISE_SUB, dp, delta);
  const Value ds = scores.apply(
      CUDNN_POINTWISE_MUL, scores.apply(CUDNN_POINTWISE_MUL, centred, probabilities), scores.scale);
  graph.matmul(scores.transposed(ds), scores.q, heads(graph, kDk, p.dk));
  const Value k = graph.temporary(p.dtype(), p.k.shape(), p.k.strides());
  graph.reshape(k, scores.k_transposed);
  graph.matmul(ds, k, heads(graph, kDq, p.dq));
}

const CudnnPlan* plan_of(const AttentionProblem& p) {
  thread_local CudnnPlans plans("attention_cudnn");
  const std::string key =
      fmt::format("{} scale {} causal {}: {}", to_string(p.device()), p.scale, p.causal,
                  cudnn_layout({p.q, p.k, p.v, p.out, p.dout, p.dq, p.dk, p.dv}));
  return plans.find(key, p, attention_cudnn_graph);
}

}  // namespace

CudnnGraph attention_cudnn_graph(const AttentionProblem& p) {
  CudnnGraph graph;
  p.backward() ? backward(p, graph) : forward(p, graph);
  return graph;
}

bool attention_fits_cudnn(const AttentionProblem& p) {
  if (!gemm_is<GemmArithmetic::kIeee>(p) || !attention_is_unmasked(p) || p.dropout > 0 ||
      (p.dtype() == DType::f16 && !p.rounds_scores) || p.q.size(3) > 128 || p.q.size(3) % 8 != 0) {
    return false;
  }
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
    if (!t->defined()) continue;
    if (t->numel() == 0 || !has_aligned_rows(*t)) return false;
  }
  return p.device().type == DeviceType::cuda && cudnn().library.is_open() && plan_of(p) != nullptr;
}

void attention_cudnn(const AttentionProblem& p) {
  const CudnnPlan* const plan = plan_of(p);
  WEFT_ASSERT(plan != nullptr);
  std::map<int64_t, void*> memory = {
      {kQ, p.q.raw()}, {kK, p.k.raw()}, {kV, p.v.raw()}, {kOut, p.out.raw()}, {kLse, p.lse.raw()}};
  Tensor delta;
  if (p.backward()) {
    delta = Tensor::empty(p.lse.shape(), DType::f32, p.device());
    memory.insert({{kDout, p.dout.raw()},
                   {kDelta, delta.raw()},
                   {kDq, p.dq.raw()},
                   {kDk, p.dk.raw()},
                   {kDv, p.dv.raw()}});
  }
  plan->run(p.device(), std::move(memory));
}

}  // namespace weft::kernels

#else
WEFT_WITHOUT_CUDNN(attention, AttentionProblem)
#endif
