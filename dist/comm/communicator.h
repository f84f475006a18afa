// Collectives among ranks.
//
//   Work work = comm.all_reduce(gradients, ReduceOp::kMean);   // begins at once
//   ...                                                        // overlapped computation
//   work.wait();
//
// N ranks call the same collectives of a communicator in the same order; those of different
// communicators run independently of each other. Every function returns at once; the tensors,
// which are contiguous, may be touched again after wait(), which rethrows what went wrong.
//
// Sums are formed element by element in one binary tree over the ranks (reduce_tree.h), so the bits
// depend neither on the engine nor on where a buffer is cut, and reduce_scatter gives the bits of
// all_reduce. f16 and bf16 are added in f32 and rounded once.
//
// Errors name rank, group, collective and sequence number. A rank that does not come is an error of
// all others after the deadline, and the communicator is of no use afterwards.
//
// Engines: in_process.h (ranks as threads), mpi.h and tcp.h (ranks as processes); for tensors on a
// device nccl.h and on_device.h, on top of one of these.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "dist/comm/flight_recorder.h"

namespace weft::dist {

enum class ReduceOp : uint8_t { kSum, kMean, kMax, kMin };

enum class Collective : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier,
};

std::string_view name(ReduceOp op);
std::string_view name(Collective collective);

/// A collective under way; a cheap handle.
class Work {
 public:
  Work() = default;  // done
  /// Blocks until the collective is complete on this rank; throws its Error. On a device what is
  /// submitted from now on to the current stream runs behind the collective, and this thread goes
  /// on.
  void wait() const;
  bool is_done() const;

  /// What an engine keeps of it.
  struct State {
    std::atomic<bool> done{false};
    std::exception_ptr failure;  // written before done
    virtual void block() const { done.wait(false, std::memory_order_acquire); }
    virtual ~State() = default;
    void finish(std::exception_ptr error) {
      failure = std::move(error);
      done.store(true, std::memory_order_release);
      done.notify_all();
    }
  };
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Bytes that this rank has sent to others, counted where they leave. Control traffic, such as the
/// comparison of WEFT_DIST_DEBUG, is kept apart.
struct Traffic {
  int64_t sent = 0;
  int64_t messages = 0;
  int64_t control = 0;
};

/// A collective as the engines see it.
struct Operation {
  Collective collective = Collective::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  Tensor in, out;               // the same for in-place collectives
  std::vector<int64_t> counts;  // elements per rank
  int peer = 0;                 // root, destination or source
  uint64_t sequence = 0;

  /// The element at which the part of rank r begins.
  int64_t begin(int r) const {
    return std::accumulate(counts.begin(), counts.begin() + r, int64_t{0});
  }
};

/// "all_reduce #12 (sum f32 [1024])"
std::string describe(const Operation& operation);

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }

  /// x = op over ranks of x, in place. kMean divides the sum by size(); not for integers.
  Work all_reduce(const Tensor& x, ReduceOp op = ReduceOp::kSum) {
    return begin({.collective = Collective::kAllReduce, .op = op, .in = x, .out = x});
  }
  /// out = this rank's part of op over ranks of `in`. in.numel() == size() * out.numel(); rank r
  /// gets the r-th part. out may be that part of in.
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::kSum) {
    return reduce_scatter(out, in, {}, op);
  }
  /// The same with parts of counts[r] elements, which may be 0.
  Work reduce_scatter(const Tensor& out, const Tensor& in, const std::vector<int64_t>& counts,
                      ReduceOp op = ReduceOp::kSum) {
    return begin({Collective::kReduceScatter, op, in, out, counts});
  }
  /// out = the ranks' `in` one after another: counts[r] elements of rank r, which may be 0, or as
  /// many of each. `in` may be this rank's part of out.
  Work all_gather(const Tensor& out, const Tensor& in, const std::vector<int64_t>& counts = {}) {
    return begin({.collective = Collective::kAllGather, .in = in, .out = out, .counts = counts});
  }
  /// x = x of rank `root`.
  Work broadcast(const Tensor& x, int root = 0) {
    return begin({.collective = Collective::kBroadcast, .in = x, .out = x, .peer = root});
  }
  /// Part r of `in` goes to rank r; part r of `out` comes from rank r. All parts have one size.
  Work all_to_all(const Tensor& out, const Tensor& in) {
    return begin({.collective = Collective::kAllToAll, .in = in, .out = out});
  }
  /// A send and the recv of its peer meet in order, and both end when the data has moved: two ranks
  /// that both send first wait for each other. They have sequence numbers of their own.
  Work send(const Tensor& x, int destination) {
    return begin({.collective = Collective::kSend, .in = x, .out = x, .peer = destination});
  }
  Work recv(const Tensor& x, int source) {
    return begin({.collective = Collective::kRecv, .in = x, .out = x, .peer = source});
  }
  Work barrier() { return begin({.collective = Collective::kBarrier}); }
  /// Any of these: checks the arguments, of which counts may be left out for parts of one size.
  Work begin(Operation operation);

  /// A communicator of some of this one's ranks, in the order given; called by those ranks alone.
  virtual std::shared_ptr<Communicator> group(const std::vector<int>& ranks,
                                              const std::string& name) = 0;

  /// Says that this rank has given up: the others' collectives fail at once, with the reason.
  virtual void leave(const std::string& reason) = 0;

  /// Begun on this rank, sends and recvs apart: as many on every rank that is at the same place.
  uint64_t collectives() const { return next_collective_ - 1; }
  virtual Traffic traffic() const = 0;
  /// Of this rank in this communicator, in the one it was made from and in all groups beside it.
  virtual Traffic family_traffic() const = 0;
  FlightRecorder& recorder() { return *recorder_; }
  const std::shared_ptr<FlightRecorder>& shared_recorder() const { return recorder_; }

 protected:
  Communicator(std::string name, int rank, int size, std::shared_ptr<FlightRecorder> recorder)
      : name_(std::move(name)), rank_(rank), size_(size), recorder_(std::move(recorder)) {}
  /// Begins an operation whose arguments were checked.
  virtual Work start(Operation operation) = 0;

 private:
  const std::string name_;
  const int rank_, size_;
  std::shared_ptr<FlightRecorder> recorder_;
  uint64_t next_collective_ = 1, next_send_ = 1, next_recv_ = 1;
};

using CommunicatorPtr = std::shared_ptr<Communicator>;

/// The elements that each of `ranks` ranks gets when n are cut into equal parts, the last ones
/// smaller or empty: ceil(n / ranks) each.
std::vector<int64_t> split_evenly(int64_t n, int ranks);

}  // namespace weft::dist
