#include "kernels/rehearsal/rehearsal.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "kernels/conv2d/conv2d_shared.h"
#include "kernels/gemm/gemm_batch.h"
#include "kernels/plugin.h"
#include "kernels/plugins/own_row.h"
#include "kernels/rehearsal/op_headers.inc"
#include "kernels/testing/fields.h"

namespace weft::kernels {
namespace {

std::atomic<bool> is_rehearsing = false;
const Rehearsal::OnKernel* listener = nullptr;  // of the rehearsal, set before and after it alone

constexpr std::string_view kName = "rehearsal";

void clear(const Tensor& scalar) {
  if (scalar.defined() && scalar.numel() == 1) std::memset(scalar.raw(), 0, scalar.nbytes());
}

/// Sharded parameters are unsharded when they are touched (core/tensor.h).
template <class Problem>
void touch(const Problem& problem) {
  for_each_tensor(problem, [](const Tensor& x) {
    if (x.defined() && x.numel() > 0) x.raw();
  });
}

/// What the caller may read of the results.
template <class Problem>
void clear_scalars(const Problem&) {}
void clear_scalars(const MultiTensorNormProblem& p) { clear(p.norm); }
void clear_scalars(const MultiTensorScaleProblem& p) { clear(p.found_inf), clear(p.norm); }
void clear_scalars(const Fp8QuantizeProblem& p) { clear(p.amax); }
void clear_scalars(const ReduceProblem& p) { clear(p.y); }

/// What the CPU's variants of products take for themselves.
template <class Problem>
void take_scratch(const Problem&) {}
void take_bytes(int64_t bytes) { Tensor::empty({bytes}, DType::u8); }
void take_scratch(const Conv2dProblem& p) { take_bytes(conv2d_cpu_scratch(p)); }
void take_scratch(const GemmProblem& p) { take_bytes(gemm_cpu_scratch(p)); }

/// Those that are updated in place without standing in the problem twice.
template <class Problem>
std::vector<Tensor> updated_by(const Problem&) {
  return {};
}
std::vector<Tensor> updated_by(const AdamProblem& p) {
  std::vector<Tensor> all = p.parameters;
  for (const auto* list : {&p.m, &p.v}) all.insert(all.end(), list->begin(), list->end());
  return all;
}
std::vector<Tensor> updated_by(const SgdProblem& p) {
  std::vector<Tensor> all = p.parameters;
  if (!p.first_step) all.insert(all.end(), p.buffers.begin(), p.buffers.end());
  return all;
}
std::vector<Tensor> updated_by(const MultiTensorScaleProblem& p) { return p.tensors; }
std::vector<Tensor> updated_by(const GemmProblem& p) {
  if (p.accumulate) return {p.c};
  return {};
}

/// Bytes of x's elements; those that it repeats once.
int64_t distinct_bytes(const Tensor& x) {
  int64_t elements = 1;
  for (int d = 0; d < x.dim(); ++d) elements *= x.strides()[d] == 0 ? 1 : x.size(d);
  return elements * static_cast<int64_t>(x.itemsize());
}

template <class Problem>
std::vector<Operand> operands_of(const Problem& problem) {
  const std::vector<Tensor> updated = updated_by(problem);
  std::vector<Operand> operands;
  for_each_tensor(problem, [&](const Tensor& x) {
    if (!x.defined() || x.numel() == 0) return;
    const bool is_updated =
        std::ranges::any_of(updated, [&](const Tensor& u) { return u.is_same(x); });
    operands.push_back({x.storage(), x.offset(), distinct_bytes(x), is_updated});
  });
  return operands;
}

/// The op whose problems they are.
template <class Problem>
std::string_view op_of;

template <class Problem>
constexpr Variant<Problem> kRow = {
    kName, DeviceType::cpu, kAnyType,
    [](const Problem&) { return is_rehearsing.load(std::memory_order_relaxed); },
    [](const Problem& problem) {
      touch(problem);
      if (*listener) (*listener)(op_of<Problem>, operands_of(problem));
      take_scratch(problem);
      clear_scalars(problem);
    }};

template <class Problem>
void add_row_of(std::string_view op) {
  op_of<Problem> = op;
  add_row(op, &kRow<Problem>);
}

/// Once: lists keep their rows.
void add_rows() {
#define WEFT_OP(op) add_row_of<ProblemOf<decltype(op##_op)>>(#op);
#include "kernels/ops.inc"
#undef WEFT_OP
}

}  // namespace

Rehearsal::Rehearsal(OnKernel on_kernel) : on_kernel_(std::move(on_kernel)) {
  WEFT_CHECK(!is_rehearsing.exchange(true), "rehearsal: there is one already");
  listener = &on_kernel_;
  [[maybe_unused]] static const bool are_added = (add_rows(), true);
  // A variant that was asked for, and the fastest, would stand before the first row that fits.
#define WEFT_OP(op) forced_.push_back(std::make_unique<ForcedVariant>(#op, kName));
#include "kernels/ops.inc"
#undef WEFT_OP
}

Rehearsal::~Rehearsal() {
  forced_.clear();
  is_rehearsing = false;
}

}  // namespace weft::kernels
