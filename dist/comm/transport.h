// Moving bytes between ranks: what an engine of ranks on CPUs provides, and all it provides.
//
// The collectives (host_communicator.h) are written once on top of exchange(); bytes are counted
// here, beneath them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/error.h"
#include "dist/comm/communicator.h"
#include "dist/comm/fault.h"

namespace weft::dist {

/// The time so many seconds from now.
std::chrono::steady_clock::time_point after(double seconds);

/// Bytes for a peer, or the place for a peer's bytes.
struct Message {
  int peer = 0;
  void* data = nullptr;
  size_t bytes = 0;
};
/// Elements [first, first + count) of x.
Message message(int peer, const Tensor& x, int64_t first, int64_t count);

/// What a rank sends and receives at a time.
struct Round {
  std::vector<Message> sends, receives;
  /// Of the collective that the messages belong to. It travels with them.
  uint16_t label = 0;
};
/// 12 bits of the operation's number and 3 of its kind: what MPI has room for in a tag. One for
/// every send and recv, whose numbers the two ends do not share.
uint16_t label_of(const Operation& operation);
/// Throws Error, which names both, when a peer's message is of another collective than was
/// expected.
void check_label(int peer, uint16_t sent, uint16_t expected);
/// A segment of each part of o.in, from element `first` of the part on, to the rank that keeps it;
/// of this rank's part the others' contributions, rank r's to into[r].
Round scatter_round(const Operation& o, int rank, int64_t first, int64_t segment,
                    const std::vector<void*>& into);
/// `mine` to all others, their parts to their places in o.out.
Round gather_round(const Operation& o, int rank, const Message& mine);
Round all_to_all_round(const Operation& o, int rank);

struct TrafficCounters {
  std::atomic<int64_t> sent{0}, messages{0}, control{0};
  Traffic read() const { return {sent, messages, control}; }
};

/// How far a rank has come in the collectives of a group; read by its peers when they write an
/// error. In memory that the ranks of one host share.
struct alignas(64) RankStatus {
  std::atomic<uint64_t> started{0};   // the latest collective's number
  std::atomic<uint64_t> finished{0};  // likewise
  std::atomic<int> collective{-1};    // kind of the one started last
  std::atomic<int> pid{0};            // of a process on this host; 0: unknown
  std::atomic<bool> left{false};      // it failed or ended: nothing more will come
  char reason[256] = {};              // why, written before `left`
};

/// Thrown by exchange() when peers do not come.
class PeersMissing : public Error {
 public:
  PeersMissing(const std::string& reason, std::vector<int> peers)
      : Error(reason), peers(std::move(peers)) {}
  std::vector<int> peers;
};

class Transport {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Transport() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Sends and receives all of these and returns when that is done. Messages between two ranks meet
  /// in order; those of one call may move in any order. Called by one thread at a time.
  /// Throws PeersMissing at the deadline or when a peer is known to have gone, Error when a message
  /// has another size or label than was expected.
  void exchange(const Round& round, Clock::time_point deadline, bool is_control = false);
  /// Whether messages of an exchange that has thrown may move yet: their memory is to stay for
  /// good.
  virtual bool has_loose_messages() const { return false; }

  /// The status of a rank; null when it cannot be known (another host).
  virtual RankStatus* status(int rank) = 0;
  /// A transport among some of these ranks; called by those alone.
  std::unique_ptr<Transport> group(const std::vector<int>& ranks);
  /// From now on each exchange, of groups to come too, takes `latency` seconds and the time of its
  /// bytes at `bandwidth` bytes per second (0: none), during which the processor is free.
  void slow_down(double latency, double bandwidth);
  /// Tells the others that this rank has given up.
  virtual void leave(const std::string& reason) = 0;
  /// A fault of the connections, on purpose; throws Error where there are none.
  virtual void commit(Fault::Kind kind);

  Traffic traffic() const { return own_.read(); }
  /// Of this rank in the world and in all groups made from it.
  Traffic family_traffic() const { return family_->read(); }

 protected:
  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual void do_exchange(const Round& round, Clock::time_point deadline) = 0;
  /// This rank is the `place`-th of `ranks`.
  virtual std::unique_ptr<Transport> make_group(const std::vector<int>& ranks, int place) = 0;

 private:
  const int rank_, size_;
  double latency_ = 0, bandwidth_ = 0;
  TrafficCounters own_;
  std::shared_ptr<TrafficCounters> family_ = std::make_shared<TrafficCounters>();
};

}  // namespace weft::dist
