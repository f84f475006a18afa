// The definition, a warp at a time. Forward and dq: a warp owns a query and keeps its row of the
// scores in shared memory. dk and dv: a warp owns a key and keeps its column, of each head of q
// that shares it. Nothing is shared between warps, so there are no atomics; what a flash kernel
// saves is measured against this one. Bound by the loads of K and V, once for each query. Rows of
// up to 58,000 tokens fit.
#include "kernels/attention/attention_cuda.cuh"

namespace weft::kernels {
namespace {

constexpr int kWarps = 4;

/// What a warp works on: token `token` of head h of batch b, of q's heads or of k's.
template <class Acc>
struct Work {
  const AttentionArguments& p;
  int64_t b, h, token;
  int lane;

  __device__ Work(const AttentionArguments& p, int64_t heads, int64_t tokens)
      : p(p), lane(static_cast<int>(threadIdx.x) % kWarp) {
    const int64_t index =
        static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
    token = index % tokens;
    h = index / tokens % heads;
    b = index / (tokens * heads);
  }
  __device__ bool exists() const { return b < p.batches; }
  __device__ int64_t row(int64_t head, int64_t query) const { return p.row(b, head, query); }
  /// A row of q or dout times a row of k or v.
  __device__ Acc dot(const Heads& x, int64_t head, int64_t query, const Heads& y,
                     int64_t key) const {
    Acc sum = 0;
    for (int64_t d = 0; d < p.width; ++d) {
      sum = std::fma(p.factor(x.at<Acc>(b, head, query, d)),
                     p.factor(y.at<Acc>(b, head / p.sharing, key, d)), sum);
    }
    return sum;
  }
  /// -inf for a key that the query does not see.
  __device__ Acc score(int64_t head, int64_t query, int64_t key) const {
    const Acc hidden = static_cast<Acc>(-INFINITY);
    if (!p.sees(query, key)) return hidden;
    const Acc added = p.mask.template added<Acc>(b, head, query, key);
    if (added == hidden) return hidden;
    if (added <= static_cast<Acc>(kLeastAdded)) return static_cast<Acc>(kMaskedScore);
    return static_cast<Acc>(p.scale) * dot(p.q, head, query, p.k, key) + added;
  }
  /// The factor of dropout: 0 or 1 / (1 - p).
  __device__ Acc kept(int64_t head, int64_t query, int64_t key) const {
    if (p.dropout == 0) return 1;
    return p.keeps(row(head, query) * p.keys + key) ? static_cast<Acc>(p.kept_factor) : Acc{0};
  }
  __device__ Acc probability(int64_t head, int64_t query, int64_t key) const {
    const Acc s = score(head, query, key);
    if (s == static_cast<Acc>(-INFINITY)) return 0;
    return std::exp(s - load_one<Acc>(p.lse, row(head, query)));
  }
  /// dS of one pair whose probability is known.
  __device__ Acc dscore(int64_t head, int64_t query, int64_t key, Acc probability) const {
    if (probability == 0) return 0;
    const Acc dp = kept(head, query, key) * dot(p.dout, head, query, p.v, key);
    return probability * (dp - load_one<Acc>(p.delta, row(head, query)));
  }
  /// sum, and to it column d of weights[0..tokens) times x.
  __device__ Acc weighted(const Acc* weights, int64_t tokens, const Heads& x, int64_t head,
                          int64_t d, Acc sum = 0) const {
    for (int64_t t = 0; t < tokens; ++t) {
      sum = std::fma(weights[t], p.factor(x.at<Acc>(b, head, t, d)), sum);
    }
    return sum;
  }
};

template <class Acc>
__device__ Acc* shared_row(int64_t length, int rows) {
  WEFT_DYNAMIC_SHARED(Acc, shared);
  return shared + threadIdx.x / kWarp * length * rows;
}

template <class Acc>
__global__ void __launch_bounds__(kWarps* kWarp) attention_naive_kernel(AttentionArguments p) {
  const Work<Acc> w(p, p.heads, p.queries);
  if (!w.exists()) return;
  Acc* const scores = shared_row<Acc>(p.keys, 1);
  Acc max = -INFINITY, total = 0;
  for (int64_t j = w.lane; j < p.keys; j += kWarp) {
    scores[j] = w.score(w.h, w.token, j);
    max = scores[j] > max ? scores[j] : max;
  }
  max = warp_max(max);
  // Where the mask hides every key all exponentials are 0.
  const Acc shift = p.mask.elements && max == static_cast<Acc>(-INFINITY) ? Acc{0} : max;
  for (int64_t j = w.lane; j < p.keys; j += kWarp) {
    const Acc e = std::exp(scores[j] - shift);
    total += e;
    scores[j] = p.factor(e * w.kept(w.h, w.token, j));
  }
  total = warp_sum(total);
  __syncwarp();
  for (int64_t d = w.lane; d < p.width; d += kWarp) {
    const Acc sum = w.weighted(scores, p.keys, p.v, w.h / p.sharing, d);
    p.out.put(w.b, w.h, w.token, d, total == 0 ? Acc{0} : sum / total);
  }
  if (w.lane == 0) store_one(p.lse, w.row(w.h, w.token), max + std::log(total));
}

/// delta of a query.
template <class Acc>
__global__ void __launch_bounds__(kWarps* kWarp) attention_delta_kernel(AttentionArguments p) {
  const Work<Acc> w(p, p.heads, p.queries);
  if (!w.exists()) return;
  Acc sum = 0;
  for (int64_t d = w.lane; d < p.width; d += kWarp) {
    sum += p.dout.at<Acc>(w.b, w.h, w.token, d) * p.out.at<Acc>(w.b, w.h, w.token, d);
  }
  sum = warp_sum(sum);
  if (w.lane == 0) store_one(p.delta, w.row(w.h, w.token), sum);
}

template <class Acc>
__global__ void __launch_bounds__(kWarps* kWarp) attention_dq_kernel(AttentionArguments p) {
  const Work<Acc> w(p, p.heads, p.queries);
  if (!w.exists()) return;
  Acc* const ds = shared_row<Acc>(p.keys, 1);
  for (int64_t j = w.lane; j < p.keys; j += kWarp) {
    ds[j] = p.factor(w.dscore(w.h, w.token, j, w.probability(w.h, w.token, j)));
  }
  __syncwarp();
  for (int64_t d = w.lane; d < p.width; d += kWarp) {
    p.dq.put(w.b, w.h, w.token, d,
             static_cast<Acc>(p.scale) * w.weighted(ds, p.keys, p.k, w.h / p.sharing, d));
  }
}

template <class Acc>
__global__ void __launch_bounds__(kWarps* kWarp) attention_dkv_kernel(AttentionArguments p) {
  const Work<Acc> w(p, p.heads / p.sharing, p.keys);
  if (!w.exists()) return;
  const int64_t first_head = w.h * p.sharing, rows = p.sharing * p.queries;
  Acc* const ds = shared_row<Acc>(rows, 2);
  Acc* const dropped = ds + rows;
  for (int64_t i = w.lane; i < rows; i += kWarp) {
    const int64_t head = first_head + i / p.queries, query = i % p.queries;
    const Acc probability = w.probability(head, query, w.token);
    ds[i] = p.factor(w.dscore(head, query, w.token, probability));
    dropped[i] = p.factor(probability * w.kept(head, query, w.token));
  }
  __syncwarp();
  for (int64_t d = w.lane; d < p.width; d += kWarp) {
    Acc dk = 0, dv = 0;
    for (int64_t n = 0; n < p.sharing; ++n) {
      dk = w.weighted(ds + n * p.queries, p.queries, p.q, first_head + n, d, dk);
      dv = w.weighted(dropped + n * p.queries, p.queries, p.dout, first_head + n, d, dv);
    }
    p.dk.put(w.b, w.h, w.token, d, static_cast<Acc>(p.scale) * dk);
    p.dv.put(w.b, w.h, w.token, d, dv);
  }
}

template <class Acc>
void run(const AttentionArguments& p, bool backward, int64_t shared_bytes,
         runtime::StreamHandle stream) {
  const auto launch = [&](auto kernel, int64_t heads, int64_t tokens, int64_t row_elements) {
    const int64_t work = p.batches * heads * tokens;
    if (work == 0) return;
    const int64_t bytes = row_elements * static_cast<int64_t>(sizeof(Acc));
    // Those whose rows fit shared memory together.
    const int warps = static_cast<int>(
        std::clamp<int64_t>(shared_bytes / std::max<int64_t>(bytes, 1), 1, kWarps));
    WEFT_LAUNCH(kernel, static_cast<unsigned>((work + warps - 1) / warps), warps * kWarp,
                static_cast<size_t>(warps * bytes), stream, p);
  };
  if (!backward) return launch(attention_naive_kernel<Acc>, p.heads, p.queries, p.keys);
  launch(attention_delta_kernel<Acc>, p.heads, p.queries, 0);
  launch(attention_dq_kernel<Acc>, p.heads, p.queries, p.keys);
  launch(attention_dkv_kernel<Acc>, p.heads / p.sharing, p.keys, 2 * p.sharing * p.queries);
}

}  // namespace

void attention_cuda_naive(const AttentionProblem& problem) {
  const bool wide = problem.dtype() == DType::f64;
  const Tensor delta = attention_delta(problem);
  const AttentionArguments p(problem, delta);
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  const auto shared_bytes =
      static_cast<int64_t>(runtime::limits(problem.device().index).shared_memory_per_block);
  wide ? run<double>(p, problem.backward(), shared_bytes, stream)
       : run<float>(p, problem.backward(), shared_bytes, stream);
}

}  // namespace weft::kernels
