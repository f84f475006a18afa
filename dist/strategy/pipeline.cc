#include "dist/model_parallel/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "dist/comm/device_mesh.h"
#include "dist/model_parallel/stages.h"
#include "dist/strategy/strategies.h"
#include "optim/optimizer_state.h"

namespace weft::dist {
namespace {

class PipelineStrategy : public Strategy {
 public:
  explicit PipelineStrategy(PipelineOptions options) : options_(std::move(options)) {}

  int data_size() const override { return options_.data->size(); }
  int data_rank() const override { return options_.data->rank(); }
  int micro_batches() const override { return static_cast<int>(options_.micro_batches); }
  bool counts() const override { return options_.stages->rank() + 1 == options_.stages->size(); }

  void wrap(nn::Module& module, const ModelStructure& structure) override {
    pipeline_ = std::make_unique<Pipeline>(module, structure.segments, options_);
  }
  bool calls_functions() const override { return false; }
  Tensors call(nn::Module&, const std::function<Tensors()>&) override {
    WEFT_FAIL(
        "pipeline: a model is called as model(x) alone, from one tensor to one; ddp, fsdp and tp "
        "can share out other functions of it");
  }
  Tensor forward(nn::Module&, const Tensor& x) override { return (*pipeline_)(x); }
  void run(nn::Module&, const MicroBatches& batches) override { pipeline_->run(batches); }
  void share_buffers(nn::Module&) override { pipeline_->broadcast_buffers(); }
  std::shared_ptr<void> no_sync() override { return pipeline_->no_sync(); }
  ExactSum squares(const Tensors& parameters) override {
    // Those of other stages have no gradient here.
    ExactSum sum = Strategy::squares(parameters);
    all_reduce(sum, *options_.stages);
    return sum;
  }

  bool keeps_whole_state() const override { return false; }
  NamedTensors model_state(nn::Module& module) override {
    if (data_rank() != 0) return {};
    NamedTensors mine;
    const NamedTensors entries = module.unrouted_state();
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
  LocalTensors local_state(nn::Module& module) override {
    LocalTensors mine = Strategy::local_state(module);
    std::erase_if(mine, [&](const LocalTensor& entry) { return !pipeline_->owns(entry.name); });
    return mine;
  }
  std::string describe(int64_t parameters, int64_t state_tensors) const override {
    const int stages = options_.stages->size();
    const int64_t bytes = kept_bytes(state_tensors);
    return fmt::format(
        "pipeline of {} stages ({}, {} micro-batches) on {} ranks: about {} P / {} "
        "= {} on each",
        stages, name(options_.schedule), options_.micro_batches, stages * data_size(), bytes,
        stages, megabytes(bytes * parameters / stages));
  }

 private:
  const PipelineOptions options_;
  std::unique_ptr<Pipeline> pipeline_;
};

/// One of a stage's turns: a micro-batch's forward or backward.
struct Turn {
  bool is_forward = true;
  int64_t micro_batch = 0;
};

/// The order of Pipeline::run.
std::vector<Turn> turns_of(int stage, int stages, int64_t micro_batches, Schedule schedule) {
  const int64_t in_flight = schedule == Schedule::kGpipe ? micro_batches : stages - stage;
  std::vector<Turn> turns;
  int64_t forwards = 0;
  for (int64_t backwards = 0; backwards < micro_batches; ++backwards) {
    while (forwards < micro_batches && forwards - backwards < in_flight) {
      turns.push_back({true, forwards++});
    }
    turns.push_back({false, backwards});
  }
  return turns;
}

/// The stages' lanes are "stage 0", ...; `computation` is that of the busiest stage and
/// `communication` what its neighbours' activations and gradients take on their way.
Timeline pipeline_timeline(const std::vector<RankWork>& stages, const Sharing& sharing,
                           const GroupSeconds& seconds, int64_t images) {
  const int count = static_cast<int>(stages.size());
  const int64_t k = sharing.micro_batches;
  const double header = seconds.message(8.0 * kActivationHeader);
  std::vector<std::vector<Turn>> turns;
  std::vector<StepWork::Pass> passes;  // of a micro-batch
  std::vector<double> given;           // bytes of a micro-batch's activation for the next stage
  for (int s = 0; s < count; ++s) {
    const ModelLayout& layout = stages[s].layout;
    turns.push_back(turns_of(s, count, k, sharing.schedule));
    passes.push_back(stages[s].work.pass());
    given.push_back(layout.activation_bytes *
                    (static_cast<double>(images) / static_cast<double>(k)) *
                    static_cast<double>(layout.given));
  }
  // When an activation has come to a stage, and a gradient; below 0: not yet known.
  std::vector<std::vector<double>> input(count, std::vector<double>(k, -1)), gradient = input;
  for (int64_t i = 0; i < k; ++i) input[0][i] = gradient[count - 1][i] = 0;
  std::vector<double> now(count, 0), out(count, 0), back(count, 0);  // stages, and lanes from them
  std::vector<size_t> next(count, 0);
  Timeline timeline;
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < count; ++s) {
      while (next[s] < turns[s].size()) {
        const auto [is_forward, i] = turns[s][next[s]];
        const double ready = (is_forward ? input : gradient)[s][i];
        if (ready < 0) break;
        const double seconds_here = is_forward ? passes[s].forward : passes[s].backward;
        const double begin = std::max(now[s], ready);
        now[s] = begin + seconds_here;
        timeline.spans.push_back({fmt::format("stage {}", s),
                                  fmt::format("{} {}", is_forward ? "forward" : "backward", i),
                                  begin, now[s]});
        if (is_forward && s + 1 < count) {
          out[s] = std::max(out[s], now[s]) + header + seconds.message(given[s]);
          input[s + 1][i] = out[s];
        } else if (!is_forward && s > 0) {
          back[s] = std::max(back[s], now[s]) + seconds.message(given[s - 1]);
          gradient[s - 1][i] = back[s];
        }
        ++next[s];
        moved = true;
      }
    }
  }
  for (int s = 0; s < count; ++s) {
    const double reduced =
        sharing.replicas > 1
            ? seconds.replicate(Collective::kAllReduce,
                                static_cast<double>(kElementBytes * stages[s].layout.parameters))
            : 0;
    const double mine = static_cast<double>(k) * (passes[s].forward + passes[s].backward) +
                        stages[s].work.optimizer;
    if (mine > timeline.computation) {
      timeline.computation = mine;
      timeline.communication = reduced;
      if (s + 1 < count) {
        timeline.communication += static_cast<double>(k) * (header + seconds.message(given[s]));
      }
      if (s > 0) {
        timeline.communication += static_cast<double>(k) * seconds.message(given[s - 1]);
      }
    }
    timeline.end = std::max(timeline.end, now[s] + reduced + stages[s].work.optimizer);
  }
  return timeline;
}

class PipelineKind : public WholeCopy {
 public:
  Sharing share(const StrategyOptions& options, int devices) const override {
    const int stages = options.pipeline_stages > 0 ? options.pipeline_stages : devices;
    return {.replicas = devices / stages,
            .stages = stages,
            .micro_batches = options.micro_batches > 0 ? options.micro_batches : 2 * stages,
            .schedule = options.schedule};
  }
  std::unique_ptr<Strategy> make(const StrategyOptions&, const Sharing& sharing,
                                 CommunicatorPtr world) const override {
    const DeviceMesh mesh(world, {{"data", sharing.replicas}, {"stage", sharing.stages}});
    return std::make_unique<PipelineStrategy>(
        PipelineOptions{.stages = mesh.shared_group("stage"),
                        .data = mesh.shared_group("data"),
                        .schedule = sharing.schedule,
                        .micro_batches = sharing.micro_batches});
  }

