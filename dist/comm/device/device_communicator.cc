#include "dist/comm/device/device_communicator.h"

#include <bit>
#include <span>

#include "autograd/ops.h"
#include "core/tensor.h"

namespace weft::dist {
namespace {

Tensor tree(ReduceOp op, std::span<const Tensor> inputs) {
  if (inputs.size() == 1) return inputs[0];
  const size_t half = std::bit_floor(inputs.size() - 1);
  const Tensor a = tree(op, inputs.first(half)), b = tree(op, inputs.subspan(half));
  if (op == ReduceOp::kMax) return ops::maximum(a, b);
  return op == ReduceOp::kMin ? ops::minimum(a, b) : ops::add(a, b);
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(CommunicatorPtr host, Device device)
    : Communicator(host->name(), host->rank(), host->size(), host->shared_recorder()),
      host_(std::move(host)),
      device_(device) {}

Work DeviceCommunicator::start(Operation operation) {
  const bool on_host = !operation.in.defined() || operation.in.device().type == DeviceType::cpu;
  if (on_host) return host_->begin(std::move(operation));
  for (const Tensor* tensor : {&operation.in, &operation.out}) {
    WEFT_CHECK(tensor->device() == device_, "{}: rank {} of {} computes on {}, got a tensor on {}",
               describe(operation), rank(), name(), device_, tensor->device());
  }
  return start_on_device(std::move(operation));
}

Tensor reduce_tree_on_device(ReduceOp op, const std::vector<Tensor>& inputs) {
  const NoGrad guard;
  const DType dtype = inputs[0].dtype();
  const bool is_narrow = dtype == DType::f16 || dtype == DType::bf16;
  std::vector<Tensor> wide;
  for (const Tensor& x : inputs) wide.push_back(is_narrow ? ops::cast(x, DType::f32) : x);
  Tensor result = tree(op, wide);
  if (op == ReduceOp::kMean) {
    const Tensor ranks = Tensor::full({1}, static_cast<double>(inputs.size()), result.dtype());
    result = ops::div(result, ops::to(ranks, result.device()));
  }
  return is_narrow ? ops::cast(result, dtype) : result;
}

}  // namespace weft::dist
