#include "kernels/device/cudnn_graph.h"

#if __has_include(<cudnn.h>)

#include "core/error.h"
#include "core/log.h"

namespace weft::kernels {
namespace {

CudnnDescriptor create(cudnnBackendDescriptorType_t type) {
  Cudnn& dnn = cudnn();
  cudnnBackendDescriptor_t raw = nullptr;
  dnn.check(dnn.cudnnBackendCreateDescriptor(type, &raw), "cudnnBackendCreateDescriptor");
  return {raw, dnn.cudnnBackendDestroyDescriptor};
}

/// What the library says of its last refusal.
std::string last_reason() {
#if CUDNN_MAJOR >= 9
  std::string text(512, '\0');
  cudnn().cudnnGetLastErrorString(text.data(), text.size());
  text.resize(text.find('\0'));
  return text;
#else
  return "";
#endif
}

void check(cudnnStatus_t status, const char* call) {
  WEFT_CHECK(status == CUDNN_STATUS_SUCCESS, "{} failed: {} {}", call,
             cudnn().cudnnGetErrorString(status), last_reason());
}

template <class T>
void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
         cudnnBackendAttributeType_t type, const T* values, size_t count) {
  check(cudnn().cudnnBackendSetAttribute(descriptor.get(), name, type, static_cast<int64_t>(count),
                                         values),
        "cudnnBackendSetAttribute");
}
template <class T>
void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
         cudnnBackendAttributeType_t type, const T& value) {
  set(descriptor, name, type, &value, 1);
}
void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
         const std::vector<int64_t>& values) {
  set(descriptor, name, CUDNN_TYPE_INT64, values.data(), values.size());
}
void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
         cudnnBackendDescriptor_t value) {
  set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value);
}

void finalize(const CudnnDescriptor& descriptor) {
  check(cudnn().cudnnBackendFinalize(descriptor.get()), "cudnnBackendFinalize");
}

cudnnDataType_t type_of(DType dtype) {
  if (dtype == DType::i32) return CUDNN_DATA_INT32;
  if (dtype == DType::boolean) return CUDNN_DATA_BOOLEAN;
  return cudnn_type(dtype);
}

void set_type(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, DType dtype) {
  set(descriptor, name, CUDNN_TYPE_DATA_TYPE, type_of(dtype));
}

/// Engines that the heuristics have asked for at most.
constexpr size_t kMostChoices = 16;

}  // namespace

CudnnGraph::Value CudnnGraph::tensor(int64_t id, DType dtype, const Shape& shape,
                                     const Strides& strides, bool is_virtual, bool is_value) {
  CudnnDescriptor t = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set_type(t, CUDNN_ATTR_TENSOR_DATA_TYPE, dtype);
  set(t, CUDNN_ATTR_TENSOR_DIMENSIONS, {shape.begin(), shape.end()});
  set(t, CUDNN_ATTR_TENSOR_STRIDES, {strides.begin(), strides.end()});
  set(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  set(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
  set(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  set(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, is_value);
  finalize(t);
  descriptors_.push_back(std::move(t));
  return descriptors_.back().get();
}

CudnnGraph::Value CudnnGraph::memory(int64_t id, DType dtype, const Shape& shape,
                                     const Strides& strides) {
  return tensor(id, dtype, shape, strides, false, false);
}

CudnnGraph::Value CudnnGraph::temporary(DType dtype, const Shape& shape,
                                        std::optional<Strides> strides) {
  return tensor(next_id_++, dtype, shape, strides.value_or(contiguous_strides(shape)), true, false);
}

CudnnGraph::Value CudnnGraph::number(float value, int dims) {
  numbers_.push_back(value);
  const int64_t id = next_id_++;
  number_pointers_[id] = &numbers_.back();
  const Shape ones = Shape::filled(dims, 1);
  return tensor(id, DType::f32, ones, ones, false, true);
}

void CudnnGraph::add(CudnnDescriptor operation) {
  finalize(operation);
  operations_.push_back(std::move(operation));
}

void CudnnGraph::add(cudnnBackendDescriptorType_t type, cudnnBackendAttributeName_t form_name,
                     CudnnDescriptor form,
                     std::initializer_list<std::pair<cudnnBackendAttributeName_t, Value>> values) {
  finalize(form);
  CudnnDescriptor operation = create(type);
  set(operation, form_name, form.get());
  for (const auto& [name, value] : values) {
    if (value) set(operation, name, value);
  }
  descriptors_.push_back(std::move(form));
  add(std::move(operation));
}

void CudnnGraph::matmul(Value a, Value b, Value c) {
  CudnnDescriptor form = create(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set_type(form, CUDNN_ATTR_MATMUL_COMP_TYPE, DType::f32);
  add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, std::move(form),
      {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
       {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
       {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c}});
}

void CudnnGraph::pointwise_along(std::optional<int64_t> axis, cudnnPointwiseMode_t op, Value y,
                                 Value x, Value b, Value t, DType math) {
  CudnnDescriptor form = create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(form, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, op);
  set_type(form, CUDNN_ATTR_POINTWISE_MATH_PREC, math);
  if (axis) set(form, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, *axis);
  add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
      std::move(form),
      {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
       {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
       {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t},
       {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op, Value y, Value x) {
  CudnnDescriptor form = create(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(form, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  set_type(form, CUDNN_ATTR_REDUCTION_COMP_TYPE, DType::f32);
  add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
      std::move(form),
      {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x}, {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}});
}

void CudnnGraph::reshape(Value y, Value x) {
  CudnnDescriptor operation = create(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  add(std::move(operation));
}

void CudnnGraph::layer_norm(Value x, Value scale, Value bias, Value eps, Value y, Value mean,
                            Value rstd) {
  CudnnDescriptor operation = create(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_LAYER_NORM);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE,
      CUDNN_NORM_FWD_TRAINING);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, scale);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, bias);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, eps);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, mean);
  set(operation, CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, rstd);
  add(std::move(operation));
}

void CudnnGraph::layer_norm_backward(Value x, Value mean, Value rstd, Value dy, Value scale,
                                     Value dx, Value dscale, Value dbias) {
  CudnnDescriptor operation = create(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_LAYER_NORM);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, mean);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, rstd);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, dy);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, scale);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dx);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, dscale);
  set(operation, CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, dbias);
  add(std::move(operation));
}

