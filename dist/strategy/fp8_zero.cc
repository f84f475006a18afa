#include "dist/strategy/fp8_zero.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "core/memory_account.h"
#include "dist/strategy/fp8_gradients.h"
#include "optim/optimizer_state.h"

namespace weft::dist {
namespace {

/// To ranks, the largest first, each to the one that has least.
std::vector<int> owners_of(const Tensors& matrices, int ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return matrices[i].numel(); });
  std::vector<int64_t> load(ranks, 0);
  std::vector<int> owners(matrices.size());
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += matrices[i].numel();
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

class Fp8Zero : public Fp8Gradients {
 public:
  using Fp8Gradients::Fp8Gradients;

  void wrap(nn::Module& module, const ModelStructure& structure) override {
    Fp8Gradients::wrap(module, structure);
    const NoGrad guard;
    owners_ = owners_of(matrices_, data_size());
    std::vector<int64_t> load(data_size(), 0);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Tensor& p = matrices_[i];
      load[owners_[i]] += p.numel();
      by_name_.emplace(names_[i], i);
      by_id_.emplace(p.id(), i);
      Tensor master = owns(i) ? ops::clone(detach(p)) : nothing(p);
      if (owns(i)) rest_in(DType::f16, master, MemoryKind::kOptimizer);
      masters_.push_back(master);
    }
    longest_ = *std::ranges::max_element(load);
    part_ = std::min(longest_, (kBucket + data_size() - 1) / data_size());
    send_weights();
  }

  /// Of the masters: those of other ranks have no elements here.
  optim::ParameterGroups groups(const optim::ParameterGroups& groups) override {
    optim::ParameterGroups result = groups;
    for (optim::ParameterGroup& group : result) {
      for (auto& [name, tensor] : group.parameters) {
        const auto found = by_id_.find(tensor.id());
        if (found != by_id_.end()) tensor = masters_[found->second];
      }
    }
    return result;
  }

  void drop_local_gradients(const Tensors& parameters) override {
    for (const Tensor& p : parameters) {
      if (p.grad().defined() && by_id_.contains(p.id())) p.set_grad({});
    }
  }

  /// What rests is this rank's alone, all else every rank's.
  ExactSum squares(const Tensors& parameters) override {
    Tensors mine;
    for (const Tensor& p : parameters) {
      if (data_rank() == 0 || rests(p)) mine.push_back(p);
    }
    ExactSum sum = Fp8Gradients::squares(mine);
    if (world_) all_reduce(sum, *world_);
    return sum;
  }

