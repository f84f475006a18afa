// Elementwise ops that are noted down instead of computed: what ops::fused (autograd/fused.h) is
// made of.
//
// A deferred op's result has a shape and a dtype, and memory that comes when it is touched: an op
// that knows nothing of all this reads it, and so has it computed. What is never read, or only by
// other deferred ops, gets no memory at all.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "autograd/tape.h"
#include "kernels/fused/fused.h"

namespace weft {

class Deferral : public std::enable_shared_from_this<Deferral> {
 public:
  static std::shared_ptr<Deferral> make() { return std::shared_ptr<Deferral>(new Deferral); }
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

  /// The result of the step's op on operands that broadcast to the shape, which has elements. The
  /// step's own operands do not matter.
  Tensor defer(const kernels::FusedStep& step, const Tensors& operands, const Shape& shape);

  /// Computes what somebody has a handle on. To be called before a tensor is changed in place.
  void flush();
  /// The same, at the end: `results` that nobody else has become tensors with memory of their own.
  void finish(Tensors& results);

 private:
  /// What a step reads: an earlier value, or a tensor from outside as it was then.
  struct Operand {
    int value = -1;
    Tensor tensor = {};
    uint64_t version = 0;
  };
  struct Value {
    kernels::FusedStep step;
    std::vector<Operand> operands;
    Shape shape;
    Device device;
    std::weak_ptr<Storage> handle;
    Tensor memory = {};
    bool computed = false;
  };

  Deferral() = default;

  Operand operand_of(const Tensor& x) const;
  /// The value whose result x is, as it was computed; -1: none.
  int value_of(const Tensor& x) const;
  const Tensor& memory_of(int value);
  /// It was computed: whoever has a handle on it finds its elements there.
  void publish(int value);
  /// The elements of an operand that is no value without memory, expanded to the shape.
  Tensor elements_of(const Operand& operand, const Shape& shape) const;

  void touch(int value);
  void compute(std::vector<int> values);
  /// Of one shape and device.
  void compute_alike(const std::vector<int>& values);
  void compute_alone(int value);
  /// What these values need and is not computed, they among them, in order.
  std::vector<int> needed_for(const std::vector<int>& values) const;
  /// The program that computes the needed values, and `values` as its results.
  kernels::FusedProblem program_of(const std::vector<int>& needed, const std::vector<int>& values);
  std::vector<int> with_handles() const;

  std::vector<Value> values_;
  std::unordered_map<const Storage*, int> by_storage_;  // the latest there
  std::recursive_mutex mutex_;                          // a kernel's threads touch, too
};

/// The deferral in force on this thread; null without one.
inline constinit thread_local Deferral* deferral_in_force = nullptr;

/// For ops: whether a result of this shape is deferred; Deferral::defer of the one in force.
inline bool is_deferred(const Shape& shape) { return deferral_in_force && numel(shape) > 0; }
inline Tensor defer(const kernels::FusedStep& step, const Tensors& operands, const Shape& shape) {
  return deferral_in_force->defer(step, operands, shape);
}

/// f(), an elementwise computation of x's size and others, as one pass over memory: for derivatives
/// while nothing is recorded. Few elements are computed op by op, which costs them less.
template <class F>
Tensor in_one_pass(const Tensor& x, F&& f) {
  constexpr int64_t kWorthwhile = 1 << 14;
  if (deferral_in_force || grad_enabled() || x.numel() < kWorthwhile) return f();
  const std::shared_ptr<Deferral> deferral = Deferral::make();
  const ScopedValue scope(deferral_in_force, deferral.get());
  Tensors results = {f()};
  deferral->finish(results);
  return results[0];
}

}  // namespace weft
