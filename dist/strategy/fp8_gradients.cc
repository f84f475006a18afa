#include "dist/strategy/fp8_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "autograd/backward.h"
#include "autograd/resting.h"
#include "core/memory_account.h"
#include "core/view.h"
#include "dist/data_parallel/ddp.h"
#include "kernels/binary/binary.h"
#include "kernels/fp8_quantize/fp8_quantize.h"
#include "nn/meta.h"
#include "nn/product_weights.h"

namespace weft::dist {
namespace {

constexpr DType kFormat = DType::f8e4m3;
/// Elements of a bucket. A reduction takes 4.5 bytes of each on two ranks, less on more.
constexpr int64_t kBucket = 4 << 20;

/// Of sums of `ranks` codes, which fit when they are divided by two to this power.
int room_for(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

class Fp8Gradients : public Strategy {
 public:
  explicit Fp8Gradients(CommunicatorPtr world) : world_(std::move(world)) {}

  int data_size() const override { return world_ ? world_->size() : 1; }
  int data_rank() const override { return world_ ? world_->rank() : 0; }

  void wrap(nn::Module& module, const ModelStructure&) override {
    module_ = &module;
    nn::materialize(module);
    if (world_) {
      verify_same_tensors(*world_, module.state_dict(), "fp8 gradients");
      broadcast(module.state_dict());
    }
    const auto in_products = nn::product_weights(module);
    for (const Tensor& parameter : module.parameters()) {
      if (!parameter.requires_grad()) continue;
      const bool is_matrix = parameter.dim() == 2 && parameter.dtype() == DType::f32 &&
                             in_products.contains(parameter.id());
      Tensors& list = is_matrix ? matrices_ : others_;
      list.push_back(parameter);
      register_ready_hook(
          parameter, [self = std::weak_ptr<Fp8Gradients*>(alive_), is_matrix, i = list.size() - 1] {
            if (const auto alive = self.lock()) (*alive)->on_ready(is_matrix, i);
          });
    }
  }

  Tensor forward(nn::Module& module, const Tensor& x) override {
    prepare();
    return module.unrouted(x);
  }
  Tensor call(nn::Module&, const std::function<Tensor()>& function) override {
    prepare();
    return function();
  }

  std::shared_ptr<void> no_sync() override {
    const bool previous = std::exchange(is_local_, true);
    return {nullptr, [self = std::weak_ptr<Fp8Gradients*>(alive_), previous](void*) {
              if (const auto alive = self.lock()) (*alive)->is_local_ = previous;
            }};
  }

  /// One gradient at a time in f32.
  ExactSum squares(const Tensors& parameters) override {
    ExactSum sum;
    for (const Tensor& p : parameters) {
      const Tensor gradient = p.grad();
      if (!gradient.defined()) continue;
      wake(gradient);
      sum.add(Strategy::squares({p}));
      let_go(gradient);
    }
    return sum;
  }

  std::string describe(int64_t parameters, int64_t) const override {
    const double mega = static_cast<double>(parameters) / 1e6, ranks = data_size();
    return fmt::format(
        "gradients of matrices in fp8 on {} ranks: at most {:.1f} MB on each, {:.1f} MB sent by "
        "each in a step",
        ranks, mega, 2 * (ranks - 1) / ranks * mega);
  }

 private:
  void broadcast(const NamedTensors& tensors) {
    std::vector<Work> works;
    for (const auto& [name, tensor] : tensors) works.push_back(world_->broadcast(tensor));
    for (const Work& work : works) work.wait();
  }

  void prepare() {
    if (world_ && !is_local_ && module_->is_training()) broadcast(module_->named_buffers());
  }

  void on_ready(bool is_matrix, size_t i) {
    if (is_matrix) compress(matrices_[i]);
    if (!world_ || is_local_ || std::exchange(is_waiting_, true)) return;
    after_backward([self = std::weak_ptr<Fp8Gradients*>(alive_)] {
      if (const auto alive = self.lock()) (*alive)->reduce();
    });
  }

  void compress(const Tensor& parameter) {
    const NoGrad guard;
    const Tensor gradient = parameter.grad();
    if (rests(gradient)) return rest(gradient);
    const MemoryScope scope(MemoryKind::kGradients);
    set_gradient(parameter, to_low_bits(kFormat, ops::contiguous(gradient)));
  }

  static void set_gradient(const Tensor& parameter, const LowBits& bits) {
    const Tensor gradient = nn::meta(parameter.shape(), DType::f32, parameter.device());
    rest_as(bits, gradient, MemoryKind::kGradients);
    parameter.set_grad(gradient);
  }

  void reduce() {
    const NoGrad guard;
    is_waiting_ = false;
    const std::vector<int> exponents = shared_exponents();
    for (size_t begin = 0; begin < matrices_.size();) {
      size_t end = begin;
      int64_t elements = 0;
      do {
        elements += matrices_[end++].numel();
      } while (end < matrices_.size() && elements + matrices_[end].numel() <= kBucket);
      add_over_ranks(exponents, begin, end, elements);
      begin = end;
    }
    reduce_others();
  }

  /// The smallest exponent of each matrix's gradient among the ranks that have one.
  std::vector<int> shared_exponents() {
    constexpr int kNobody = 1000;
    if (matrices_.empty()) return {};
    std::vector<int32_t> exponents;
    for (const Tensor& p : matrices_) {
      exponents.push_back(p.grad().defined() ? low_bits(p.grad()).exponent : kNobody);
    }
    const Tensor lowest = Tensor::from(exponents, {static_cast<int64_t>(exponents.size())});
    world_->all_reduce(lowest, ReduceOp::kMin).wait();
    const int32_t* const shared = lowest.data<int32_t>();
    std::vector<int> result(shared, shared + exponents.size());
    std::ranges::replace(result, kNobody, 0);
    return result;
  }

  /// Of the matrices [begin, end), which have so many elements. A rank without a gradient adds
  /// zeros.
  void add_over_ranks(const std::vector<int>& exponents, size_t begin, size_t end,
                      int64_t elements) {
    const MemoryScope scope(MemoryKind::kBuckets);
    const int64_t ranks = world_->size(), part = (elements + ranks - 1) / ranks;
    const Device device = matrices_[begin].device();
    const Tensor flat = ops::full({ranks * part}, 0, kFormat, device);
    const auto each = [&](const auto& visit) {
      int64_t offset = 0;
      for (size_t i = begin; i < end; ++i) {
        const Tensor& p = matrices_[i];
        visit(p, exponents[i], view::reshape(view::narrow(flat, 0, offset, p.numel()), p.shape()));
        offset += p.numel();
      }
    };
    each([](const Tensor& p, int exponent, const Tensor& place) {
      if (p.grad().defined()) write_codes(low_bits(p.grad()), exponent, place);
    });
    Tensor theirs = Tensor::empty({ranks, part}, kFormat, device);
    world_->all_to_all(theirs, flat).wait();
    // Numbers of four bits beneath one scale: sums in f32 are exact.
    const Tensor sum = ops::full({part}, 0, DType::f32, device);
    for (int64_t r = 0; r < ranks; ++r) {
      kernels::binary(
          {.op = kernels::BinaryOp::kAdd, .a = sum, .b = view::select(theirs, 0, r), .y = sum});
    }
    theirs = {};
    const Tensor rounded = Tensor::empty({part}, kFormat, device);
    const int room = room_for(static_cast<int>(ranks));
    kernels::fp8_quantize({.x = sum, .y = rounded, .scale = std::ldexp(1.0, -room)});
    world_->all_gather(flat, rounded).wait();
    const MemoryScope kept(MemoryKind::kGradients);
    each([room](const Tensor& p, int exponent, const Tensor& place) {
      const bool is_finite = exponent != LowBits::kNotFinite;
      p.set_grad({});
      set_gradient(p, {ops::clone(place), is_finite ? exponent - room : exponent});
    });
  }

  void reduce_others() {
    if (others_.empty()) return;
    int64_t elements = 0;
    for (const Tensor& p : others_) elements += p.numel();
    const MemoryScope scope(MemoryKind::kBuckets);
    const Tensor flat = ops::full({elements}, 0, others_[0].dtype(), others_[0].device());
    const auto each = [&](const auto& visit) {
      int64_t offset = 0;
      for (const Tensor& p : others_) {
        visit(p, view::reshape(view::narrow(flat, 0, offset, p.numel()), p.shape()));
        offset += p.numel();
      }
    };
    each([](const Tensor& p, Tensor place) {
      if (p.grad().defined()) ops::copy_(place, p.grad());
    });
    world_->all_reduce(flat, ReduceOp::kSum).wait();
    const MemoryScope kept(MemoryKind::kGradients);
    each([](const Tensor& p, const Tensor& place) { p.set_grad(ops::clone(place)); });
  }

  const CommunicatorPtr world_;
  nn::Module* module_ = nullptr;
  Tensors matrices_, others_;  // that are trained
  bool is_local_ = false;      // in no_sync()
  bool is_waiting_ = false;    // for the end of a backward
  std::shared_ptr<Fp8Gradients*> alive_ = std::make_shared<Fp8Gradients*>(this);
};

}  // namespace

std::unique_ptr<Strategy> make_fp8_gradients(CommunicatorPtr world) {
  return std::make_unique<Fp8Gradients>(std::move(world));
}

}  // namespace weft::dist
