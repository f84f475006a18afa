// What every op of kernels/ is made of: a problem, a list of variants, and one way in.
//
// A problem is a struct of tensors and options with three members: dtype() and device(), by which
// variants are chosen, and describe() for messages. A variant is a function on a problem that fits
// it. Dispatch takes the first row of the op's list that fits; WEFT_VARIANT=gemm=gemm_cpu_eigen
// (comma-separated) or a ForcedVariant takes another, WEFT_AUTOTUNE=1 the one that was fastest
// (kernels/autotune.h). WEFT_LOG=1 tells when a row was passed over because it did not fit.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/runtime.h"
#include "core/tensor.h"
#include "kernels/autotune.h"

namespace weft::kernels {

/// A set of dtypes.
class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (DType dtype : dtypes) bits_ |= 1u << static_cast<int>(dtype);
  }
  constexpr bool contains(DType dtype) const { return bits_ >> static_cast<int>(dtype) & 1u; }
  constexpr DTypeSet operator|(DTypeSet other) const {
    other.bits_ |= bits_;
    return other;
  }

 private:
  uint32_t bits_ = 0;
};

inline constexpr DTypeSet kFloatTypes = {DType::f64,  DType::f32,    DType::tf32,  DType::f16,
                                         DType::bf16, DType::f8e4m3, DType::f8e5m2};
/// The types that training computes in.
inline constexpr DTypeSet kComputeTypes = {DType::f64, DType::f32, DType::f16, DType::bf16};
inline constexpr DTypeSet kIntegerTypes = {DType::i64, DType::i32, DType::u8, DType::boolean};
inline constexpr DTypeSet kAnyType = kFloatTypes | kIntegerTypes;

/// One way to compute an op.
template <class Problem>
struct Variant {
  std::string_view name;  // <op>_<device>_<algorithm>
  DeviceType device;
  DTypeSet dtypes;
  bool (*fits)(const Problem&);
  void (*run)(const Problem&);
  std::string_view condition = {};  // fits, as the list writes it
};

/// An op: its name and all its variants, best first.
template <class Problem>
struct Op {
  std::string_view name;
  std::span<const Variant<Problem>> variants;
};

template <class Problem>
bool fits_any(const Problem&) {
  return true;
}

/// What the reference says of one output: values in row-major order, and how far each element of a
/// correct variant's output may lie from it. A bound of 0 demands equality.
struct Expected {
  std::vector<double> values;
  std::vector<double> bounds;
  /// For variants of a GPU where its units are less exact by their nature than what the CPU's
  /// variants are held to; else empty.
  std::vector<double> device_bounds = {};

  static Expected of_size(size_t n) { return {std::vector<double>(n), std::vector<double>(n)}; }
  void put(int64_t i, double value, double bound) {
    values[i] = value;
    bounds[i] = bound;
  }
  void add(double value, double bound) {
    values.push_back(value);
    bounds.push_back(bound);
  }
};

/// The variant that was forced for an op by the environment or a ForcedVariant; empty if none.
std::string forced_variant(std::string_view op);

/// Forces a variant of an op in all threads for as long as it lives.
class ForcedVariant {
 public:
  ForcedVariant(std::string_view op, std::string_view variant);
  ~ForcedVariant();
  ForcedVariant(const ForcedVariant&) = delete;
  ForcedVariant& operator=(const ForcedVariant&) = delete;

 private:
  std::string op_;
  std::string previous_;
};

/// Called around every kernel when set: the one place where tracing and profiling attach.
struct LaunchHook {
  virtual ~LaunchHook() = default;
  virtual void begin(std::string_view op, std::string_view variant, Device device,
                     const std::string& problem) = 0;
  /// In the thread of the latest begin() that has not ended, whether the kernel returned or threw.
  virtual void end() noexcept = 0;
};
void set_launch_hook(LaunchHook* hook);

/// Calls a function in the thread that made it, before each kernel that begins there; not before
/// those that a kernel calls. For memory that comes and goes (core/tensor.h): it must not go while
/// a kernel may hold its address.
class BeforeKernels {
 public:
  explicit BeforeKernels(std::function<void()> function);

  bool is_of_this_thread() const;
  /// Whether a kernel runs in the thread that made it, asked from any.
  bool in_kernel() const;
  /// Whether one runs in this thread; not in those that share its work.
  static bool in_kernel_here();

  struct Thread;

 private:
  std::shared_ptr<Thread> thread_;
  std::shared_ptr<const std::function<void()>> function_;
};

/// The one place where a kernel runs: what is to come before it, the hook's launch, and on a
/// device, which is then the current one, a range in the profiler's timeline, names for the memory
/// of the op's outputs, and a check that its launches were accepted. With WEFT_CUDA_SYNC=1 that
/// waits for them too, so that a fault is reported by the op that caused it.
class Launch {
 public:
  using Describe = std::function<std::string()>;  // the problem; called when needed

  /// The names end in a zero, as the literals of a list's rows do.
  Launch(std::string_view op, std::string_view variant, Device device, Describe describe);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  /// Throws Error naming the variant and the problem when a launch was refused or failed.
  void finish() const;

