// cuBLASLt, opened when first asked for: the yardstick of the hand-written rungs, and a choice.
//
// cuBLAS thinks in columns: our row-major C = A B is its C^T = B^T A^T, so the operands change
// places, and a bias along our columns is its bias along rows. Its GELU is the tanh form, not ours:
// the epilogues with GELU stay with our own kernels. Reductions that add in place, in no fixed
// order, are ruled out, so that the same call gives the same bits.
#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "core/stream.h"
#include "kernels/device/library.h"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {
namespace {

/// The functions used, from whichever library was found.
struct CublasLt {
  Library library{"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), "gemm_cublas"};
#define WEFT_CUBLAS(name) \
  decltype(&::name) name = library.is_open() ? library.function<decltype(&::name)>(#name) : nullptr
  WEFT_CUBLAS(cublasLtCreate);
  WEFT_CUBLAS(cublasLtMatmul);
  WEFT_CUBLAS(cublasLtMatmulDescCreate);
  WEFT_CUBLAS(cublasLtMatmulDescDestroy);
  WEFT_CUBLAS(cublasLtMatmulDescSetAttribute);
  WEFT_CUBLAS(cublasLtMatrixLayoutCreate);
  WEFT_CUBLAS(cublasLtMatrixLayoutDestroy);
  WEFT_CUBLAS(cublasLtMatrixLayoutSetAttribute);
  WEFT_CUBLAS(cublasLtMatmulPreferenceCreate);
  WEFT_CUBLAS(cublasLtMatmulPreferenceDestroy);
  WEFT_CUBLAS(cublasLtMatmulPreferenceSetAttribute);
  WEFT_CUBLAS(cublasLtMatmulAlgoGetHeuristic);
  WEFT_CUBLAS(cublasLtGetStatusString);
#undef WEFT_CUBLAS

  /// The device's handle; made in the device's context, which is the current one here.
  cublasLtHandle_t handle(int device) {
    std::lock_guard lock(mutex);
    cublasLtHandle_t& entry = handles[device];
    if (!entry) check(cublasLtCreate(&entry), "cublasLtCreate");
    return entry;
  }
  void check(cublasStatus_t status, const char* call) const {
    WEFT_CHECK(status == CUBLAS_STATUS_SUCCESS, "{} failed: {}", call,
               cublasLtGetStatusString(status));
  }

  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
};

CublasLt& cublas() {
  static auto& the_library = *new CublasLt;
  return the_library;
}

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// A matrix as cuBLAS sees it: our rows are its columns. `transposed`: our columns are dense.
struct View {
  bool transposed;
  int64_t leading;
};

std::optional<View> view_of(const Tensor& t) {
  const int64_t row = t.stride(-2), column = t.stride(-1);
  const int64_t rows = t.size(-2), columns = t.size(-1);
  if ((column == 1 || columns == 1) && row >= columns) return View{false, row};
  if ((row == 1 || rows == 1) && column >= rows) return View{true, column};
  return std::nullopt;
}

/// An object of cuBLASLt and the function that destroys it.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

template <class T, class... Args>
Owned<T> make(const char* call, cublasStatus_t (*create)(T*, Args...), cublasStatus_t (*destroy)(T),
              std::type_identity_t<Args>... args) {
  T raw = nullptr;
  cublas().check(create(&raw, args...), call);
  return Owned<T>(raw, destroy);
}

Owned<cublasLtMatrixLayout_t> layout_of(const Tensor& t, int64_t batches) {
  CublasLt& lt = cublas();
  const View view = *view_of(t);
  int64_t rows = t.size(-1), columns = t.size(-2);
  if (view.transposed) std::swap(rows, columns);
  auto layout =
      make("cublasLtMatrixLayoutCreate", lt.cublasLtMatrixLayoutCreate,
           lt.cublasLtMatrixLayoutDestroy, cuda_type(t.dtype()), rows, columns, view.leading);
  if (batches > 1) {
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      lt.check(lt.cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof(value)),
               "cublasLtMatrixLayoutSetAttribute");
    };
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batches));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, *batch_stride(t));
  }
  return layout;
}

