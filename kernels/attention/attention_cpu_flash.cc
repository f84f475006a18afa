// Attention without a stored score matrix (Dao et al., "FlashAttention", NeurIPS 2022; the online
// softmax is Milakov and Gimelshein's, 2018): any length, f32 and f64 arithmetic, no library.
//
// A thread owns a (batch, head) pair: it packs the pair's operands once, then walks blocks of
// queries against blocks of keys, one block of scores (two in backward) at a time. In backward it
// owns a pair of k and v, and takes the heads of q that share it one after the other. In forward a
// block of O is rescaled whenever the running maximum grows; backward recomputes P from lse, and
// adds to dk and dv in the order of the query blocks. The limiter is the matrix product.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_cpu_flash.cc"
#include "core/simd/targets_inl.h"

#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "kernels/attention/attention_rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kQueries = 48, kKeys = 128;  // a block of scores: 24 KiB in f32

/// An operand of multiply(): element (i, k) lies at data[i * row_stride + k * k_stride].
template <class Acc>
struct Left {
  const Acc* data;
  int64_t row_stride, k_stride;
};

/// C [R, V vectors] += A [R, depth] B [depth, V vectors], held in registers.
template <int R, int V, class Acc>
HWY_INLINE void multiply_tile(int64_t depth, Left<Acc> a, const Acc* b, int64_t b_stride, Acc* c,
                              int64_t c_stride) {
  const hn::ScalableTag<Acc> d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = hn::LoadU(d, c + r * c_stride + v * lanes);
  }
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<decltype(d)> row[V];
    for (int v = 0; v < V; ++v) row[v] = hn::LoadU(d, b + k * b_stride + v * lanes);
    for (int r = 0; r < R; ++r) {
      const auto x = hn::Set(d, a.data[r * a.row_stride + k * a.k_stride]);
      for (int v = 0; v < V; ++v) sum[r][v] = hn::MulAdd(x, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) hn::StoreU(sum[r][v], d, c + r * c_stride + v * lanes);
  }
}

template <int R, class Acc>
void multiply_rows(int64_t cols, int64_t depth, Left<Acc> a, const Acc* b, int64_t b_stride, Acc* c,
                   int64_t c_stride) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<Acc>()));
  int64_t j = 0;
#if HWY_TARGET == HWY_AVX3
  // 24 of its 32 registers.
  for (; j + 4 * lanes <= cols; j += 4 * lanes) {
    multiply_tile<R, 4>(depth, a, b + j, b_stride, c + j, c_stride);
  }
#endif
  for (; j + 2 * lanes <= cols; j += 2 * lanes) {
    multiply_tile<R, 2>(depth, a, b + j, b_stride, c + j, c_stride);
  }
  for (; j < cols; j += lanes) multiply_tile<R, 1>(depth, a, b + j, b_stride, c + j, c_stride);
}

/// C [rows, cols] += A [rows, depth] B [depth, cols]; cols in whole vectors.
template <class Acc>
void multiply(int64_t rows, int64_t cols, int64_t depth, Left<Acc> a, const Acc* b,
              int64_t b_stride, Acc* c, int64_t c_stride) {
  int64_t i = 0;
  const auto next = [&](int64_t n) {
    i += n;
    a.data += n * a.row_stride;
    c += n * c_stride;
  };
  for (; i + 6 <= rows; next(6)) multiply_rows<6>(cols, depth, a, b, b_stride, c, c_stride);
  for (; i + 2 <= rows; next(2)) multiply_rows<2>(cols, depth, a, b, b_stride, c, c_stride);
  for (; i < rows; next(1)) multiply_rows<1>(cols, depth, a, b, b_stride, c, c_stride);
}

/// Rows of a matrix as Acc, `padded` apart, zeros behind each.
template <class Acc>
void pack_rows(const Matrix& m, int64_t padded, Acc* to) {
  for (int64_t i = 0; i < m.rows; ++i) {
    Acc* row = to + i * padded;
    const Acc* source = read_row(m.dtype, m.at(i, 0), 0, m.col_stride, m.cols, row);
    if (source != row) std::copy(source, source + m.cols, row);
    std::fill(row + m.cols, row + padded, Acc{0});
  }
}

/// The transpose of [rows, padded_width] packed rows: [width, padded], zeros behind each row.
template <class Acc>
void transpose_rows(const Acc* from, int64_t rows, int64_t width, int64_t padded_width,
                    int64_t padded, Acc* to) {
  constexpr int64_t kTile = 16;
  for (int64_t i = 0; i < rows; i += kTile) {
    const int64_t i_end = std::min(rows, i + kTile);
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t k = i; k < i_end; ++k) to[j * padded + k] = from[k * padded_width + j];
    }
  }
  for (int64_t j = 0; j < width; ++j) {
    std::fill(to + j * padded + rows, to + (j + 1) * padded, Acc{0});
  }
}