  /// The masters do not know what the program has changed in place of what they were rounded to.
  void keep_changes() override {
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const bool is_changed = matrices_[i].version() != versions_[i];
      versions_[i] = matrices_[i].version();
      WEFT_CHECK(
          !is_changed,
          "fp8-level O3: \"{}\" was changed in place where it is rounded to {}; what is kept "
          "of it in f16 can be changed by load_state_dict()",
          names_[i], kFormat);
    }
  }
  void after_step() override {
    keep_changes();
    send_weights();
  }

  bool keeps_whole_state() const override { return false; }
  NamedTensors model_state(nn::Module& module) override {
    keep_changes();
    NamedTensors state;
    for (const auto& [name, entry] : module.unrouted_state()) {
      const auto matrix = find(name);
      const Tensor whole = matrix ? at_first_rank(*matrix, masters_[*matrix]) : entry;
      if (data_rank() == 0) state.emplace_back(name, whole);
    }
    return state;
  }

  void load_model_state(nn::Module& module, const NamedTensors& state) override {
    const NoGrad guard;
    module.load_state_dict(state);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (owns(i)) ops::copy_(masters_[i], matrices_[i]);
    }
    send_weights();
  }

  optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer) override {
    const optim::OptimizerState mine = optimizer.state_dict();
    optim::OptimizerState whole{.tensors = {}, .groups = mine.groups};
    for (const auto& [name, tensor] : mine.tensors) {
      const auto matrix = find(optim::parameter_of(name));
      const Tensor all = matrix ? at_first_rank(*matrix, tensor) : tensor;
      if (data_rank() == 0) whole.tensors.emplace_back(name, all);
    }
    return whole;
  }

  void load_optimizer_state(optim::Optimizer& optimizer,
                            const optim::OptimizerState& state) override {
    optim::OptimizerState mine{.tensors = {}, .groups = state.groups};
    for (const auto& [name, tensor] : state.tensors) {
      const auto matrix = find(optim::parameter_of(name));
      WEFT_CHECK(!matrix || tensor.shape() == matrices_[*matrix].shape(),
                 "fp8-level O3: \"{}\" in the state is {}, expected shape {}", name, tensor,
                 matrices_[*matrix].shape());
      mine.tensors.emplace_back(name, matrix && !owns(*matrix) ? nothing(tensor) : tensor);
    }
    optimizer.load_state_dict(mine);
  }

  LocalTensors local_state(nn::Module& module) override {
    keep_changes();
    LocalTensors all = whole_tensors(module, data_size(), data_rank());
    for (LocalTensor& entry : all) {
      const auto matrix = find(entry.name);
      if (!matrix) continue;
      entry.tensor = masters_[*matrix];
      entry.placement.copies = 1;
      entry.placement.copy = 0;
      if (!owns(*matrix)) entry.placement.flat = {0, 0};
    }
    return all;
  }

  std::string describe(int64_t parameters, int64_t) const override {
    const double mega = static_cast<double>(parameters) / 1e6, ranks = data_size();
    return fmt::format(
        "matrices in fp8 on {} ranks, each with one owner: at most (1 + 6 / N) P = {:.1f} MB on "
        "each between steps, {:.1f} MB sent by each in a step",
        ranks, (1 + 6 / ranks) * mega, 2 * (ranks - 1) / ranks * mega);
  }

 protected:
  void reduce_matrices(const std::vector<int>& exponents) override {
    if (!world_) {
      for (size_t i = 0; i < matrices_.size(); ++i) {
        if (matrices_[i].grad().defined()) take_gradient(i, low_bits(matrices_[i].grad()));
      }
      return drop_local_gradients(matrices_);
    }
    const MemoryScope scope(MemoryKind::kGradients);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Tensor& p = matrices_[i];
      if (p.grad().defined()) continue;
      set_gradient(p, {ops::full(p.shape(), 0, kFormat, p.device()), exponents[i]});
    }
    for (int64_t begin = 0; begin < longest_; begin += part_) {
      const MemoryScope sent(MemoryKind::kBuckets);
      const Bucket bucket = bucket_from(begin);
      const Tensor sum = sum_of_part(bucket.pieces, exponents, bucket.codes);
      for (const Piece& piece : bucket.pieces) {
        if (!owns(piece.matrix)) continue;
        const LowBits mine = low_bits(matrices_[piece.matrix].grad());
        Tensor codes = elements(mine.codes, piece.first, piece.count);
        ops::copy_(codes, elements(sum, piece.place - data_rank() * bucket.part, piece.count));
      }
    }
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Tensor codes = low_bits(matrices_[i].grad()).codes;
      matrices_[i].set_grad({});
      if (!matrices_[i].requires_grad()) continue;
      if (owns(i)) take_gradient(i, {codes, exponent_of_sum(exponents[i])});
      if (!owns(i)) masters_[i].set_grad(nothing(masters_[i]));
    }
  }

 private:
  bool owns(size_t i) const { return owners_[i] == data_rank(); }

  /// What a rank has of a matrix that is not its own.
  static Tensor nothing(const Tensor& like) {
    return ops::full({0}, 0, like.dtype(), like.device());
  }

  std::optional<size_t> find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : std::optional(found->second);
  }

  /// What travels at a time: as many elements of each rank's matrices, which follow one another.
  struct Bucket {
    int64_t part;  // of each rank
    Tensor codes;
    std::vector<Piece> pieces;
  };
  Bucket bucket_from(int64_t begin) const {
    const int64_t part = std::min(part_, longest_ - begin);
    Bucket bucket{part, ops::full({data_size() * part}, 0, kFormat, matrices_[0].device()), {}};
    std::vector<int64_t> ends(data_size(), 0);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const int64_t first = ends[owners_[i]], end = ends[owners_[i]] += matrices_[i].numel();
      const int64_t low = std::max(first, begin), high = std::min(end, begin + part);
      if (low >= high) continue;
      bucket.pieces.push_back({.matrix = i,
                               .first = low - first,
                               .count = high - low,
                               .place = owners_[i] * part + low - begin});
    }
    return bucket;
  }

  /// Adds to the gradient of a matrix that is this rank's.
  void take_gradient(size_t i, const LowBits& bits) {
    const Tensor& master = masters_[i];
    Tensor sum = master.grad();
    set_gradient(master, bits);
    if (!sum.defined()) return;
    ops::add_(sum, master.grad());
    rest(sum);
    master.set_grad(sum);
  }

  /// Of the masters as they are: they are rounded to f16, and that to e4m3, so that a state that is
  /// saved and loaded leads to the same codes.
  void send_weights() {
    const NoGrad guard;
    std::vector<int32_t> exponents(matrices_.size(), kOthers);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (!owns(i)) continue;
      rest(masters_[i]);
      const LowBits bits = to_low_bits(kFormat, masters_[i]);
      let_go(masters_[i]);
      rest_as(bits, matrices_[i], MemoryKind::kParameters);
      exponents[i] = bits.exponent;
    }
    if (world_ && !matrices_.empty()) {
      const Tensor all = Tensor::from(exponents, {static_cast<int64_t>(exponents.size())});
      world_->all_reduce(all, ReduceOp::kMax).wait();
      for (int64_t begin = 0; begin < longest_; begin += part_) {
        receive_weights(begin, all.data<int32_t>());
      }
    }
    versions_.clear();
    for (const Tensor& p : matrices_) versions_.push_back(p.version());
  }

  void receive_weights(int64_t begin, const int32_t* exponents) {
    const MemoryScope scope(MemoryKind::kBuckets);
    const auto [part, flat, pieces] = bucket_from(begin);
    for (const Piece& piece : pieces) {
      if (!owns(piece.matrix)) continue;
      Tensor place = elements(flat, piece.place, piece.count);
      const LowBits bits = low_bits(matrices_[piece.matrix]);
      ops::copy_(place, elements(bits.codes, piece.first, piece.count));
    }
    world_->all_gather(flat, elements(flat, data_rank() * part, part)).wait();
    for (const Piece& piece : pieces) {
      if (owns(piece.matrix)) continue;
      const Tensor& p = matrices_[piece.matrix];
      if (piece.first == 0) {
        arriving_[piece.matrix] = Tensor::empty(p.shape(), kFormat, p.device());
      }
      Tensor& codes = arriving_.at(piece.matrix);
      Tensor place = elements(codes, piece.first, piece.count);
      ops::copy_(place, elements(flat, piece.place, piece.count));
      if (piece.first + piece.count < p.numel()) continue;
      rest_as({codes, exponents[piece.matrix]}, p, MemoryKind::kParameters);
      arriving_.erase(piece.matrix);
    }
  }

  /// The owner's tensor of a matrix, at rank 0; elsewhere nothing.
  Tensor at_first_rank(size_t i, const Tensor& mine) const {
    const NoGrad guard;
    const int owner = owners_[i];
    Tensor whole;
    if (owns(i)) {
      whole = ops::clone(detach(mine));
      let_go(mine);
      if (owner != 0) world_->send(whole, 0).wait();
    } else if (data_rank() == 0) {
      whole = Tensor::empty(matrices_[i].shape(), mine.dtype(), mine.device());
      world_->recv(whole, owner).wait();
    }
    return whole;
  }

  static constexpr int32_t kOthers = LowBits::kNotFinite - 1;  // below every exponent

  std::vector<int> owners_;  // of matrices_, as these
  Tensors masters_;
  std::vector<uint64_t> versions_;  // of matrices_, as they were sent
  std::unordered_map<std::string, size_t> by_name_;
  std::unordered_map<const void*, size_t> by_id_;
  int64_t longest_ = 0;                          // elements of the rank that owns most
  int64_t part_ = 0;                             // of them that travel at a time
  std::unordered_map<size_t, Tensor> arriving_;  // codes of weights, in send_weights()
};

}  // namespace

std::unique_ptr<Strategy> make_fp8_zero(CommunicatorPtr world) {
  return std::make_unique<Fp8Zero>(std::move(world));
}

}  // namespace weft::dist
