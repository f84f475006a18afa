#include "dist/data_parallel/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "dist/strategy/strategies.h"

namespace weft::dist {
namespace {

class Ddp : public Strategy {
 public:
  Ddp(CommunicatorPtr world, const DdpOptions& options, DType travels_in)
      : world_(std::move(world)), options_(options), travels_in_(travels_in) {
    options_.average = ReduceOp::kSum;
  }

  int data_size() const override { return world_->size(); }
  int data_rank() const override { return world_->rank(); }
  void wrap(nn::Module& module, const ModelStructure&) override {
    ddp_ = std::make_unique<DistributedDataParallel>(module, world_, options_);
  }
  Tensors call(nn::Module&, const std::function<Tensors()>& function) override {
    return ddp_->forward(function);
  }
  void share_buffers(nn::Module&) override { ddp_->broadcast_buffers(); }
  std::shared_ptr<void> no_sync() override { return ddp_->no_sync(); }
  std::string describe(int64_t parameters, int64_t state_tensors) const override {
    const int64_t bytes = kept_bytes(state_tensors), ranks = world_->size();
    const auto item = static_cast<int64_t>(itemsize(travels_in_));
    return fmt::format("ddp on {} ranks: {} P = {} on each, {} sent by each in a step{}", ranks,
                       bytes, megabytes(bytes * parameters),
                       megabytes(2 * (ranks - 1) * item * parameters / ranks),
                       travels_in_ == DType::f32 ? "" : fmt::format(", in {}", travels_in_));
  }
  int64_t padded_elements() const override {
    return ddp_->bucket_bytes() / static_cast<int64_t>(itemsize(DType::f32));
  }

 private:
  const CommunicatorPtr world_;
  DdpOptions options_;
  const DType travels_in_;
  std::unique_ptr<DistributedDataParallel> ddp_;
};

class DdpKind : public WholeCopy {
 public:
  Sharing share(const StrategyOptions& options, int devices) const override {
    return {.replicas = devices, .gradient_bytes = static_cast<int>(itemsize(narrow(options)))};
  }
  bool takes_fp8_level(int) const override { return true; }
  std::unique_ptr<Strategy> make(const StrategyOptions& options, const Sharing&,
                                 CommunicatorPtr world) const override {
    DdpOptions ddp{.find_unused_parameters = options.find_unused,
                   .static_graph = options.static_graph,
                   .gradient_as_bucket_view = true};
    if (options.bucket_mb > 0) ddp.bucket_bytes = int64_t{options.bucket_mb} << 20;
    const DType travels_in = narrow(options);
    if (travels_in != DType::f32) ddp.hook = compress_gradients(travels_in);
    return make_ddp(std::move(world), ddp, travels_in);
  }

  /// Gradients live in buckets, but for the one that has just been computed.
  StateBytes state_bytes(const ModelLayout& layout, const Sharing& sharing) const override {
    StateBytes bytes = WholeCopy::state_bytes(layout, sharing);
    bytes[MemoryKind::kGradients] = kElementBytes * layout.largest_parameter;
    bytes[MemoryKind::kBuckets] = kElementBytes * elements_of_buckets(layout, sharing);
    return bytes;
  }
  /// An all_reduce of the buckets.
  int64_t sent_bytes(const ModelLayout& layout, const Sharing& sharing,
                     const StepShape& step) const override {
    const int64_t elements =
        step.ddp_elements > 0 ? step.ddp_elements : elements_of_buckets(layout, sharing);
    return 2 * sharing.gradient_bytes * elements / sharing.replicas * (sharing.replicas - 1);
  }
  std::string state_formula() const override {
    return "4 P parameters + 4 P buckets + 8 P optimizer = 16 P, and one gradient";
  }
  std::string sent_formula() const override { return "2 (N-1)/N 4 P, compressed half of it"; }
  std::optional<StrategyOptions> planned(const PlanChoice&) const override {
    return StrategyOptions{.name = name};
  }

 private:
  static DType narrow(const StrategyOptions& options) {
    return narrow_dtype("compress-dtype", options.compress_dtype);
  }
  static int64_t elements_of_buckets(const ModelLayout& layout, const Sharing& sharing) {
    const std::vector<int64_t> buckets = bucket_elements(layout, sharing.replicas);
    return std::accumulate(buckets.begin(), buckets.end(), int64_t{0});
  }
};

}  // namespace

std::unique_ptr<Strategy> make_ddp(CommunicatorPtr data, const DdpOptions& options,
                                   DType travels_in) {
  return std::make_unique<Ddp>(std::move(data), options, travels_in);
}

std::unique_ptr<StrategyKind> kinds::ddp() { return std::make_unique<DdpKind>(); }

}  // namespace weft::dist