template <class Acc>
void store_rows(const Acc* from, int64_t padded, const Matrix& to) {
  for (int64_t i = 0; i < to.rows; ++i) {
    write_row(from + i * padded, to.cols, to.dtype, to.at(i, 0), 0, to.col_stride);
  }
}

/// A block of queries against a block of keys.
struct ScoreBlock {
  int64_t query, queries, key, keys;
};

/// What a thread holds of a (batch, head) pair: matrices of Acc, those that are operands with rows
/// padded to whole vectors.
template <class Acc>
class Pair {
 public:
  explicit Pair(const AttentionProblem& p)
      : queries(p.q.size(2)),
        keys(p.k.size(2)),
        width(p.q.size(3)),
        padded_width(padded(width)),
        padded_keys(padded(keys)),
        p_(p),
        memory_(Tensor::empty({most_elements()}, dtype_of<Acc>())) {}

  const int64_t queries, keys, width, padded_width, padded_keys;

  Acc* take(int64_t elements) {
    Acc* const taken = memory_.data<Acc>() + used_;
    used_ += elements;
    WEFT_ASSERT(used_ <= memory_.numel());
    return taken;
  }
  /// A pair's [T, padded_width].
  const Acc* rows_of(const Tensor& heads, int64_t pair) {
    Acc* rows = take(heads.size(2) * padded_width);
    pack_rows(head_matrix(heads, pair), padded_width, rows);
    return rows;
  }
  /// [width, padded_keys], of k's or v's rows.
  const Acc* columns_of(const Acc* rows) {
    Acc* columns = take(width * padded_keys);
    transpose_rows(rows, keys, width, padded_width, padded_keys, columns);
    return columns;
  }
  /// The block's products [queries, kKeys] of rows of q or dout with columns of k or v.
  void multiply_block(const ScoreBlock& b, const Acc* rows, const Acc* columns,
                      Acc* products) const {
    std::fill(products, products + b.queries * kKeys, Acc{0});
    multiply<Acc>(b.queries, std::min(padded(b.keys), padded_keys - b.key), width,
                  {rows + b.query * padded_width, padded_width, 1}, columns + b.key, padded_keys,
                  products, kKeys);
  }
  /// How many of the block's keys its query i sees.
  int64_t seen(const ScoreBlock& b, int64_t i) const {
    return std::clamp<int64_t>(visible_keys(p_, b.query + i) - b.key, 0, b.keys);
  }

 private:
  static int64_t padded(int64_t n) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<Acc>()));
    return (n + lanes - 1) / lanes * lanes;
  }

  /// What backward takes; forward takes less.
  int64_t most_elements() const {
    return (2 * queries + 4 * keys) * padded_width + 2 * width * padded_keys +
           kQueries * (padded_width + 2 * kKeys) + kKeys + 2 * padded_width + queries;
  }

  const AttentionProblem& p_;
  int64_t used_ = 0;
  Tensor memory_;
};

template <class Acc>
void forward_pair(const AttentionProblem& p, int64_t pair) {
  Pair<Acc> s(p);
  const int64_t width = s.padded_width, key_pair = pair / heads_per_key(p);
  const Acc* q = s.rows_of(p.q, pair);
  const Acc* k_columns = s.columns_of(s.rows_of(p.k, key_pair));
  const Acc* v = s.rows_of(p.v, key_pair);
  Acc* scores = s.take(kQueries * kKeys);
  Acc* out = s.take(kQueries * width);
  Acc* factors = s.take(kKeys);
  const auto scale = static_cast<Acc>(p.scale);
  const Matrix target = head_matrix(p.out, pair);
  Acc* lse = p.lse.data<Acc>() + pair * s.queries;
  for (int64_t first = 0; first < s.queries; first += kQueries) {
    const int64_t rows = std::min(kQueries, s.queries - first);
    Acc max[kQueries], sum[kQueries];
    std::fill(max, max + rows, -std::numeric_limits<Acc>::infinity());
    std::fill(sum, sum + rows, Acc{0});
    std::fill(out, out + rows * width, Acc{0});
    const int64_t keys = visible_keys(p, first + rows - 1);
    for (int64_t key = 0; key < keys; key += kKeys) {
      const ScoreBlock block{first, rows, key, std::min(kKeys, keys - key)};
      s.multiply_block(block, q, k_columns, scores);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t seen = s.seen(block, i);
        Acc* row = scores + i * kKeys;
        std::fill(row + seen, row + block.keys, Acc{0});
        if (seen == 0) continue;
        if (!mask_scores({p, pair, first + i}, key, seen, scale, row)) {
          std::fill(row, row + seen, Acc{0});
          continue;
        }
        const Acc block_max = max_score(row, seen, scale);
        // A NaN score must reach the sum, not hide behind the maximum.
        const Acc new_max = block_max > max[i] ? block_max : max[i];
        const Acc shrink = std::exp(max[i] - new_max);
        sum[i] = sum[i] * shrink + exponentials(row, seen, scale, new_max);
        if (shrink != 1) {
          for (int64_t j = 0; j < width; ++j) out[i * width + j] *= shrink;
        }
        max[i] = new_max;
        if (p.dropout > 0) {
          dropout_factors(p, pair, first + i, key, seen, factors);
          for (int64_t j = 0; j < seen; ++j) row[j] *= factors[j];
        }
      }
      multiply<Acc>(rows, width, block.keys, {scores, kKeys, 1}, v + key * width, width, out,
                    width);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const Acc inverse = sum[i] == 0 ? 0 : 1 / sum[i];
      for (int64_t j = 0; j < width; ++j) out[i * width + j] *= inverse;
      lse[first + i] = max[i] + std::log(sum[i]);
    }
    store_rows(out, width, target.block(first, rows, 0, s.width));
  }
}

