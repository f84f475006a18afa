#include "dist/comm/in_process.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "core/parallel.h"

namespace weft::dist {
namespace {

/// A message on its way. The receiver copies from the sender's memory; the sender waits for it.
struct Parcel {
  const void* data = nullptr;
  size_t bytes = 0;
  uint16_t label = 0;
  bool done = false;  // under the mutex of the sender's box
};
using ParcelPtr = std::shared_ptr<Parcel>;

/// What the ranks of a group share.
class Group {
 public:
  explicit Group(int size) : status(size), boxes_(size) {
    for (auto& box : boxes_) {
      box = std::make_unique<Box>();
      box->arrived.resize(size);
    }
  }

  struct Box {
    std::mutex mutex;
    std::condition_variable wake;                // of the rank that owns the box
    std::vector<std::deque<ParcelPtr>> arrived;  // per source
  };
  Box& box(int rank) { return *boxes_[rank]; }

  /// The group of these ranks that each of them asks for as its `instance`-th of the kind. Who has
  /// left this one has left it.
  std::shared_ptr<Group> subgroup(const std::vector<int>& ranks, int instance) {
    std::lock_guard lock(mutex_);
    auto& entry = subgroups_[{ranks, instance}];
    if (entry) return entry;
    entry = std::make_shared<Group>(static_cast<int>(ranks.size()));
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (status[ranks[i]].left) entry->leave(static_cast<int>(i), reasons_[ranks[i]]);
    }
    return entry;
  }

  /// One rank has given up: in this group and all below, nobody waits any longer for it.
  void leave(int rank, const std::string& reason) {
    std::vector<std::pair<std::shared_ptr<Group>, int>> below;
    {
      std::lock_guard lock(mutex_);
      if (status[rank].left.exchange(true)) return;
      reasons_[rank] = reason;
      for (auto& [key, group] : subgroups_) {
        const auto place = std::find(key.first.begin(), key.first.end(), rank);
        if (place != key.first.end()) below.emplace_back(group, place - key.first.begin());
      }
    }
    for (auto& box : boxes_) {
      std::lock_guard lock(box->mutex);
      box->wake.notify_all();
    }
    for (auto& [group, index] : below) group->leave(index, reason);
  }
  std::string reason(int rank) {
    std::lock_guard lock(mutex_);
    return reasons_[rank];
  }

  std::vector<RankStatus> status;

 private:
  std::vector<std::unique_ptr<Box>> boxes_;
  std::mutex mutex_;
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<Group>> subgroups_;
  std::map<int, std::string> reasons_;
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Group> group, int rank, int size)
      : Transport(rank, size), group_(std::move(group)) {}

  RankStatus* status(int rank) override { return &group_->status[rank]; }
  void leave(const std::string& reason) override { group_->leave(rank(), reason); }

 protected:
  std::unique_ptr<Transport> make_group(const std::vector<int>& ranks, int place) override {
    return std::make_unique<InProcessTransport>(group_->subgroup(ranks, instances_[ranks]++), place,
                                                static_cast<int>(ranks.size()));
  }

  void do_exchange(const Round& round, Clock::time_point deadline) override {
    const auto& [sends, receives, label] = round;
    std::vector<ParcelPtr> parcels;
    for (const Message& message : sends) {
      parcels.push_back(std::make_shared<Parcel>(Parcel{message.data, message.bytes, label}));
      Group::Box& box = group_->box(message.peer);
      std::lock_guard lock(box.mutex);
      box.arrived[rank()].push_back(parcels.back());
      box.wake.notify_all();
    }
    try {
      for (const Message& message : receives) receive(message, label, deadline);
      for (size_t i = 0; i < parcels.size(); ++i) {
        wait(sends[i].peer, deadline, [&] { return parcels[i]->done; });
      }
    } catch (...) {
      for (size_t i = 0; i < parcels.size(); ++i) withdraw(sends[i].peer, parcels[i]);
      throw;
    }
  }

 private:
  Group::Box& own_box() { return group_->box(rank()); }

  /// Waits under the lock of this rank's box for something that `peer` does.
  template <class Predicate>
  void wait(int peer, Clock::time_point deadline, Predicate&& is_met) {
    std::unique_lock lock(own_box().mutex);
    const auto is_over = [&] { return is_met() || group_->status[peer].left; };
    const bool in_time = own_box().wake.wait_until(lock, deadline, is_over);
    if (is_met()) return;
    lock.unlock();
    if (in_time) {
      throw PeersMissing(fmt::format("rank {} gave up ({})", peer, group_->reason(peer)), {peer});
    }
    throw PeersMissing("the deadline has passed", {peer});
  }

  void receive(const Message& message, uint16_t label, Clock::time_point deadline) {
    std::deque<ParcelPtr>& arrived = own_box().arrived[message.peer];
    ParcelPtr parcel;
    // Taken while it is found: between the two, the sender could take it back.
    wait(message.peer, deadline, [&] {
      if (!parcel && !arrived.empty()) {
        parcel = std::move(arrived.front());
        arrived.pop_front();
      }
      return parcel != nullptr;
    });
    const bool fits = parcel->bytes == message.bytes && parcel->label == label;
    if (fits && message.bytes > 0) std::memcpy(message.data, parcel->data, message.bytes);
    const size_t bytes = parcel->bytes;
    const uint16_t sent = parcel->label;
    Group::Box& sender = group_->box(message.peer);
    {
      std::lock_guard lock(sender.mutex);
      parcel->done = true;
      sender.wake.notify_all();
    }
    check_label(message.peer, sent, label);
    WEFT_CHECK(fits, "expected {} bytes from rank {}, which sent {}", message.bytes, message.peer,
               bytes);
  }

  /// Takes back what was sent and not yet received; waits for a copy that is being made.
  void withdraw(int peer, const ParcelPtr& parcel) {
    {
      Group::Box& box = group_->box(peer);
      std::lock_guard lock(box.mutex);
      std::deque<ParcelPtr>& arrived = box.arrived[rank()];
      const auto place = std::find(arrived.begin(), arrived.end(), parcel);
      if (place != arrived.end()) {
        arrived.erase(place);
        return;
      }
    }
    std::unique_lock lock(own_box().mutex);
    own_box().wake.wait(lock, [&] { return parcel->done; });
  }

  const std::shared_ptr<Group> group_;
  std::map<std::vector<int>, int> instances_;
};

}  // namespace

std::vector<CommunicatorPtr> make_in_process_world(int ranks, const InProcessOptions& options) {
  WEFT_CHECK(ranks > 0, "in-process world: the number of ranks must be positive, got {}", ranks);
  const auto group = std::make_shared<Group>(ranks);
  std::vector<CommunicatorPtr> world;
  for (int rank = 0; rank < ranks; ++rank) {
    auto transport = std::make_unique<InProcessTransport>(group, rank, ranks);
    transport->slow_down(options.latency_seconds, options.bytes_per_second);
    world.push_back(make_host_communicator("world", std::move(transport), options.host,
                                           std::make_shared<FlightRecorder>(rank)));
  }
  return world;
}

void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const InProcessOptions& options) {
  std::vector<CommunicatorPtr> world = make_in_process_world(ranks, options);
  const int share = std::max(1, num_threads() / ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto give_up = [&](Communicator& rank, const std::string& reason) {
    {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
    rank.leave(reason);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      set_num_threads(share);
      try {
        body(*world[rank]);
      } catch (const std::exception& error) {
        give_up(*world[rank], error.what());
      } catch (...) {
        give_up(*world[rank], "unknown error");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace weft::dist
