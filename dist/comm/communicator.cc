#include "dist/comm/communicator.h"

#include <fmt/core.h>

#include <algorithm>

namespace weft::dist {
namespace {

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
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
  text += reduces(operation.collective) ? fmt::format(" ({} ", name(operation.op)) : " (";
  text += fmt::format("{} {}", operation.in.dtype(), operation.in.shape());
  const bool is_source =
      operation.collective == Collective::kBroadcast || operation.collective == Collective::kRecv;
  if (is_source) text += fmt::format(" from {}", operation.peer);
  if (operation.collective == Collective::kSend) text += fmt::format(" to {}", operation.peer);
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

Work Communicator::begin(Operation o) {
  const std::string_view what = dist::name(o.collective);
  if (o.collective != Collective::kBarrier) {
    for (const Tensor& x : {o.in, o.out}) {
      WEFT_CHECK(x.defined(), "{}: undefined tensor", what);
      WEFT_CHECK(x.is_contiguous(), "{}: expected a contiguous tensor, got {} with strides {}",
                 what, x, x.strides());
    }
  }
  if (reduces(o.collective)) {
    constexpr DType kReducible[] = {DType::f64,  DType::f32, DType::f16,
                                    DType::bf16, DType::i64, DType::i32};
    WEFT_CHECK(std::ranges::count(kReducible, o.in.dtype()) == 1,
               "{}: expected f64, f32, f16, bf16, i64 or i32, got {}", what, o.in);
    WEFT_CHECK(o.op != ReduceOp::kMean || is_floating(o.in.dtype()),
               "{}: the mean of integers is not one; got {}", what, o.in);
  }
  // Whether the counts are those of the parts that `whole` is cut into, of which `mine` is one.
  const auto fits = [&](const Tensor& whole, const Tensor& mine) {
    if (o.counts.empty()) o.counts.assign(size_, mine.numel());
    return static_cast<int>(o.counts.size()) == size_ && o.begin(size_) == whole.numel() &&
           o.counts[rank_] == mine.numel() && o.in.dtype() == o.out.dtype();
  };
  switch (o.collective) {
    case Collective::kAllReduce:
      o.counts = split_evenly(o.in.numel(), size_);
      break;
    case Collective::kReduceScatter:
      WEFT_CHECK(fits(o.in, o.out),
                 "{}: {} on each of {} ranks does not cut into parts such as rank {}'s, {}", what,
                 o.in, size_, rank_, o.out);
      break;
    case Collective::kAllGather:
      WEFT_CHECK(fits(o.out, o.in),
                 "{}: {} does not hold the parts of {} ranks, of which rank {}'s is {}", what,
                 o.out, size_, rank_, o.in);
      break;
    case Collective::kAllToAll:
      WEFT_CHECK(o.in.numel() == o.out.numel() && o.in.dtype() == o.out.dtype() &&
                     o.in.numel() % size_ == 0,
                 "{}: {} and {} do not hold one part for each of {} ranks", what, o.in, o.out,
                 size_);
      WEFT_CHECK(o.in.numel() == 0 || o.in.raw() != o.out.raw(),
                 "{}: input and output must not share memory", what);
      o.counts.assign(size_, o.in.numel() / size_);
      break;
    case Collective::kBroadcast:
    case Collective::kSend:
    case Collective::kRecv:
      WEFT_CHECK(o.peer >= 0 && o.peer < size_, "{}: rank {} is not in {}, which has {} ranks",
                 what, o.peer, name_, size_);
      WEFT_CHECK(o.collective == Collective::kBroadcast || o.peer != rank_, "{}: rank {} {} itself",
                 what, rank_, o.collective == Collective::kSend ? "sends to" : "receives from");
      break;
    case Collective::kBarrier:
      break;
  }
  o.sequence = o.collective == Collective::kSend   ? next_send_++
               : o.collective == Collective::kRecv ? next_recv_++
                                                   : next_collective_++;
  return start(std::move(o));
}

}  // namespace weft::dist