template <class Acc>
void backward_pair(const AttentionProblem& p, int64_t key_pair) {
  Pair<Acc> s(p);
  const int64_t width = s.padded_width;
  Acc* q = s.take(s.queries * width);
  Acc* dout = s.take(s.queries * width);
  const Acc* k = s.rows_of(p.k, key_pair);
  const Acc* k_columns = s.columns_of(k);
  const Acc* v_columns = s.columns_of(s.rows_of(p.v, key_pair));
  Acc* dk = s.take(s.keys * width);
  Acc* dv = s.take(s.keys * width);
  Acc* probabilities = s.take(kQueries * kKeys);
  Acc* gradients = s.take(kQueries * kKeys);
  Acc* dq = s.take(kQueries * width);
  Acc* factors = s.take(kKeys);
  Acc* row_a = s.take(width);
  Acc* row_b = s.take(width);
  Acc* delta = s.take(s.queries);
  std::fill(dk, dk + s.keys * width, Acc{0});
  std::fill(dv, dv + s.keys * width, Acc{0});
  const auto scale = static_cast<Acc>(p.scale);
  const int64_t sharing = heads_per_key(p);
  for (int64_t pair = key_pair * sharing; pair < (key_pair + 1) * sharing; ++pair) {
    pack_rows(head_matrix(p.q, pair), width, q);
    pack_rows(head_matrix(p.dout, pair), width, dout);
    const Matrix out = head_matrix(p.out, pair), gradient = head_matrix(p.dout, pair);
    for (int64_t i = 0; i < s.queries; ++i) {
      delta[i] = dot_of_rows(out.dtype, out.at(i, 0), gradient.at(i, 0), s.width, row_a, row_b);
    }
    const Acc* lse = p.lse.data<Acc>() + pair * s.queries;
    const Matrix target = head_matrix(p.dq, pair);
    for (int64_t first = 0; first < s.queries; first += kQueries) {
      const int64_t rows = std::min(kQueries, s.queries - first);
      std::fill(dq, dq + rows * width, Acc{0});
      const int64_t keys = visible_keys(p, first + rows - 1);
      for (int64_t key = 0; key < keys; key += kKeys) {
        const ScoreBlock block{first, rows, key, std::min(kKeys, keys - key)};
        s.multiply_block(block, q, k_columns, probabilities);
        s.multiply_block(block, dout, v_columns, gradients);
        for (int64_t i = 0; i < rows; ++i) {
          int64_t seen = s.seen(block, i);
          Acc* row = probabilities + i * kKeys;
          Acc* dp = gradients + i * kKeys;
          if (!mask_scores({p, pair, first + i}, key, seen, scale, row)) seen = 0;
          if (p.dropout > 0) dropout_factors(p, pair, first + i, key, seen, factors);
          backward_row(row, dp, seen, scale, lse[first + i], delta[first + i],
                       p.dropout > 0 ? factors : nullptr);
          std::fill(row + seen, row + block.keys, Acc{0});
          std::fill(dp + seen, dp + block.keys, Acc{0});
        }
        multiply<Acc>(block.keys, width, rows, {probabilities, 1, kKeys}, dout + first * width,
                      width, dv + key * width, width);
        multiply<Acc>(block.keys, width, rows, {gradients, 1, kKeys}, q + first * width, width,
                      dk + key * width, width);
        multiply<Acc>(rows, width, block.keys, {gradients, kKeys, 1}, k + key * width, width, dq,
                      width);
      }
      store_rows(dq, width, target.block(first, rows, 0, s.width));
    }
  }
  store_rows(dk, width, head_matrix(p.dk, key_pair));
  store_rows(dv, width, head_matrix(p.dv, key_pair));
}

template <class Acc>
void run_pairs(const AttentionProblem& p) {
  const int64_t pairs = p.backward() ? p.k.size(0) * p.k.size(1) : attention_pairs(p);
  parallel_for(pairs, 1, [&](int64_t pair, int64_t) {
    p.backward() ? backward_pair<Acc>(p, pair) : forward_pair<Acc>(p, pair);
  });
}

void run(const AttentionProblem& p) {
  check_attention(p);
  p.dtype() == DType::f64 ? run_pairs<double>(p) : run_pairs<float>(p);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(attention_cpu_flash, AttentionProblem, run)
#endif