 private:
  std::string_view op_, variant_;
  Device device_;
  Describe describe_;
  LaunchHook* hook_;
  std::optional<runtime::DeviceGuard> guard_;
};

/// A problem whose variants may be chosen by time: tuning_key() names all that decides which is
/// fastest, shapes, dtypes, strides and options; written() are the tensors that a run changes.
template <class Problem>
concept Tunable = requires(const Problem& problem) {
  { problem.tuning_key() } -> std::convertible_to<std::string>;
  { problem.written() } -> std::convertible_to<std::vector<Tensor>>;
};

template <class Problem>
const Variant<Problem>* fastest_variant(const Op<Problem>& op, const Problem& problem);

[[noreturn]] void fail_no_variant(std::string_view op, const std::string& problem,
                                  std::string_view forced, const std::string& known);
bool any_variant_forced();

template <class Problem>
bool is_for(const Variant<Problem>& variant, const Problem& problem) {
  return variant.device == problem.device().type && variant.dtypes.contains(problem.dtype());
}
template <class Problem>
bool takes(const Variant<Problem>& variant, const Problem& problem) {
  return is_for(variant, problem) && variant.fits(problem);
}

/// The row of the list that dispatch runs; throws Error naming the problem and the variants when
/// none fits.
template <class Problem>
const Variant<Problem>& select_variant(const Op<Problem>& op, const Problem& problem) {
  const std::string forced = any_variant_forced() ? forced_variant(op.name) : std::string();
  if constexpr (Tunable<Problem>) {
    if (autotunes() && forced.empty()) [[unlikely]] {
      if (const Variant<Problem>* const variant = fastest_variant(op, problem)) return *variant;
    }
  }
  std::string passed_over;
  for (const Variant<Problem>& variant : op.variants) {
    if (!forced.empty() && variant.name != forced) continue;
    if (!is_for(variant, problem)) continue;
    if (variant.fits(problem)) {
      if (!passed_over.empty()) [[unlikely]] {
        log_once(fmt::format("{}: takes {}, as{} does not fit", problem.describe(), variant.name,
                             passed_over));
      }
      return variant;
    }
    if (log_level() > 0) [[unlikely]]
      passed_over += fmt::format(" {}", variant.name);
  }
  std::string known;
  for (const Variant<Problem>& variant : op.variants) {
    known += (known.empty() ? "" : ", ") + std::string(variant.name);
  }
  fail_no_variant(op.name, problem.describe(), forced, known);
}

/// Runs a variant that fits the problem.
template <class Problem>
void run_variant(const Op<Problem>& op, const Variant<Problem>& variant, const Problem& problem) {
  const Launch launch(op.name, variant.name, problem.device(), [&] { return problem.describe(); });
  variant.run(problem);
  launch.finish();
}

/// The fastest of the rows that fit; null where there is no choice.
template <class Problem>
const Variant<Problem>* fastest_variant(const Op<Problem>& op, const Problem& problem) {
  std::vector<const Variant<Problem>*> rows;
  std::vector<std::string_view> names;
  for (const Variant<Problem>& variant : op.variants) {
    if (!takes(variant, problem)) continue;
    rows.push_back(&variant);
    names.push_back(variant.name);
  }
  if (rows.size() < 2) return nullptr;
  return rows[choose_by_time({.op = op.name,
                              .problem = problem.tuning_key(),
                              .device = problem.device(),
                              .variants = std::move(names),
                              .written = problem.written(),
                              .run = [&](size_t i) { run_variant(op, *rows[i], problem); }})];
}

template <class Problem>
void dispatch(const Op<Problem>& op, const Problem& problem) {
  run_variant(op, select_variant(op, problem), problem);
}

}  // namespace weft::kernels

/// What every op's header declares: NAME(problem), which dispatches, the op with its variants, and
/// what they should give.
#define WEFT_DECLARE_OP(name, Problem) \
  void name(const Problem& problem);   \
  const Op<Problem>& name##_op();      \
  std::vector<Expected> name##_reference(const Problem& problem)

// A row of an op's list is WEFT_VARIANT(name, device, dtypes, fits); kernels/op_list_inl.h makes an
// op of the rows. The variant is a function `void name(const Problem&)` in weft::kernels: a row
// without one is a link error.

/// Rows of variants that are compiled in some flavours only: hand-written kernels where a CUDA
/// device, real or emulated, can exist, and those that call CUDA's libraries.
#ifdef WEFT_HAS_CUDA
#define WEFT_CUDA_VARIANT(name, dtypes, fits) WEFT_VARIANT(name, cuda, dtypes, fits)
#else
#define WEFT_CUDA_VARIANT(name, dtypes, fits)
#endif
#ifdef WEFT_HAS_CUDA_LIBRARIES
#define WEFT_CUDA_LIBRARY_VARIANT(name, dtypes, fits) WEFT_VARIANT(name, cuda, dtypes, fits)
#else
#define WEFT_CUDA_LIBRARY_VARIANT(name, dtypes, fits)
#endif
