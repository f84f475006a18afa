#include <algorithm>
#include <deque>
#include <mutex>

#include "core/runtime.h"
#include "core/transfer.h"
#include "dist/comm/device/device_communicator.h"
#include "dist/comm/device/on_device.h"

namespace weft::dist {
namespace {

/// What has been called and not yet delivered, in order.
class Queue {
 public:
  struct Item : Work::State {
    Operation operation;  // on the device
    Operation staged;     // the same on the host
    Work work;
    uint64_t version = 0;  // of the input
    std::weak_ptr<Queue> queue;

    void block() const override {
      // Without a queue nobody is left to deliver: the communicator has gone.
      if (const auto owner = queue.lock()) owner->deliver(this);
    }
  };

  void push(std::shared_ptr<Item> item) {
    std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }

  /// The results of all up to this one.
  void deliver(const Item* last) {
    std::lock_guard lock(mutex_);
    while (!last->done && !items_.empty()) deliver_first();
  }

  /// What is to be read must be there: an input that is the result of a collective under way.
  void settle(const Tensor& input) {
    std::lock_guard lock(mutex_);
    const auto concerns = [&](const std::shared_ptr<Item>& item) {
      return item->operation.out.storage() == input.storage();
    };
    while (std::any_of(items_.begin(), items_.end(), concerns)) deliver_first();
  }

 private:
  void deliver_first() {
    const std::shared_ptr<Item> item = items_.front();
    items_.pop_front();
    try {
      if (failure_) std::rethrow_exception(failure_);
      item->work.wait();
      WEFT_CHECK(item->operation.in.version() == item->version,
                 "{}: its input was changed while it was under way", describe(item->operation));
      if (item->operation.collective != Collective::kSend) {
        copy_same_layout(item->staged.out, item->operation.out);
        item->operation.out.bump_version();
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    item->operation = item->staged = {};
    item->finish(failure_);
  }

  std::mutex mutex_;
  std::deque<std::shared_ptr<Item>> items_;
  std::exception_ptr failure_;
};

class StagedCommunicator : public DeviceCommunicator {
 public:
  StagedCommunicator(CommunicatorPtr host, Device device)
      : DeviceCommunicator(std::move(host), device) {}

  Traffic traffic() const override { return host().traffic(); }
  Traffic family_traffic() const override { return host().family_traffic(); }

 protected:
  CommunicatorPtr make_group(CommunicatorPtr host) override {
    return std::make_shared<StagedCommunicator>(std::move(host), device());
  }

  Work start_on_device(Operation operation) override {
    queue_->settle(operation.in);
    auto item = std::make_shared<Queue::Item>();
    item->queue = queue_;
    item->version = operation.in.version();
    item->staged = operation;
    item->staged.in = to_device(operation.in, Device{});
    const bool in_place = operation.out.is_same(operation.in);
    item->staged.out =
        in_place ? item->staged.in : Tensor::empty(operation.out.shape(), operation.out.dtype());
    item->work = host().begin(item->staged);
    item->operation = std::move(operation);
    queue_->push(item);
    return Work(item);
  }

 private:
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace

CommunicatorPtr make_staged_communicator(CommunicatorPtr host, Device device) {
  WEFT_CHECK(device.type != DeviceType::cpu, "staged: expected a CUDA device, got {}", device);
  require_device(device);
  return std::make_shared<StagedCommunicator>(std::move(host), device);
}

}  // namespace weft::dist
