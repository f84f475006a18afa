#include <fmt/format.h>

#include <utility>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/scoped_value.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/strategy/strategies.h"
#include "nn/meta.h"

namespace weft::dist {
namespace {

class DataParallelStrategy : public Strategy {
 public:
  DataParallelStrategy(int devices, std::vector<int> numbers)
      : devices_(devices), numbers_(std::move(numbers)) {}

  int micro_batches() const override { return devices_; }
  void wrap(nn::Module& module, const ModelStructure& structure) override {
    WEFT_CHECK(
        structure.replica,
        "dp: the model's structure() has no replica, which says how another of its kind is made");
    nn::materialize(module);
    parallel_ = std::make_unique<DataParallel>(module, structure.replica, devices_, numbers_);
  }
  bool calls_functions() const override { return false; }
  Tensors call(nn::Module&, const std::function<Tensors()>&) override {
    WEFT_FAIL(
        "dp: a model is called as model(x) alone, from one tensor to one; ddp can share out other "
        "functions of it");
  }
  Tensor forward(nn::Module&, const Tensor& x) override { return (*parallel_)(x); }

  /// As many micro-batches at a time as there are replicas, whose gradients are added in the tree.
  void run(nn::Module&, const MicroBatches& batches) override {
    for (int64_t begin = 0; begin < batches.count; begin += devices_) {
      const int64_t end = std::min<int64_t>(begin + devices_, batches.count);
      std::vector<MicroBatch> group;
      Tensors inputs;
      std::vector<Generator> streams;
      for (int64_t i = begin; i < end; ++i) {
        // Unless at() sets another, as for replicas of a batch that is cut.
        Generator mine = generator();
        mine.stream += static_cast<uint64_t>(i - begin) << 32;
        const ScopedValue place(generator(), mine);
        group.push_back(batches.at(i));
        inputs.push_back(group.back().input);
        streams.push_back(generator());
      }
      Tensors outputs = parallel_->forward(inputs, streams);
      Tensor total;
      for (size_t i = 0; i < group.size(); ++i) {
        const Tensor loss = group[i].loss(std::exchange(outputs[i], {}));
        total = total.defined() ? total + loss : loss;
      }
      backward(total);
      if (!batches.accumulates && batches.after_each) batches.after_each();
    }
  }
  std::string describe(int64_t parameters, int64_t state_tensors) const override {
    const int64_t kept = kept_bytes(state_tensors);
    return fmt::format("dp on {} threads: {} P = {} on the first device, 4 P on each other",
                       devices_, kept, megabytes(kept * parameters));
  }

 private:
  const int devices_;
  const std::vector<int> numbers_;
  std::unique_ptr<DataParallel> parallel_;
};

class DpKind : public WholeCopy {
 public:
  Sharing share(const StrategyOptions&, int devices) const override { return {.threads = devices}; }
  std::unique_ptr<Strategy> make(const StrategyOptions& options, const Sharing& sharing,
                                 CommunicatorPtr) const override {
    return std::make_unique<DataParallelStrategy>(sharing.threads, options.device_numbers);
  }
  std::string state_formula() const override {
    return "4 P parameters + 4 P gradients + 8 P optimizer = 16 P on the first device; 4 P "
           "gradients on each other, and on a GPU 4 P parameters";
  }
  std::string sent_formula() const override { return "0"; }
};

}  // namespace

std::unique_ptr<StrategyKind> kinds::dp() { return std::make_unique<DpKind>(); }

}  // namespace weft::dist
