#include "dist/comm/host_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "dist/comm/reduce_tree.h"

namespace weft::dist {
namespace {

class HostWork : public Work::State {
 public:
  void block() const override {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return done.load(); });
  }
  void finish(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    failure = std::move(error);
    done.store(true, std::memory_order_release);
    wake_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;
};

std::byte* bytes_of(const Tensor& x) { return static_cast<std::byte*>(x.raw()); }

bool is_point_to_point(const Operation& operation) {
  return operation.collective == Collective::kSend || operation.collective == Collective::kRecv;
}

class HostCommunicator : public Communicator {
 public:
  HostCommunicator(std::string name, std::unique_ptr<Transport> transport,
                   const HostOptions& options, std::shared_ptr<FlightRecorder> recorder)
      : Communicator(std::move(name), transport->rank(), transport->size(), std::move(recorder)),
        options_(options),
        transport_(std::move(transport)) {
    thread_ = std::thread([this] { serve(); });
  }

  ~HostCommunicator() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();  // what was begun ends, or fails at its deadline
  }

  CommunicatorPtr group(const std::vector<int>& ranks, const std::string& name) override {
    for (size_t i = 0; i < ranks.size(); ++i) {
      WEFT_CHECK(ranks[i] >= 0 && ranks[i] < size(), "group {}: rank {} is not in {}, of {} ranks",
                 name, ranks[i], this->name(), size());
      WEFT_CHECK(std::count(ranks.begin(), ranks.end(), ranks[i]) == 1,
                 "group {}: rank {} is listed twice", name, ranks[i]);
    }
    WEFT_CHECK(std::count(ranks.begin(), ranks.end(), rank()) == 1,
               "group {}: rank {} asks for a group of ranks {} without itself", name, rank(),
               fmt::join(ranks, ", "));
    return make_host_communicator(name, transport_->group(ranks), options_, shared_recorder());
  }

  void leave(const std::string& reason) override { transport_->leave(reason); }

  Traffic traffic() const override { return transport_->traffic(); }
  Traffic family_traffic() const override { return transport_->family_traffic(); }

 protected:
  Work start(Operation operation) override {
    auto work = std::make_shared<HostWork>();
    const int64_t bytes =
        operation.in.defined()
            ? static_cast<int64_t>(std::max(operation.in.nbytes(), operation.out.nbytes()))
            : 0;
    const uint64_t ticket =
        recorder().queued(name(), operation.sequence, dist::describe(operation), bytes);
    {
      std::lock_guard lock(mutex_);
      queue_.push_back({std::move(operation), work, ticket});
    }
    wake_.notify_one();
    return Work(work);
  }

 private:
  struct Item {
    Operation operation;
    std::shared_ptr<HostWork> work;
    uint64_t ticket = 0;
  };

