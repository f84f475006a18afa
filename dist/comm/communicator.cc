#include "dist/comm/communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace weft::dist {
namespace {

bool is_reducible(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::i64:
    case DType::i32:
      return true;
    default:
      return false;
  }
}

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
}

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

std::string_view name(ReduceOp op) {
  constexpr std::string_view kNames[] = {"sum", "mean", "max", "min"};
  return kNames[static_cast<int>(op)];
}

std::string_view name(Collective collective) {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "all_to_all", "send",           "recv",       "barrier"};
  return kNames[static_cast<int>(collective)];
}

std::string describe(const Operation& operation) {
  std::string text = fmt::format("{} #{}", name(operation.collective), operation.sequence);
  if (!operation.in.defined()) return text;
  text += fmt::format(
      " ({}{} {}", reduces(operation.collective) ? name(operation.op) : "",
      fmt::format("{}{}", reduces(operation.collective) ? " " : "", operation.in.dtype()),
      operation.in.shape());
  if (operation.collective == Collective::kBroadcast) {
    text += fmt::format(" from {}", operation.peer);
  }
  if (operation.collective == Collective::kSend) text += fmt::format(" to {}", operation.peer);
  if (operation.collective == Collective::kRecv) text += fmt::format(" from {}", operation.peer);
  return text + ")";
}

void Work::wait() const {
  if (!state_) return;
  if (!state_->done.load(std::memory_order_acquire)) state_->block();
  // A device's collective may be waited for by the device alone, and not have ended yet.
  if (state_->done.load(std::memory_order_acquire) && state_->failure) {
    std::rethrow_exception(state_->failure);
  }
}

bool Work::is_done() const { return !state_ || state_->done.load(std::memory_order_acquire); }

std::vector<int64_t> split_evenly(int64_t n, int ranks) {
  const int64_t part = (n + ranks - 1) / ranks;
  std::vector<int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(std::clamp<int64_t>(n - r * part, 0, part));
  return counts;
}

void Communicator::check_tensor(const char* collective, const Tensor& x) const {
  WEFT_CHECK(x.defined(), "{}: undefined tensor", collective);
  WEFT_CHECK(x.is_contiguous(), "{}: expected a contiguous tensor, got {} with strides {}",
             collective, x, x.strides());
}

void Communicator::check_reducible(const char* collective, const Tensor& x, ReduceOp op) const {
  WEFT_CHECK(is_reducible(x.dtype()), "{}: expected f64, f32, f16, bf16, i64 or i32, got {}",
             collective, x);
  WEFT_CHECK(op != ReduceOp::kMean || is_floating(x.dtype()),
             "{}: the mean of integers is not one; got {}", collective, x);
}

void Communicator::check_peer(const char* collective, int peer) const {
  WEFT_CHECK(peer >= 0 && peer < size_, "{}: rank {} is not in {}, which has {} ranks", collective,
             peer, name_, size_);
}

Work Communicator::begin(Operation operation) {
  const Collective c = operation.collective;
  operation.sequence = c == Collective::kSend   ? next_send_++
                       : c == Collective::kRecv ? next_recv_++
                                                : next_collective_++;
  return start(std::move(operation));
}

Work Communicator::all_reduce(const Tensor& x, ReduceOp op) {
  check_tensor("all_reduce", x);
  check_reducible("all_reduce", x, op);
  return begin({.collective = Collective::kAllReduce,
                .op = op,
                .in = x,
                .out = x,
                .counts = split_evenly(x.numel(), size_)});
}

Work Communicator::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op) {
  check_tensor("reduce_scatter", out);
  return reduce_scatter(out, in, std::vector<int64_t>(size_, out.numel()), op);
}

Work Communicator::reduce_scatter(const Tensor& out, const Tensor& in,
                                  const std::vector<int64_t>& counts, ReduceOp op) {
  check_tensor("reduce_scatter", in);
  check_tensor("reduce_scatter", out);
  check_reducible("reduce_scatter", in, op);
  WEFT_CHECK(static_cast<int>(counts.size()) == size_ && total(counts) == in.numel() &&
                 counts[rank_] == out.numel() && in.dtype() == out.dtype(),
             "reduce_scatter: {} on each of {} ranks does not cut into parts such as rank {}'s, {}",
             in, size_, rank_, out);
  return begin(
      {.collective = Collective::kReduceScatter, .op = op, .in = in, .out = out, .counts = counts});
}

Work Communicator::all_gather(const Tensor& out, const Tensor& in) {
  check_tensor("all_gather", in);
  return all_gather(out, in, std::vector<int64_t>(size_, in.numel()));
}

Work Communicator::all_gather(const Tensor& out, const Tensor& in,
                              const std::vector<int64_t>& counts) {
  check_tensor("all_gather", in);
  check_tensor("all_gather", out);
  WEFT_CHECK(static_cast<int>(counts.size()) == size_ && total(counts) == out.numel() &&
                 counts[rank_] == in.numel() && in.dtype() == out.dtype(),
             "all_gather: {} does not hold the parts of {} ranks, of which rank {}'s is {}", out,
             size_, rank_, in);
  return begin({.collective = Collective::kAllGather, .in = in, .out = out, .counts = counts});
}

Work Communicator::broadcast(const Tensor& x, int root) {
  check_tensor("broadcast", x);
  check_peer("broadcast", root);
  return begin({.collective = Collective::kBroadcast, .in = x, .out = x, .peer = root});
}

Work Communicator::all_to_all(const Tensor& out, const Tensor& in) {
  check_tensor("all_to_all", in);
  check_tensor("all_to_all", out);
  WEFT_CHECK(in.numel() == out.numel() && in.dtype() == out.dtype() && in.numel() % size_ == 0,
             "all_to_all: {} and {} do not hold one part for each of {} ranks", in, out, size_);
  WEFT_CHECK(in.numel() == 0 || in.raw() != out.raw(),
             "all_to_all: input and output must not share memory");
  return begin({.collective = Collective::kAllToAll,
                .in = in,
                .out = out,
                .counts = std::vector<int64_t>(size_, in.numel() / size_)});
}

Work Communicator::send(const Tensor& x, int destination) {
  check_tensor("send", x);
  check_peer("send", destination);
  WEFT_CHECK(destination != rank_, "send: rank {} sends to itself", rank_);
  return begin({.collective = Collective::kSend, .in = x, .out = x, .peer = destination});
}

Work Communicator::recv(const Tensor& x, int source) {
  check_tensor("recv", x);
  check_peer("recv", source);
  WEFT_CHECK(source != rank_, "recv: rank {} receives from itself", rank_);
  return begin({.collective = Collective::kRecv, .in = x, .out = x, .peer = source});
}

Work Communicator::barrier() { return begin({.collective = Collective::kBarrier}); }

}  // namespace weft::dist
