// cuDNN's graph interface: operations on tensors, joined to one plan that the library compiles.
//
//   CudnnGraph graph;
//   const auto x = graph.memory(kX, p.x.dtype(), {rows, n}, {n, 1});
//   const auto twice = graph.temporary(DType::f32, {rows, n});
//   graph.pointwise(CUDNN_POINTWISE_MUL, twice, x, graph.number(2, 2));
//   ...
//   const CudnnPlan plan(graph, CudnnTarget(device));
//   plan.run(device, {{kX, p.x.raw()}, ...});
//
// Shapes and strides in elements, outermost dimension first. Arithmetic is in f32. What the library
// refuses is an Error. (cuDNN's documentation, "Graph API".) Only for sources of the cuda flavour.
#pragma once

#include "kernels/device/cudnn.h"

#if __has_include(<cudnn.h>)

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::kernels {

using CudnnDescriptor = CudnnOwned<cudnnBackendDescriptor_t>;

class CudnnGraph {
 public:
  /// A tensor of the graph, which owns it.
  using Value = cudnnBackendDescriptor_t;

  /// Memory that run() is given a pointer to, by `id` > 0; aligned to 16 bytes.
  Value memory(int64_t id, DType dtype, const Shape& shape, const Strides& strides);
  /// A result that stays inside; dense unless strides are given.
  Value temporary(DType dtype, const Shape& shape, std::optional<Strides> strides = {});
  /// An f32 that the host knows, as a tensor of `dims` dimensions of 1.
  Value number(float value, int dims);

  /// c = a b in the last two dimensions
  void matmul(Value a, Value b, Value c);
  /// y = op(x), op(x, b) or op(x, b, t), broadcast; `math`: what it computes in, f32, i32 or bool.
  void pointwise(cudnnPointwiseMode_t op, Value y, Value x, Value b = nullptr, Value t = nullptr,
                 DType math = DType::f32) {
    pointwise_along({}, op, y, x, b, t, math);
  }
  /// y = the place of each element of x along a dimension, i32
  void index(int dimension, Value y, Value x) {
    pointwise_along(dimension, CUDNN_POINTWISE_GEN_INDEX, y, x, nullptr, nullptr, DType::i32);
  }
  /// y = the maximum, sum, ... over the dimensions of x that are 1 in y
  void reduce(cudnnReduceTensorOp_t op, Value y, Value x);
  /// y = x with y's strides: a transpose
  void reshape(Value y, Value x);
  /// Over the dimensions that are not 1 in scale; eps is a number().
  void layer_norm(Value x, Value scale, Value bias, Value eps, Value y, Value mean, Value rstd);
  void layer_norm_backward(Value x, Value mean, Value rstd, Value dy, Value scale, Value dx,
                           Value dscale, Value dbias);

 private:
  friend class CudnnPlan;

  Value tensor(int64_t id, DType dtype, const Shape& shape, const Strides& strides, bool is_virtual,
               bool is_value);
  void pointwise_along(std::optional<int64_t> axis, cudnnPointwiseMode_t op, Value y, Value x,
                       Value b, Value t, DType math);
  void add(CudnnDescriptor operation);
  /// An operation of a type on values, in the form that `form` gives it.
  void add(cudnnBackendDescriptorType_t type, cudnnBackendAttributeName_t form_name,
           CudnnDescriptor form,
           std::initializer_list<std::pair<cudnnBackendAttributeName_t, Value>> values);

  std::vector<CudnnDescriptor> descriptors_;  // tensors, and what operations refer to
  std::vector<CudnnDescriptor> operations_;
  std::deque<float> numbers_;  // their addresses stay
  std::map<int64_t, void*> number_pointers_;
  int64_t next_id_ = int64_t{1} << 32;  // of what has no id of the caller's
};

/// What a plan is made for: a device, or one that is not here, by the properties that cuDNN (9.8
/// and later) writes of it.
class CudnnTarget {
 public:
  explicit CudnnTarget(Device device);
  explicit CudnnTarget(const std::string& properties_json);

 private:
  friend class CudnnPlan;
  cudnnHandle_t handle_ = nullptr;
  std::optional<CudnnDescriptor> properties_;
};

/// A compiled graph. Belongs to the thread that made it, as its handle does.
class CudnnPlan {
 public:
  /// The first of the heuristics' choices that can be compiled. Throws Error when none can.
  CudnnPlan(CudnnGraph graph, const CudnnTarget& target);

  /// Submits the graph to the device's current stream.
  void run(Device device, std::map<int64_t, void*> memory) const;

 private:
  CudnnGraph graph_;
  std::vector<CudnnDescriptor> parts_;  // what the plan refers to, and last the plan
  int64_t workspace_bytes_ = 0;
};

/// The plans that this thread made of one variant's problems, by what distinguishes their graphs.
class CudnnPlans {
 public:
  explicit CudnnPlans(std::string variant) : variant_(std::move(variant)) {}

  /// The plan of `key`, made from make(problem) the first time; null where there is none, which is
  /// said once on standard error: the variant does not take the problem then.
  template <class Problem>
  const CudnnPlan* find(const std::string& key, const Problem& problem,
                        CudnnGraph (*make)(const Problem&)) {
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second.get();
    std::unique_ptr<CudnnPlan>& plan = plans_[key];
    try {
      plan = std::make_unique<CudnnPlan>(make(problem), CudnnTarget(problem.device()));
    } catch (const Error& error) {
      report(key, error.what());
    }
    return plan.get();
  }

 private:
  void report(const std::string& key, const std::string& reason) const;

  std::string variant_;
  std::map<std::string, std::unique_ptr<CudnnPlan>> plans_;
};

/// Shape, strides and dtype of tensors, for the key of a plan.
std::string cudnn_layout(std::initializer_list<Tensor> tensors);

}  // namespace weft::kernels
#endif
