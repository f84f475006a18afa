#include "train/ranks.h"

#include <cstring>

#include "autograd/random.h"

namespace weft::train {

Ranks::Ranks(const Config& config, dist::CommunicatorPtr world)
    : config_(config), world_(std::move(world)) {
  WEFT_CHECK(processes_of(config) == size(), "the run is set up for {} ranks, {} were started",
             processes_of(config), size());
  strategy_ =
      dist::make_strategy(strategy_options(config), world_, static_cast<int>(config.devices));
  global_batch_ = config.global_batch_size > 0 ? config.global_batch_size
                                               : config.batch_size * data_devices_of(config);
  pieces_ = config.deterministic_reduce > 0 ? static_cast<int>(config.deterministic_reduce)
                                            : strategy_->data_size() * strategy_->pieces();
}

data::LoaderOptions Ranks::share(data::LoaderOptions options, bool trains) const {
  options.batch_size = global_batch_;
  options.pieces = trains ? pieces_ : strategy_->data_size();
  options.ranks = strategy_->data_size();
  options.rank = strategy_->data_rank();
  return options;
}

void Ranks::begin_piece(int64_t epoch, int64_t index) const {
  if (!is_active()) return;
  // The word "rank" keeps these streams apart from those of initialisers and data.
  constexpr uint64_t kRank = 0x72616e6b;
  generator() = {
      .seed = config_.seed,
      .stream = kRank << 32 ^ static_cast<uint64_t>(epoch) << 40 ^ static_cast<uint64_t>(index)};
}

double Ranks::weight(int64_t images, int64_t parts) const {
  if (!is_active()) return 1.0 / static_cast<double>(parts);
  if (config_.gradient_average == "ranks") {
    return 1.0 / (static_cast<double>(parts) * static_cast<double>(strategy_->data_size()));
  }
  return static_cast<double>(images) /
         (static_cast<double>(parts / rounds()) * static_cast<double>(global_batch_));
}

void Ranks::run(nn::Module& model, int64_t pieces,
                const std::function<dist::MicroBatch(int64_t)>& piece, const Tensors& parameters) {
  if (config_.deterministic_reduce == 0) {
    strategy_->run(model, {.count = pieces, .at = piece});
    return;
  }
  dist::TreeAccumulator tree;
  strategy_->run(model, {.count = pieces, .at = piece, .accumulates = false, .after_each = [&] {
                           tree.push(dist::take_gradients(parameters));
                         }});
  dist::set_gradients(parameters, tree.finish());
}

Ranks::Sums Ranks::sum(Sums mine) const {
  if (!world_) return mine;
  if (!strategy_->counts()) mine = {.stops = mine.stops};
  mine.loss.all_reduce(*world_);
  const Tensor counts = Tensor::from(
      std::vector<int64_t>{mine.correct, mine.images, static_cast<int64_t>(mine.stops)}, {3});
  world_->all_reduce(counts).wait();
  const int64_t* c = counts.data<int64_t>();
  return {mine.loss, c[0], c[1], c[2] > 0};
}

bool Ranks::any(bool mine) const {
  if (!world_) return mine;
  const Tensor flag = Tensor::from(std::vector<int32_t>{mine}, {1});
  world_->all_reduce(flag, dist::ReduceOp::kMax).wait();
  return flag.data<int32_t>()[0] != 0;
}

void Ranks::max(const Tensor& x) const {
  if (world_) world_->all_reduce(x, dist::ReduceOp::kMax).wait();
}

double Ranks::grad_norm(const Tensors& parameters) const {
  if (world_ || !is_active()) return strategy_->grad_norm(parameters);
  // Alone, but with the bits that several ranks would have.
  Tensors gradients;
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  return dist::exact_norm(gradients, nullptr);
}

void Ranks::barrier() const {
  if (world_) world_->barrier().wait();
}

std::string Ranks::agree(const std::string& text) const {
  if (!world_) return text;
  const Tensor length = Tensor::from(std::vector<int64_t>{static_cast<int64_t>(text.size())}, {1});
  world_->broadcast(length).wait();
  const Tensor bytes = Tensor::zeros({length.data<int64_t>()[0]}, DType::u8);
  if (is_main() && !text.empty()) std::memcpy(bytes.raw(), text.data(), text.size());
  world_->broadcast(bytes).wait();
  return {static_cast<const char*>(bytes.raw()), bytes.nbytes()};
}

}  // namespace weft::train
