#include <fmt/format.h>

#include <unordered_map>

#include "dist/strategies.h"

namespace weft::dist {
namespace {

class PipelineStrategy : public Strategy {
 public:
  explicit PipelineStrategy(PipelineOptions options) : options_(std::move(options)) {}

  int data_size() const override { return options_.data->size(); }
  int data_rank() const override { return options_.data->rank(); }
  int pieces() const override { return static_cast<int>(options_.micro_batches); }
  bool counts() const override { return options_.stages->rank() + 1 == options_.stages->size(); }

  void wrap(nn::Module& module, const ModelStructure& structure) override {
    pipeline_ = std::make_unique<Pipeline>(module, structure.segments, options_);
  }
  Tensor forward(nn::Module&, const Tensor& x) override { return (*pipeline_)(x); }
  void run(nn::Module&, const MicroBatches& batches) override { pipeline_->run(batches); }
  std::shared_ptr<void> no_sync() override { return pipeline_->no_sync(); }
  ExactSum squares(const Tensors& parameters) override {
    // Those of other stages have no gradient here.
    ExactSum sum = own_squares(parameters);
    sum.all_reduce(*options_.stages);
    return sum;
  }

  NamedTensors model_state(nn::Module& module) override {
    if (data_rank() != 0) return {};
    NamedTensors mine;
    const NamedTensors entries = module.state_dict();
    for (const auto& entry : entries) {
      if (pipeline_->owns(entry.first)) mine.push_back(entry);
    }
    const NamedTensors all = pipeline_->gather(mine);
    if (all.empty()) return {};
    const std::unordered_map<std::string, Tensor> by_name(all.begin(), all.end());
    NamedTensors state;
    for (const auto& [name, entry] : entries) state.emplace_back(name, by_name.at(name));
    return state;
  }
  /// Parameters of other stages never had a gradient here, hence no state.
  optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer) override {
    optim::OptimizerState state = optimizer.state_dict();
    state.tensors = data_rank() == 0 ? pipeline_->gather(state.tensors) : NamedTensors();
    return state;
  }
  void load_model_state(nn::Module& module, const NamedTensors& state) override {
    NamedTensors mine;
    for (const auto& entry : state) {
      if (pipeline_->owns(entry.first)) mine.push_back(entry);
    }
    for (const std::string& name : module.load_state_dict(mine, {.strict = false}).missing) {
      WEFT_CHECK(!pipeline_->owns(name), "pipeline: the state lacks \"{}\"", name);
    }
  }
  void load_optimizer_state(optim::Optimizer& optimizer,
                            const optim::OptimizerState& state) override {
    optim::OptimizerState mine{.tensors = {}, .groups = state.groups};
    for (const auto& entry : state.tensors) {
      if (pipeline_->owns(entry.first.substr(0, entry.first.rfind('.')))) {
        mine.tensors.push_back(entry);
      }
    }
    optimizer.load_state_dict(mine);
  }
  std::string describe(int64_t parameters) const override {
    const int stages = options_.stages->size();
    return fmt::format(
        "pipeline of {} stages ({}, {} micro-batches) on {} ranks: about 16 P / {} "
        "= {} on each",
        stages, name(options_.schedule), options_.micro_batches, stages * data_size(), stages,
        megabytes(16.0 * static_cast<double>(parameters) / stages));
  }

 private:
  const PipelineOptions options_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace

std::unique_ptr<Strategy> make_pipeline(const PipelineOptions& options) {
  return std::make_unique<PipelineStrategy>(options);
}

}  // namespace weft::dist
