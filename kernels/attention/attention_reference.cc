// Plain loops in f64. The bounds, with u of f32 (f64 for f64) and v of the dtype that the products
// take P and dS in (u_bf16 for bf16; u_f16 for f16 where rounds_scores is set or the products are
// not ieee; of f32 in TF32's mode 2^-10 where low bits are cut off and 2^-11 where they are rounded
// away; else 0):
//
//   S   |error| <= s = gamma_(D+3) |scale| sum |q||k|, and every subtraction of a maximum or of lse
//       rounds by u of its operands
//   P   relative error e^(2 s') - 1 + gamma_(Tk+16), s' the largest s plus those roundings; an
//       online softmax makes one more subtraction per block of keys (at most Tk / 16 blocks)
//   out, dq, dk, dv: the errors of the factors, gamma of the sum's length, and v
//
// from Higham, sections 2.2 and 3.1. Tensor cores that cut off what they add instead of rounding it
// lose at most 10.5 u of the largest sum for 16 products (numerics/tensor_core.h): within
// gamma_(D+3). Of TF32 an A100 takes 4 products at a time: 5 terms cut off below 2^-24 of the
// largest and the sum below 2^-23, 7 u, so that n products count as 7 ceil(n / 4) roundings (an
// H100's 8 at a time lose 6.5 u). Exponentials are powers of 2 there, of relative error 2.9 u,
// whose argument takes two more roundings of S: within the 16 u and the two units of s. q, k, v and
// dout are rounded to TF32 by integer arithmetic of this file's own; D takes out and dout as they
// are. Backward takes out and lse as given. Results below the normal range may be flushed
// (exponentials; oneDNN's bf16 operands): 2^-126 for each term, 2^-25 where P and dS are f16. Of
// large problems a sample of (batch, head) pairs is checked; the others must be finite.
#include <bit>
#include <cmath>

#include "core/philox.h"
#include "kernels/attention/attention_heads.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

constexpr double kMaxProducts = 0x1p24;

/// A [rows, cols] matrix in f64 and how far each element of a computed one may lie from it.
struct Values {
  int64_t rows, cols;
  std::vector<double> value, error;

  Values(int64_t rows, int64_t cols)
      : rows(rows), cols(cols), value(rows * cols), error(rows * cols) {}
  double& at(int64_t i, int64_t j) { return value[i * cols + j]; }
  double at(int64_t i, int64_t j) const { return value[i * cols + j]; }
  double& error_at(int64_t i, int64_t j) { return error[i * cols + j]; }
  double error_at(int64_t i, int64_t j) const { return error[i * cols + j]; }
};

Values read(const Matrix& m) {
  Values result(m.rows, m.cols);
  visit_dtype(m.dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < m.rows; ++i) {
      for (int64_t j = 0; j < m.cols; ++j) {
        result.at(i, j) = to_double(*static_cast<const T*>(m.at(i, j)));
      }
    }
  });
  return result;
}

/// A pair's matrix as the products take it.
Values factor(const AttentionProblem& p, const Tensor& heads, int64_t pair) {
  Values result = read(head_matrix(heads, pair));
  if (p.dtype() != DType::f32 || p.numerics.tf32 == Tf32::kOff) return result;
  const uint32_t half = p.numerics.tf32 == Tf32::kNearest ? 0x1000 : 0;
  for (double& x : result.value) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
    x = std::bit_cast<float>((bits + half) & ~0x1fffu);
  }
  return result;
}

Values transpose(const Values& m) {
  Values result(m.cols, m.rows);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) {
      result.at(j, i) = m.at(i, j);
      result.error_at(j, i) = m.error_at(i, j);
    }
  }
  return result;
}

struct Precision {
  double u;        // of the arithmetic
  double v;        // of P and dS as operands
  double flushed;  // what a vanishing term may lose
  bool is_tf32;    // the products

