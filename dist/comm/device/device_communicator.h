// Collectives for ranks that compute on a CUDA device: what NCCL (nccl.h) and its stand-in
// (staged.cc) share.
//
// Tensors on the device go to the engine; tensors on the CPU and barriers to the host communicator
// that it stands on, by which the ranks also find each other and learn that one has gone. A device
// collective is ordered by the stream that is current where it is called, and wait() puts the
// stream that is current there behind it, without blocking the thread unless an engine says so.
#pragma once

#include "dist/comm/communicator.h"
#include "dist/comm/device/on_device.h"

namespace weft::dist {

class DeviceCommunicator : public Communicator {
 public:
  CommunicatorPtr group(const std::vector<int>& ranks, const std::string& name) final {
    return make_group(host_->group(ranks, name));
  }
  void leave(const std::string& reason) override { host_->leave(reason); }

  Device device() const { return device_; }
  /// As buffer_for() in on_device.h; undefined where the engine reaches no memory more directly
  /// than any other.
  virtual Tensor registered_buffer(int64_t, DType, BufferLife) { return {}; }

 protected:
  DeviceCommunicator(CommunicatorPtr host, Device device);

  virtual CommunicatorPtr make_group(CommunicatorPtr host) = 0;
  virtual Work start_on_device(Operation operation) = 0;

  Communicator& host() const { return *host_; }

 private:
  Work start(Operation operation) final;

  const CommunicatorPtr host_;
  const Device device_;
};

/// The reduction of reduce_tree.h, by the device's kernels on its current stream: the same order,
/// f16 and bf16 in f32 and rounded once. inputs of one shape and dtype; the result may be the first
/// of them.
Tensor reduce_tree_on_device(ReduceOp op, const std::vector<Tensor>& inputs);

}  // namespace weft::dist
