#include "train/trainer/captured_passes.h"

#include <algorithm>

#include "autograd/narrow_copies.h"
#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/transfer.h"

namespace weft::train {

CapturedPasses::~CapturedPasses() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const Tensor gradient = parameters_[i].grad();
    // One that was frozen when they were captured has none there.
    if (gradient.defined() && gradients_[i].defined() &&
        gradient.storage() == gradients_[i].storage()) {
      parameters_[i].set_grad({});
    }
  }
}

void CapturedPasses::capture(const std::vector<Batch>& batches,
                             const std::function<Tensors(const std::vector<Batch>&)>& passes) {
  for (const Batch& batch : batches) {
    Batch& input = inputs_.emplace_back();
    for (const Tensor& x : batch) {
      input.push_back(empty_beside_capture(x.shape(), x.dtype(), device_));
    }
  }
  // What steps have used until now is not needed beside the graph's own.
  allocator(device_).release_pool();
  for (const Tensor& parameter : parameters_) {
    seen_.push_back({parameter.raw(), parameter.requires_grad(), narrow_copy(parameter)});
  }
  modes_.emplace(model_);
  generator_ = generator();
  graph_.capture([&] { losses_ = passes(inputs_); });
  peak_bytes_ = allocator(device_).stats().peak_live;
  for (const Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
}

bool CapturedPasses::fits(const std::vector<Batch>& batches) const {
  const auto is_alike = [](const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && a.dtype() == b.dtype();
  };
  const auto is_as_seen = [](const Tensor& parameter, const Seen& seen) {
    return parameter.raw() == seen.memory && parameter.requires_grad() == seen.requires_grad &&
           (!seen.narrow.defined() || narrow_copy(parameter).is_same(seen.narrow));
  };
  // A graph draws from the stream that it was captured with.
  if (!std::ranges::equal(parameters_, seen_, is_as_seen) || nn::Modes(model_) != modes_ ||
      generator().seed != generator_.seed || generator().stream != generator_.stream) {
    return false;
  }
  return std::ranges::equal(batches, inputs_, [&](const Batch& batch, const Batch& input) {
    return std::ranges::equal(batch, input, is_alike);
  });
}

void CapturedPasses::launch(const std::vector<Batch>& batches) {
  const NoGrad guard;
  for (size_t i = 0; i < batches.size(); ++i) {
    for (size_t j = 0; j < batches[i].size(); ++j) {
      copy_same_layout(ops::contiguous(batches[i][j]), inputs_[i][j]);
    }
  }
  graph_.launch();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (gradients_[i].defined()) parameters_[i].set_grad(gradients_[i]);
  }
}

void CapturedPasses::log(const std::string& name, const Tensor& value, const LogOptions& options) {
  WEFT_CHECK(value.defined() && value.device() == device_,
             "log: \"{}\": in a captured step a number of the host's would stay what it is; "
             "expected one on {}",
             name, to_string(device_));
  logged_.push_back({losses_.size(), name, detach(value), options});
}

}  // namespace weft::train