  /// u's that a sum of n products may lose.
  double roundings(int64_t n) const {
    return static_cast<double>(is_tf32 ? 7 * ((n + 3) / 4) : n) + 2;
  }
};

/// A B, with the errors of A and of the sums.
Values multiply(const Values& a, const Values& b, const Precision& precision) {
  Values result(a.rows, b.cols);
  const double g = numerics::gamma(precision.roundings(a.cols), precision.u);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.cols; ++k) {
      const double x = a.at(i, k), e = a.error_at(i, k) + g * (std::abs(x) + a.error_at(i, k));
      for (int64_t j = 0; j < b.cols; ++j) {
        const double y = b.at(k, j);
        result.at(i, j) += x * y;
        result.error_at(i, j) +=
            e * std::abs(y) + precision.flushed * (1 + std::abs(x) + std::abs(y));
      }
    }
  }
  return result;
}

/// Puts a pair's part of an output's expected values where it lies.
void put(const Tensor& t, int64_t pair, const Values& m, Expected& expected) {
  const int64_t heads = t.size(1), tokens = t.size(2), b = pair / heads, h = pair % heads;
  const bool is_token_major = t.dim() == 4 && t.stride(2) > t.stride(1);
  for (int64_t i = 0; i < m.rows; ++i) {
    const int64_t row = is_token_major ? (b * tokens + i) * heads + h : pair * tokens + i;
    for (int64_t j = 0; j < m.cols; ++j) {
      const double value = m.at(i, j), error = m.error_at(i, j);
      expected.values[row * m.cols + j] = value;
      expected.bounds[row * m.cols + j] =
          std::isfinite(value)
              ? error + numerics::rounding_error(std::abs(value) + error, t.dtype())
              : 0;
    }
  }
}

/// dropout's factor of a score.
double dropout_factor(const AttentionProblem& p, int64_t pair, int64_t i, int64_t j) {
  if (p.dropout == 0) return 1;
  const uint64_t n = (pair * p.q.size(2) + i) * p.k.size(2) + j;
  const auto words = philox4x32(p.seed, p.drawn_stream(), p.offset + n / 4);
  const bool is_dropped = uniform_from_bits(words[n % 4]) < p.dropout;
  return is_dropped ? 0 : 1 / (1 - p.dropout);
}

/// What the mask adds to a score: -inf for a hidden key.
double mask_at(const AttentionProblem& p, int64_t pair, int64_t i, int64_t j) {
  const MaskRow row(p, pair, i);
  if (!row.is_additive()) return row.at<bool>(j) ? 0 : -INFINITY;
  return row.row.dtype == DType::f64 ? row.at<double>(j) : row.at<float>(j);
}

/// Whether query i sees key j.
bool sees(const AttentionProblem& p, int64_t pair, int64_t i, int64_t j) {
  if (j >= visible_keys(p, i)) return false;
  return !p.mask.defined() || mask_at(p, pair, i, j) != -INFINITY;
}

/// scale Q K^T + mask
Values scores(const AttentionProblem& p, int64_t pair, const Precision& precision) {
  Values s =
      multiply(factor(p, p.q, pair), transpose(factor(p, p.k, pair / heads_per_key(p))), precision);
  for (double& x : s.value) x *= p.scale;
  for (double& x : s.error) x *= std::abs(p.scale);
  for (size_t i = 0; i < s.value.size(); ++i) s.error[i] += 2 * precision.u * std::abs(s.value[i]);
  if (!p.mask.defined() || p.mask.dtype() == DType::boolean) return s;
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t j = 0; j < s.cols; ++j) {
      const double added = mask_at(p, pair, i, j);
      if (std::isinf(added)) continue;  // nobody asks
      if (added <= kLeastAdded) {
        s.at(i, j) = kMaskedScore;
        s.error_at(i, j) = 4 * precision.u * std::abs(kMaskedScore);
        continue;
      }
      // Divided by the scale, added to the product, and multiplied by the scale again.
      s.error_at(i, j) += 4 * precision.u * (std::abs(s.at(i, j)) + std::abs(added));
      s.at(i, j) += added;
    }
  }
  return s;
}