CudnnTarget::CudnnTarget(Device device) : handle_(cudnn().handle(device)) {}

CudnnTarget::CudnnTarget(const std::string& properties_json) {
#if CUDNN_VERSION >= 90800
  properties_.emplace(create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  set(*properties_, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
      properties_json.c_str(), properties_json.size() + 1);
  finalize(*properties_);
#else
  WEFT_FAIL("cuDNN before 9.8 makes plans only for a device that is here, not for {}",
            properties_json);
#endif
}

CudnnPlan::CudnnPlan(CudnnGraph graph, const CudnnTarget& target) : graph_(std::move(graph)) {
  Cudnn& dnn = cudnn();
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : graph_.operations_) operations.push_back(operation.get());
  CudnnDescriptor whole = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.data(),
      operations.size());
  if (target.handle_) {
    set(whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle_);
  }
  finalize(whole);

  CudnnDescriptor heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole.get());
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
#if CUDNN_VERSION >= 90800
  if (target.properties_) {
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.properties_->get());
  }
#endif
  finalize(heuristics);
  std::vector<CudnnDescriptor> choices;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (size_t i = 0; i < kMostChoices; ++i) {
    choices.push_back(create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(choices.back().get());
  }
  int64_t found = 0;
  check(
      dnn.cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, kMostChoices, &found, raw.data()),
      "cudnnBackendGetAttribute");
  std::string reason = "the heuristics know no engine";
  for (int64_t i = 0; i < found && i < static_cast<int64_t>(kMostChoices); ++i) {
    try {
      CudnnDescriptor plan = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choices[i].get());
      if (target.handle_) {
        set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle_);
      }
      finalize(plan);
      int64_t count = 0;
      check(dnn.cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                         CUDNN_TYPE_INT64, 1, &count, &workspace_bytes_),
            "cudnnBackendGetAttribute");
      for (CudnnDescriptor* part : {&whole, &choices[i], &plan}) parts_.push_back(std::move(*part));
      return;
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  WEFT_FAIL("cuDNN has no plan for a graph of {} operations: {}", operations.size(), reason);
}

void CudnnPlan::run(Device device, std::map<int64_t, void*> memory) const {
  Cudnn& dnn = cudnn();
  memory.insert(graph_.number_pointers_.begin(), graph_.number_pointers_.end());
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [id, pointer] : memory) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  const Tensor workspace = Tensor::empty({workspace_bytes_}, DType::u8, device);
  CudnnDescriptor pack = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.data(),
      pointers.size());
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace.raw());
  finalize(pack);
  check(dnn.cudnnBackendExecute(dnn.handle(device), parts_.back().get(), pack.get()),
        "cudnnBackendExecute");
}

void CudnnPlans::report(const std::string& key, const std::string& reason) const {
  log_once(fmt::format("{}: left out for {}: {}", variant_, key, reason));
}

std::string cudnn_layout(std::initializer_list<Tensor> tensors) {
  std::string text;
  for (const Tensor& t : tensors) {
    if (!t.defined()) continue;
    text += fmt::format("{} {} strides {}; ", name(t.dtype()), to_string(t.shape()),
                        to_string(t.strides()));
  }
  return text;
}

}  // namespace weft::kernels
#endif
