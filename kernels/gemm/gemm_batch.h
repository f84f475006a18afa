// A gemm problem as its CPU variants see it: a list of matrix products on plain memory.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/matrix.h"

namespace weft::kernels {

/// The last two dimensions of t.
inline Matrix matrix_of(const Tensor& t) {
  return {t.dtype(), t.raw(), t.size(-2), t.size(-1), t.stride(-2), t.stride(-1)};
}

struct GemmBatch {
  Matrix a, b, c, aux;  // of the first product; aux.data is null without one
  std::vector<int64_t> a_offsets, b_offsets, c_offsets, aux_offsets;  // of every product

  int64_t size() const { return static_cast<int64_t>(c_offsets.size()); }
};

namespace internal {

/// [..., M, K] as [numel / K, K], if that is a view.
inline std::optional<Tensor> fold_rows(const Tensor& t) {
  return view::try_reshape(t, {t.numel() / t.size(-1), t.size(-1)});
}

inline bool is_repeated_over_batch(const Tensor& t) {
  for (int d = 0; d + 2 < t.dim(); ++d) {
    if (t.size(d) != 1 && t.stride(d) != 0) return false;
  }
  return true;
}

inline std::vector<int64_t> matrix_offsets(const Tensor& t) {
  Shape shape = t.shape();
  Strides strides = t.strides();
  for (Shape* list : {&shape, &strides}) {
    list->erase(list->size() - 1);
    list->erase(list->size() - 1);
  }
  std::vector<int64_t> offsets;
  for_each_offset(shape, strides, [&](int64_t i) { offsets.push_back(i); });
  return offsets;
}

}  // namespace internal

/// The products of a problem that has elements. When every batch multiplies the same b, the batch
/// dimensions become rows of one product, if the strides allow.
inline GemmBatch gemm_batch(const GemmProblem& p) {
  WEFT_ASSERT(
      p.a.dim() == p.c.dim() && p.b.dim() == p.c.dim() &&
      (p.a.dtype() == p.b.dtype() || (itemsize(p.a.dtype()) == 1 && itemsize(p.b.dtype()) == 1)));
  WEFT_ASSERT(p.a.size(-2) == p.m() && p.b.size(-1) == p.n() && p.b.size(-2) == p.k());
  WEFT_ASSERT((p.epilogue != Epilogue::kNone) == p.aux.defined());
  WEFT_ASSERT(!p.accumulate || p.epilogue == Epilogue::kNone);
  WEFT_ASSERT(!p.residual.defined());  // with_residual_in_c() was here
  WEFT_ASSERT(!p.bias_gradient.defined() || p.epilogue == Epilogue::kDgelu);
  WEFT_ASSERT(!p.aux.defined() || (p.aux.shape() == p.c.shape() && p.aux.dtype() == p.c.dtype()));
  Tensor a = p.a, b = p.b, c = p.c, aux = p.aux;
  if (p.c.dim() > 2 && p.k() > 0 && internal::is_repeated_over_batch(p.b)) {
    const auto rows_a = internal::fold_rows(a), rows_c = internal::fold_rows(c);
    const auto rows_aux = aux.defined() ? internal::fold_rows(aux) : std::optional(aux);
    if (rows_a && rows_c && rows_aux) {
      a = *rows_a;
      c = *rows_c;
      aux = *rows_aux;
      for (int d = 0; d + 2 < p.b.dim(); ++d) b = view::select(b, 0, 0);
    }
  }
  GemmBatch batch{matrix_of(a), matrix_of(b), matrix_of(c), {}, {}, {}, {}, {}};
  batch.a_offsets = internal::matrix_offsets(a);
  batch.b_offsets = internal::matrix_offsets(b);
  batch.c_offsets = internal::matrix_offsets(c);
  if (aux.defined()) {
    batch.aux = matrix_of(aux);
    batch.aux_offsets = internal::matrix_offsets(aux);
  }
  return batch;
}

/// C = scale A B + bias, or C += that. C stands for aux where a GELU follows.
struct GemmProduct {
  Matrix a, b, c;
  float scale;
  const float* bias;  // or null
  bool accumulate;
};

/// A whole problem with f32 bias by a function for one product: small products are dealt out to
/// threads, large ones may use all. Residual and epilogue are passes of their own.
void gemm_by_products(const GemmProblem& problem,
                      const std::function<void(const GemmProduct&)>& multiply);

/// K = 0: bias or zeros, or nothing to add. The epilogue is still to come.
void gemm_without_products(const GemmProblem& p, const GemmBatch& batch);
/// C = gelu(aux) or C *= gelu'(aux), for all matrices; then the bias gradient.
void gemm_epilogue(const GemmProblem& p, const GemmBatch& batch);
void copy_matrix_in_parallel(const Matrix& from, const Matrix& to);
/// The problem with its residual copied into c, to be accumulated onto: rounded once all the same.
GemmProblem with_residual_in_c(const GemmProblem& p);
/// The bias as contiguous f32 (f64 for f64); undefined without one.
Tensor gemm_bias(const GemmProblem& p);

}  // namespace weft::kernels