void forward_pair(const AttentionProblem& p, int64_t pair, const Precision& precision,
                  std::vector<Expected>& results) {
  Values s = scores(p, pair, precision);
  Values sums(s.rows, 1);
  for (int64_t i = 0; i < s.rows; ++i) {
    const int64_t n = visible_keys(p, i);
    double max = -INFINITY, largest = 0, worst = 0, sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (sees(p, pair, i, j)) max = std::max(max, s.at(i, j));
    }
    for (int64_t j = 0; j < n; ++j) {
      const double weight = sees(p, pair, i, j) ? std::exp(s.at(i, j) - max) : 0;
      if (weight == 0) continue;
      sum += weight;
      largest = std::max(largest, std::abs(s.at(i, j)));
      worst = std::max(worst, s.error_at(i, j));
    }
    const double blocks = std::ceil(static_cast<double>(n) / 16) + 1;
    const double argument = worst + blocks * 2 * largest * precision.u;
    const double g = numerics::gamma(static_cast<double>(n) + 16 + 4 * blocks, precision.u);
    for (int64_t j = 0; j < s.cols; ++j) {
      const bool is_seen = sees(p, pair, i, j);
      const double value = is_seen ? std::exp(s.at(i, j) - max) / sum : 0;
      const double factor = is_seen ? dropout_factor(p, pair, i, j) : 0;
      s.at(i, j) = value * factor;
      s.error_at(i, j) =
          factor * (value * (std::expm1(2 * argument) + g + precision.v) + precision.flushed);
    }
    sums.at(i, 0) = max + std::log(sum);
    sums.error_at(i, 0) = 2 * argument + g + 4 * precision.u * (largest + std::abs(std::log(sum)));
  }
  put(p.out, pair, multiply(s, factor(p, p.v, pair / heads_per_key(p)), precision), results[0]);
  put(p.lse, pair, sums, results[1]);
}

/// What a pair of q and dout has to say of its keys' gradients: rows of the factors.
struct KeyTerms {
  Values ds, q, weights, dout;

  /// Those of another head with the same keys go below.
  void append(const KeyTerms& other) {
    for (Values KeyTerms::*m : {&KeyTerms::ds, &KeyTerms::q, &KeyTerms::weights, &KeyTerms::dout}) {
      Values& a = this->*m;
      const Values& b = other.*m;
      a.rows += b.rows;
      a.value.insert(a.value.end(), b.value.begin(), b.value.end());
      a.error.insert(a.error.end(), b.error.begin(), b.error.end());
    }
  }
};

