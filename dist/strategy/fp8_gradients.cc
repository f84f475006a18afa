#include "dist/strategy/fp8_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "autograd/backward.h"
#include "core/memory_account.h"
#include "core/view.h"
#include "dist/comm/agreement.h"
#include "dist/data_parallel/ddp.h"
#include "kernels/binary/binary.h"
#include "kernels/fp8_quantize/fp8_quantize.h"
#include "nn/meta.h"
#include "nn/product_weights.h"

namespace weft::dist {
namespace {

/// Of sums of `ranks` codes, which fit when they are divided by two to this power.
int room_for(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

}  // namespace

void Fp8Gradients::wrap(nn::Module& module, const ModelStructure&) {
  module_ = &module;
  nn::materialize(module);
  if (world_) {
    verify_same_tensors(*world_, module.state_dict(), "fp8 gradients");
    broadcast_all(*world_, module.state_dict());
  }
  const auto in_products = nn::product_weights(module);
  for (const auto& [name, parameter] : module.named_parameters()) {
    const bool is_matrix = parameter.requires_grad() && parameter.dim() == 2 &&
                           parameter.dtype() == DType::f32 && in_products.contains(parameter.id());
    Tensors& list = is_matrix ? matrices_ : others_;
    list.push_back(parameter);
    sums_.watch(parameter);
    if (is_matrix) names_.push_back(name);
    register_parameter_hook(parameter, while_alive(std::weak_ptr(alive_), &Fp8Gradients::on_ready,
                                                   is_matrix, list.size() - 1));
  }
}

Tensors Fp8Gradients::call(nn::Module&, const std::function<Tensors()>& function) {
  prepare();
  Tensors outputs = function();
  const auto is_trained = [](const Tensor& p) { return p.requires_grad(); };
  const bool trains =
      std::ranges::any_of(matrices_, is_trained) || std::ranges::any_of(others_, is_trained);
  if (!world_ || !trains) return outputs;
  register_output_hook(outputs, while_alive(std::weak_ptr(alive_), &Fp8Gradients::begin));
  return outputs;
}

std::shared_ptr<void> Fp8Gradients::no_sync() {
  ++local_depth_;
  return {nullptr, [self = std::weak_ptr<Fp8Gradients*>(alive_)](void*) {
            if (const auto alive = self.lock()) --(*alive)->local_depth_;
          }};
}

/// One gradient at a time in f32.
ExactSum Fp8Gradients::squares(const Tensors& parameters) {
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

std::string Fp8Gradients::describe(int64_t parameters, int64_t) const {
  const double mega = static_cast<double>(parameters) / 1e6, ranks = data_size();
  return fmt::format(
      "gradients of matrices in fp8 on {} ranks: at most {:.1f} MB on each, {:.1f} MB sent by "
      "each in a step",
      ranks, mega, 2 * (ranks - 1) / ranks * mega);
}

void Fp8Gradients::share_buffers(nn::Module& module) {
  if (!world_) return;
  recover();
  broadcast_all(*world_, module.named_buffers());
}

void Fp8Gradients::prepare() {
  if (local_depth_ == 0 && module_->is_training()) share_buffers(*module_);
}

void Fp8Gradients::on_ready(bool is_matrix, size_t i) {
  if (is_matrix) compress(matrices_[i]);
  begin();
}

void Fp8Gradients::begin() {
  WEFT_CHECK(data_size() == 1 || watch_.is_under_way() || !sums_.any(),
             "fp8 gradients: a backward pass on top of gradients that are summed over the ranks "
             "already; call zero_grad() before it, or run all passes of a step but the last under "
             "no_backward_sync()");
  if ((world_ && local_depth_ > 0) || watch_.is_under_way()) return;
  watch_.begin(while_alive(std::weak_ptr(alive_), &Fp8Gradients::reduce));
  recover();
}

void Fp8Gradients::compress(const Tensor& parameter) {
  const NoGrad guard;
  const Tensor gradient = parameter.grad();
  if (rests(gradient)) return rest(gradient);
  const MemoryScope scope(MemoryKind::kGradients);
  set_gradient(parameter, to_low_bits(kFormat, ops::contiguous(gradient)));
}

void Fp8Gradients::set_gradient(const Tensor& parameter, const LowBits& bits) {
  const Tensor gradient = nn::meta(parameter.shape(), DType::f32, parameter.device());
  rest_as(bits, gradient, MemoryKind::kGradients);
  parameter.set_grad(gradient);
}

Tensor Fp8Gradients::elements(const Tensor& codes, int64_t first, int64_t count) {
  return view::narrow(view::reshape(codes, {codes.numel()}), 0, first, count);
}

void Fp8Gradients::reduce() {
  const NoGrad guard;
  reduce_matrices(world_ ? shared_exponents() : std::vector<int>());
  if (world_) reduce_others();
  sums_.complete();
}

/// The smallest exponent of each matrix's gradient among the ranks that have one.
std::vector<int> Fp8Gradients::shared_exponents() const {
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

int Fp8Gradients::exponent_of_sum(int exponent) const {
  return exponent == LowBits::kNotFinite ? exponent : exponent - room_for(world_->size());
}

Tensor Fp8Gradients::sum_of_part(const std::vector<Piece>& pieces,
                                 const std::vector<int>& exponents, const Tensor& bucket) const {
  for (const Piece& piece : pieces) {
    const Tensor gradient = matrices_[piece.matrix].grad();
    if (!gradient.defined()) continue;
    LowBits mine = low_bits(gradient);
    mine.codes = elements(mine.codes, piece.first, piece.count);
    write_codes(mine, exponents[piece.matrix], elements(bucket, piece.place, piece.count));
  }
  const int64_t ranks = world_->size(), part = bucket.numel() / ranks;
  const Tensor theirs = Tensor::empty({ranks, part}, kFormat, bucket.device());
  world_->all_to_all(theirs, bucket).wait();
  // Numbers of four bits beneath one scale: sums in f32 are exact.
  const Tensor sum = ops::full({part}, 0, DType::f32, bucket.device());
  for (int64_t r = 0; r < ranks; ++r) {
    kernels::binary(
        {.op = kernels::BinaryOp::kAdd, .a = sum, .b = view::select(theirs, 0, r), .y = sum});
  }
  const Tensor rounded = Tensor::empty({part}, kFormat, bucket.device());
  kernels::fp8_quantize(
      {.x = sum, .y = rounded, .scale = std::ldexp(1.0, -room_for(world_->size()))});
  return rounded;
}

/// Bucket by bucket; every rank gets all sums.
void Fp8Gradients::reduce_matrices(const std::vector<int>& exponents) {
  if (!world_) return;
  for (size_t next = 0; next < matrices_.size();) {
    std::vector<Piece> pieces;
    int64_t size = 0;
    do {
      const int64_t count = matrices_[next].numel();
      pieces.push_back({.matrix = next++, .first = 0, .count = count, .place = size});
      size += count;
    } while (next < matrices_.size() && size + matrices_[next].numel() <= kBucket);
    const MemoryScope scope(MemoryKind::kBuckets);
    const int64_t ranks = world_->size(), part = (size + ranks - 1) / ranks;
    const Tensor bucket =
        ops::full({ranks * part}, 0, kFormat, matrices_[pieces[0].matrix].device());
    world_->all_gather(bucket, sum_of_part(pieces, exponents, bucket)).wait();
    const MemoryScope kept(MemoryKind::kGradients);
    for (const Piece& piece : pieces) {
      const Tensor& p = matrices_[piece.matrix];
      if (!p.requires_grad()) continue;
      const Tensor codes = ops::clone(elements(bucket, piece.place, piece.count));
      p.set_grad({});
      set_gradient(p, {view::reshape(codes, p.shape()), exponent_of_sum(exponents[piece.matrix])});
    }
  }
}

void Fp8Gradients::reduce_others() {
  Tensors trained = others_;
  std::erase_if(trained, [](const Tensor& p) { return !p.requires_grad(); });
  if (trained.empty()) return;
  int64_t elements = 0;
  for (const Tensor& p : trained) elements += p.numel();
  const MemoryScope scope(MemoryKind::kBuckets);
  const Tensor flat = ops::full({elements}, 0, trained[0].dtype(), trained[0].device());
  const auto each = [&](const auto& visit) {
    int64_t offset = 0;
    for (const Tensor& p : trained) {
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

}  // namespace weft::dist