  void serve() {
    while (true) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      std::exception_ptr error = broken_;
      recorder().started(item.ticket);
      if (!error) {
        try {
          run_watched(item.operation);
        } catch (...) {
          // Peers may hold half of a collective: nothing that follows can be trusted.
          error = broken_ = std::current_exception();
        }
      }
      recorder().finished(item.ticket, !error);
      item.operation = {};
      item.work->finish(error);
    }
  }

  void run_watched(const Operation& operation) {
    RankStatus* mine = transport_->status(rank());
    const bool counts = mine && !is_point_to_point(operation);
    if (counts) {
      mine->collective = static_cast<int>(operation.collective);
      mine->started = operation.sequence;
    }
    deadline_ =
        Transport::Clock::now() + std::chrono::duration_cast<Transport::Clock::duration>(
                                      std::chrono::duration<double>(options_.timeout_seconds));
    try {
      if (options_.compares_operations && !is_point_to_point(operation)) compare(operation);
      run(operation);
    } catch (const PeersMissing& missing) {
      recorder().dump();
      const std::string text = explain(operation, missing);
      transport_->leave(text);
      throw Error(text);
    } catch (const std::exception& error) {
      recorder().dump();
      const std::string text = fmt::format("rank {} of {}: {}: {}", rank(), name(),
                                           dist::describe(operation), error.what());
      transport_->leave(text);
      throw Error(text);
    }
    if (counts) mine->finished = operation.sequence;
  }

  /// "rank 0 of world: all_reduce #17 (sum f32 [4]): waited 5 s for rank 2, which ended #15 ..."
  std::string explain(const Operation& operation, const PeersMissing& missing) {
    const std::string what = fmt::format("rank {} of {}: {}: {}", rank(), name(),
                                         dist::describe(operation), missing.what());
    // Who is waited for may itself be waiting: name those who have not come as far.
    std::vector<int> behind;
    if (!is_point_to_point(operation)) {
      for (int r = 0; r < size(); ++r) {
        const RankStatus* status = transport_->status(r);
        if (r != rank() && status && status->started < operation.sequence) behind.push_back(r);
      }
    }
    std::string ranks;
    for (int r : behind.empty() ? missing.peers : behind) {
      ranks += fmt::format("{}rank {}", ranks.empty() ? "" : "; ", r);
      const RankStatus* status = transport_->status(r);
      if (!status) continue;
      const uint64_t started = status->started, finished = status->finished;
      if (status->left) {
        ranks += " is gone";
        if (started > 0) ranks += fmt::format(", last seen in #{}", started);
      } else if (started == 0) {
        ranks += " has not begun any collective of this group";
      } else if (started == finished) {
        ranks +=
            fmt::format(" has not come: it ended {} #{} and has begun none since",
                        dist::name(static_cast<Collective>(status->collective.load())), started);
      } else {
        ranks +=
            fmt::format(" is in {} #{}",
                        dist::name(static_cast<Collective>(status->collective.load())), started);
      }
    }
    return fmt::format("{}: {}", what, ranks);
  }

  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives,
                bool is_control = false) {
    transport_->exchange(sends, receives, deadline_, is_control);
  }

  /// Every rank tells every other what it is about to run.
  void compare(const Operation& operation) {
    constexpr size_t kText = 240;
    std::string mine = dist::describe(operation);
    // Parts may differ from rank to rank where the counts say so; the counts must not.
    if (operation.collective == Collective::kReduceScatter ||
        operation.collective == Collective::kAllGather) {
      mine = fmt::format("{} #{} ({}{}, parts {})", dist::name(operation.collective),
                         operation.sequence,
                         operation.collective == Collective::kReduceScatter
                             ? fmt::format("{} ", dist::name(operation.op))
                             : "",
                         operation.in.dtype(), fmt::join(operation.counts, " "));
    }
    mine.resize(kText);
    std::vector<std::string> theirs(size(), std::string(kText, '\0'));
    std::vector<Message> sends, receives;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      sends.push_back({r, mine.data(), kText});
      receives.push_back({r, theirs[r].data(), kText});
    }
    exchange(sends, receives, true);
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || theirs[r] == mine) continue;
      WEFT_FAIL("the ranks disagree: rank {} runs {}, rank {} runs {}", rank(), mine.c_str(), r,
                theirs[r].c_str());
    }
  }

  void run(const Operation& o) {
    const auto size_of = [&] { return static_cast<int64_t>(o.in.itemsize()); };
    switch (o.collective) {
      case Collective::kAllReduce: {
        int64_t begin = 0;
        for (int r = 0; r < rank(); ++r) begin += o.counts[r];
        std::byte* mine = bytes_of(o.out) + begin * size_of();
        scatter_sums(o, mine);
        gather(o, mine);
        o.out.bump_version();
        return;
      }
      case Collective::kReduceScatter:
        scatter_sums(o, bytes_of(o.out));
        o.out.bump_version();
        return;
      case Collective::kAllGather:
        gather(o, bytes_of(o.in));
        o.out.bump_version();
        return;
      case Collective::kBroadcast:
        broadcast(o);
        if (rank() != o.peer) o.out.bump_version();
        return;
      case Collective::kAllToAll:
        exchange_parts(o);
        o.out.bump_version();
        return;
      case Collective::kSend:
        return exchange({{o.peer, o.in.raw(), o.in.nbytes()}}, {});
      case Collective::kRecv:
        exchange({}, {{o.peer, o.out.raw(), o.out.nbytes()}});
        o.out.bump_version();
        return;
      case Collective::kBarrier:
        // Dissemination: after round k a rank has heard, at second hand, from 2^(k+1) ranks.
        for (int step = 1; step < size(); step *= 2) {
          exchange({{(rank() + step) % size(), nullptr, 0}},
                   {{(rank() + size() - step) % size(), nullptr, 0}});
        }
        return;
    }
  }

  /// The sum of this rank's part to `out`, the parts of the others to them.
  void scatter_sums(const Operation& o, std::byte* out) {
    const int64_t item = static_cast<int64_t>(o.in.itemsize());
    const int64_t segment = std::max<int64_t>(1, options_.segment_bytes / item);
    std::vector<int64_t> begin(size() + 1, 0);
    for (int r = 0; r < size(); ++r) begin[r + 1] = begin[r] + o.counts[r];
    const int64_t longest = *std::max_element(o.counts.begin(), o.counts.end());
    const int64_t own = o.counts[rank()];
    std::vector<std::vector<std::byte>> received(size());
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) received[r].resize(std::min(segment, own) * item);
    }
    for (int64_t first = 0; first < longest; first += segment) {
      std::vector<Message> sends, receives;
      const int64_t count = std::clamp<int64_t>(own - first, 0, segment);
      for (int k = 1; k < size(); ++k) {
        const int to = (rank() + k) % size(), from = (rank() + size() - k) % size();
        const int64_t part = std::clamp<int64_t>(o.counts[to] - first, 0, segment);
        if (part > 0) {
          sends.push_back(
              {to, bytes_of(o.in) + (begin[to] + first) * item, static_cast<size_t>(part * item)});
        }
        if (count > 0) {
          receives.push_back({from, received[from].data(), static_cast<size_t>(count * item)});
        }
      }
      exchange(sends, receives);
      if (count == 0) continue;
      std::vector<const void*> inputs(size());
      for (int r = 0; r < size(); ++r) inputs[r] = received[r].data();
      inputs[rank()] = bytes_of(o.in) + (begin[rank()] + first) * item;
      reduce_tree(o.in.dtype(), o.op, inputs, out + first * item, count);
    }
  }

  /// Every rank's part to its place in o.out; `mine` is this rank's.
  void gather(const Operation& o, const std::byte* mine) {
    const int64_t item = static_cast<int64_t>(o.out.itemsize());
    std::vector<int64_t> begin(size() + 1, 0);
    for (int r = 0; r < size(); ++r) begin[r + 1] = begin[r] + o.counts[r];
    std::vector<Message> sends, receives;
    for (int k = 1; k < size(); ++k) {
      const int to = (rank() + k) % size(), from = (rank() + size() - k) % size();
      if (o.counts[rank()] > 0) {
        sends.push_back(
            {to, const_cast<std::byte*>(mine), static_cast<size_t>(o.counts[rank()] * item)});
      }
      if (o.counts[from] > 0) {
        receives.push_back({from, bytes_of(o.out) + begin[from] * item,
                            static_cast<size_t>(o.counts[from] * item)});
      }
    }
    std::byte* place = bytes_of(o.out) + begin[rank()] * item;
    if (place != mine && o.counts[rank()] > 0) {
      std::memmove(place, mine, static_cast<size_t>(o.counts[rank()] * item));
    }
    exchange(sends, receives);
  }

  void broadcast(const Operation& o) {
    const int relative = (rank() + size() - o.peer) % size();
    const auto absolute = [&](int r) { return (r + o.peer) % size(); };
    int step = 1;
    for (; step < size(); step *= 2) {
      if (relative & step) {
        exchange({}, {{absolute(relative - step), o.out.raw(), o.out.nbytes()}});
        break;
      }
    }
    std::vector<Message> sends;
    for (step /= 2; step > 0; step /= 2) {
      if (relative + step < size()) {
        sends.push_back({absolute(relative + step), o.out.raw(), o.out.nbytes()});
      }
    }
    if (!sends.empty()) exchange(sends, {});
  }

  void exchange_parts(const Operation& o) {
    const size_t part = o.counts[0] * o.in.itemsize();
    if (part == 0) return;
    std::vector<Message> sends, receives;
    for (int k = 1; k < size(); ++k) {
      const int to = (rank() + k) % size(), from = (rank() + size() - k) % size();
      sends.push_back({to, bytes_of(o.in) + to * part, part});
      receives.push_back({from, bytes_of(o.out) + from * part, part});
    }
    std::memcpy(bytes_of(o.out) + rank() * part, bytes_of(o.in) + rank() * part, part);
    exchange(sends, receives);
  }

  const HostOptions options_;
  const std::unique_ptr<Transport> transport_;
  Transport::Clock::time_point deadline_;
  std::exception_ptr broken_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

HostOptions HostOptions::from_environment() {
  HostOptions options;
  if (const char* text = std::getenv("WEFT_DIST_TIMEOUT")) {
    char* end = nullptr;
    options.timeout_seconds = std::strtod(text, &end);
    WEFT_CHECK(end != text && *end == '\0' && options.timeout_seconds > 0,
               "WEFT_DIST_TIMEOUT: expected seconds above 0, got \"{}\"", text);
  }
  if (const char* text = std::getenv("WEFT_DIST_DEBUG")) {
    const std::string_view value = text;
    WEFT_CHECK(value == "" || value == "0" || value == "1",
               "WEFT_DIST_DEBUG: expected 0 or 1, got \"{}\"", text);
    options.compares_operations = value == "1";
  }
  return options;
}

CommunicatorPtr make_host_communicator(std::string name, std::unique_ptr<Transport> transport,
                                       const HostOptions& options,
                                       std::shared_ptr<FlightRecorder> recorder) {
  return std::make_shared<HostCommunicator>(std::move(name), std::move(transport), options,
                                            std::move(recorder));
}

}  // namespace weft::dist