/// Of a pair of q and dout: puts dq.
KeyTerms backward_head(const AttentionProblem& p, int64_t pair, const Precision& precision,
                       std::vector<Expected>& results) {
  const int64_t key_pair = pair / heads_per_key(p);
  const Values q = factor(p, p.q, pair), k = factor(p, p.k, key_pair);
  const Values out = read(head_matrix(p.out, pair)), dout = read(head_matrix(p.dout, pair));
  const Values dout_factor = factor(p, p.dout, pair);
  const Values dp = multiply(dout_factor, transpose(factor(p, p.v, key_pair)), precision);
  Values weights = scores(p, pair, precision);
  Values ds(weights.rows, weights.cols);
  const double u = precision.u;
  for (int64_t i = 0; i < ds.rows; ++i) {
    const int64_t at = pair * ds.rows + i;
    const double lse = p.dtype() == DType::f64 ? p.lse.data<double>()[at] : p.lse.data<float>()[at];
    double delta = 0, magnitude = 0;
    for (int64_t d = 0; d < out.cols; ++d) {
      delta += out.at(i, d) * dout.at(i, d);
      magnitude += std::abs(out.at(i, d) * dout.at(i, d));
    }
    const double delta_error = numerics::gamma(static_cast<double>(out.cols) + 2, u) * magnitude;
    for (int64_t j = 0; j < ds.cols; ++j) {
      const bool is_seen = sees(p, pair, i, j);
      if (!is_seen) {
        weights.at(i, j) = weights.error_at(i, j) = 0;
        continue;
      }
      const double s = weights.at(i, j);
      const double value = std::exp(s - lse), factor = dropout_factor(p, pair, i, j);
      const double argument = weights.error_at(i, j) + u * (std::abs(s) + std::abs(lse));
      const double relative = std::expm1(argument) + 8 * u;
      const double error = value * relative + precision.flushed;
      weights.at(i, j) = value * factor;
      weights.error_at(i, j) = factor * (error + value * precision.v);
      const double slope = factor * dp.at(i, j) - delta;
      const double size = factor * std::abs(dp.at(i, j)) + std::abs(delta);
      const double slope_error = factor * dp.error_at(i, j) + delta_error + 4 * u * size;
      const double total =
          std::abs(p.scale) * (error * (std::abs(slope) + slope_error) + value * slope_error +
                               4 * u * value * std::abs(slope));
      ds.at(i, j) = p.scale * value * slope;
      ds.error_at(i, j) = total + precision.v * (std::abs(ds.at(i, j)) + total);
    }
  }
  put(p.dq, pair, multiply(ds, k, precision), results[0]);
  return {ds, q, weights, dout_factor};
}

/// Of a pair of k and v, and all heads of q that share it.
void backward_pair(const AttentionProblem& p, int64_t key_pair, const Precision& precision,
                   std::vector<Expected>& results) {
  const int64_t sharing = heads_per_key(p), first = key_pair * sharing;
  KeyTerms terms = backward_head(p, first, precision, results);
  for (int64_t pair = first + 1; pair < first + sharing; ++pair) {
    terms.append(backward_head(p, pair, precision, results));
  }
  put(p.dk, key_pair, multiply(transpose(terms.ds), terms.q, precision), results[1]);
  put(p.dv, key_pair, multiply(transpose(terms.weights), terms.dout, precision), results[2]);
}

}  // namespace

std::vector<Expected> attention_reference(const AttentionProblem& p) {
  const bool is_f64 = p.dtype() == DType::f64, is_f16 = p.dtype() == DType::f16;
  const bool rounds =
      p.dtype() == DType::bf16 ||
      (is_f16 && (p.rounds_scores || p.numerics.accumulation != Accumulation::kIeee));
  const bool is_tf32 = p.dtype() == DType::f32 && p.numerics.tf32 != Tf32::kOff;
  const Precision precision{.u = is_f64 ? 0x1p-53 : 0x1p-24,
                            .v = is_tf32  ? (p.numerics.tf32 == Tf32::kNearest ? 0x1p-11 : 0x1p-10)
                                 : rounds ? unit_roundoff(p.dtype())
                                          : 0,
                            .flushed = is_f64             ? 0x1p-1022
                                       : rounds && is_f16 ? 0x1p-25
                                                          : 0x1p-126,
                            .is_tf32 = is_tf32};
  const int64_t pairs = p.backward() ? p.k.size(0) * p.k.size(1) : attention_pairs(p);
  const double products = static_cast<double>(pairs) * static_cast<double>(p.q.size(2)) *
                          static_cast<double>(p.k.numel() / std::max<int64_t>(pairs, 1));
  const auto step = static_cast<int64_t>(std::max(1.0, std::ceil(products / kMaxProducts)));
  std::vector<Expected> results;
  for (const Tensor& t : p.written()) {
    results.push_back({std::vector<double>(t.numel()), std::vector<double>(t.numel(), INFINITY)});
  }
  for (int64_t pair = 0; pair < pairs; pair += step) {
    (p.backward() ? backward_pair : forward_pair)(p, pair, precision, results);
  }
  return results;
}

}  // namespace weft::kernels