/// Does the library round to C's 16 bits before it adds what is to be added? So it does on an H100
/// with a bias where lines do not begin at multiples of 16 bytes, and with parts of K that meet in
/// an old C.
bool rounds_twice(const GemmProblem& p) {
  if (p.c.itemsize() > 2) return false;
  if (p.accumulate || p.residual.defined()) return true;
  const auto is_aligned = [](const Tensor& t) { return view_of(t)->leading % 8 == 0; };
  return p.bias.defined() && !(is_aligned(p.a) && is_aligned(p.b) && is_aligned(p.c));
}

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

}  // namespace

bool gemm_fits_cublas(const GemmProblem& p) {
  if (!gemm_is<GemmArithmetic::kIeee>(p)) return false;
  if (p.epilogue != Epilogue::kNone || p.m() == 0 || p.n() == 0 || p.k() == 0) return false;
  if (p.c.numel() == 0 || !cublas().library.is_open()) return false;
  if (p.bias.defined() && (p.bias.dtype() != p.c.dtype() || p.bias.strides()[0] != 1)) return false;
  for (const Tensor* t : {&p.a, &p.b, &p.c, &p.residual}) {
    if (t->defined() && (!view_of(*t) || !batch_stride(*t))) return false;
  }
  if (rounds_twice(p)) return false;
  return !view_of(p.c)->transposed && (!p.residual.defined() || !view_of(p.residual)->transposed);
}

void gemm_cublas(const GemmProblem& p) {
  CublasLt& lt = cublas();
  const int64_t batches = p.c.numel() / (p.m() * p.n());
  const auto operation = make("cublasLtMatmulDescCreate", lt.cublasLtMatmulDescCreate,
                              lt.cublasLtMatmulDescDestroy, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    lt.check(lt.cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)),
             "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, view_of(p.b)->transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, view_of(p.a)->transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias.defined()) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.raw()));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.bias.dtype()));
  }
  // D = A B + beta C: what is added is the residual, or the old C.
  const Tensor& added = p.residual.defined() ? p.residual : p.c;
  const auto a = layout_of(p.b, batches), b = layout_of(p.a, batches);
  const auto c = layout_of(added, batches), d = layout_of(p.c, batches);

  const auto preference = make("cublasLtMatmulPreferenceCreate", lt.cublasLtMatmulPreferenceCreate,
                               lt.cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    lt.check(
        lt.cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto& [attribute, t] : {std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p.b),
                                     {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p.a},
                                     {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &added},
                                     {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p.c}}) {
    const auto address = reinterpret_cast<uintptr_t>(t->raw());
    prefer(attribute, static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1))));
  }
  const cublasLtHandle_t handle = lt.handle(p.device().index);
  cublasLtMatmulHeuristicResult_t choice = {};
  int found = 0;
  lt.check(lt.cublasLtMatmulAlgoGetHeuristic(handle, operation.get(), a.get(), b.get(), c.get(),
                                             d.get(), preference.get(), 1, &choice, &found),
           "cublasLtMatmulAlgoGetHeuristic");
  WEFT_CHECK(found > 0, "cuBLASLt has no algorithm for {}", p.describe());
  const Tensor workspace =
      Tensor::empty({static_cast<int64_t>(kWorkspaceBytes)}, DType::u8, p.device());
  const float alpha = 1, beta = p.accumulate || p.residual.defined() ? 1 : 0;
  lt.check(lt.cublasLtMatmul(handle, operation.get(), &alpha, p.b.raw(), a.get(), p.a.raw(),
                             b.get(), &beta, added.raw(), c.get(), p.c.raw(), d.get(), &choice.algo,
                             workspace.raw(), kWorkspaceBytes,
                             static_cast<cudaStream_t>(current_stream_handle(p.device()))),
           "cublasLtMatmul");
}

}  // namespace weft::kernels