  /// Activations to the next stage, what announces them, gradients to the one before, and how far
  /// random numbers were drawn; an all_reduce of each parameter's gradient among copies.
  int64_t sent_bytes(const ModelLayout& layout, const Sharing& sharing,
                     const StepShape& step) const override {
    const int stage = sharing.stage_index(step.rank);
    int64_t bytes = 0;
    if (stage + 1 < sharing.stages) {
      bytes += kElementBytes * step.images * layout.given +
               sharing.micro_batches * kActivationHeader * static_cast<int64_t>(sizeof(int64_t));
    }
    if (stage > 0) {
      bytes += kElementBytes * step.images * layout.taken + static_cast<int64_t>(sizeof(uint64_t));
    }
    for (int64_t elements : layout.sizes) {
      bytes += kElementBytes *
               sent_by_all_reduce(elements, sharing.replicas, sharing.replica_index(step.rank));
    }
    return bytes;
  }
  std::string state_formula() const override {
    return "16 P_s of the stage's parameters, about P/S";
  }
  std::string sent_formula() const override {
    return "a forward, 104 bytes with each micro-batch, a backward, and 8 bytes, a = an activation "
           "of the batch between two stages; among copies 2 (R-1)/R 4 P_s";
  }
  Timeline timeline(const std::vector<RankWork>& stages, const Sharing& sharing,
                    const GroupSeconds& seconds, const StepShape& step) const override {
    return pipeline_timeline(stages, sharing, seconds, step.images);
  }
  std::optional<StrategyOptions> planned(const PlanChoice& choice) const override {
    if (choice.stages == 1 || choice.devices % choice.stages != 0) return {};
    return StrategyOptions{.name = name,
                           .pipeline_stages = choice.stages,
                           .micro_batches = choice.asked.micro_batches};
  }
};

}  // namespace

std::unique_ptr<StrategyKind> kinds::pipeline() { return std::make_unique<PipelineKind>(); }

}  // namespace weft::dist
