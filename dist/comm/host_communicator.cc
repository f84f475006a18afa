#include "dist/comm/host_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "dist/comm/reduce_tree.h"

namespace weft::dist {
namespace {

bool is_point_to_point(const Operation& operation) {
  return operation.collective == Collective::kSend || operation.collective == Collective::kRecv;
}

class HostCommunicator : public Communicator {
 public:
  /// What was made from a communicator, and from these.
  struct Groups {
    std::mutex mutex;
    std::vector<std::weak_ptr<HostCommunicator>> all;
  };
  using Lists = std::vector<std::shared_ptr<Groups>>;

  /// world_ranks: of a group, its ranks as the world counts them; above: the lists that it is in.
  HostCommunicator(std::string name, std::unique_ptr<Transport> transport,
                   const HostOptions& options, std::shared_ptr<FlightRecorder> recorder,
                   std::vector<int> world_ranks = {}, Lists above = {})
      : Communicator(std::move(name), transport->rank(), transport->size(), std::move(recorder)),
        options_(options),
        world_ranks_(std::move(world_ranks)),
        transport_(std::move(transport)),
        lists_(std::move(above)) {
    lists_.push_back(std::make_shared<Groups>());
    if (options_.world_rank < 0) options_.world_rank = rank();
    thread_ = std::thread([this] { serve(); });
  }

  ~HostCommunicator() override {
    // The others would wait for a rank that an exception takes away.
    if (std::uncaught_exceptions() > exceptions_) transport_->leave("an exception ended it");
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();  // what was begun ends, or fails at its deadline
  }

  CommunicatorPtr group(const std::vector<int>& ranks, const std::string& name) override {
    for (int r : ranks) {
      WEFT_CHECK(r >= 0 && r < size(), "group {}: rank {} is not in {}, of {} ranks", name, r,
                 this->name(), size());
      WEFT_CHECK(std::ranges::count(ranks, r) == 1, "group {}: rank {} is listed twice", name, r);
    }
    WEFT_CHECK(std::ranges::count(ranks, rank()) == 1,
               "group {}: rank {} asks for a group of ranks {} without itself", name, rank(),
               fmt::join(ranks, ", "));
    std::vector<int> world_ranks;
    for (int r : ranks) world_ranks.push_back(world_ranks_.empty() ? r : world_ranks_[r]);
    const auto made =
        std::make_shared<HostCommunicator>(name, transport_->group(ranks), options_,
                                           shared_recorder(), std::move(world_ranks), lists_);
    for (const auto& list : lists_) {
      const std::lock_guard lock(list->mutex);
      std::erase_if(list->all, [](const auto& group) { return group.expired(); });
      list->all.push_back(made);
    }
    return made;
  }

  void leave(const std::string& reason) override {
    transport_->leave(reason);
    std::unique_lock lock(lists_.back()->mutex);
    const auto groups = lists_.back()->all;
    lock.unlock();
    for (const auto& group : groups) {
      if (const auto alive = group.lock()) alive->transport_->leave(reason);
    }
  }

  Traffic traffic() const override { return transport_->traffic(); }
  Traffic family_traffic() const override { return transport_->family_traffic(); }

 protected:
  Work start(Operation operation) override {
    auto work = std::make_shared<Work::State>();
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
  bool commits_fault(uint64_t ticket) const {
    return options_.fault.kind != Fault::Kind::kNone && ticket == options_.fault.at &&
           options_.fault.rank == options_.world_rank;
  }

  struct Item {
    Operation operation;
    std::shared_ptr<Work::State> work;
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
          const bool leaves_out = commits_fault(item.ticket) && commit(item.operation);
          if (!leaves_out) run_watched(item.operation);
        } catch (...) {
          // Peers may hold half of a collective: nothing that follows can be trusted.
          error = broken_ = std::current_exception();
          if (transport_->has_loose_messages()) keep_for_good(std::move(item.operation));
        }
        buffers_.clear();
      }
      recorder().finished(item.ticket, !error);
      item.operation = {};
      item.work->finish(error);
    }
  }

  /// What messages may move yet into, or out of.
  void keep_for_good(Operation operation) {
    struct Kept {
      Operation operation;
      std::vector<std::vector<std::byte>> buffers;
    };
    static std::mutex mutex;
    static auto* const all = new std::vector<Kept>;
    const std::lock_guard lock(mutex);
    all->push_back({std::move(operation), std::move(buffers_)});
  }

  void run_watched(const Operation& operation) {
    RankStatus* mine = transport_->status(rank());
    const bool counts = mine && !is_point_to_point(operation);
    if (counts) {
      mine->collective = static_cast<int>(operation.collective);
      mine->started = operation.sequence;
    }
    deadline_ = after(options_.timeout_seconds);
    label_ = label_of(operation);
    try {
      if (options_.compares_operations && !is_point_to_point(operation)) compare(operation);
      run(operation);
    } catch (const std::exception& error) {
      recorder().dump();
      std::string text = fmt::format("rank {} of {}: {}: {}", rank(), name(),
                                     dist::describe(operation), error.what());
      if (const auto* missing = dynamic_cast<const PeersMissing*>(&error)) {
        text += ": " + state_of(missing->peers, operation);
      }
      transport_->leave(text);
      throw Error(text);
    }
    if (counts) mine->finished = operation.sequence;
  }

  /// "rank 2 has not come: it ended all_gather #15 and has begun none since": of the peers that
  /// an operation waits for.
  std::string state_of(std::vector<int> peers, const Operation& operation) {
    // Who is waited for may itself be waiting: name those who have not come as far.
    std::vector<int> behind;
    if (!is_point_to_point(operation)) {
      for (int r = 0; r < size(); ++r) {
        const RankStatus* status = transport_->status(r);
        if (r != rank() && status && status->started < operation.sequence) behind.push_back(r);
      }
    }
    if (!behind.empty()) peers = std::move(behind);
    std::vector<std::string> states;
    for (int r : peers) {
      std::string& text = states.emplace_back(fmt::format("rank {}", r));
      if (!world_ranks_.empty()) text += fmt::format(" (rank {} of the world)", world_ranks_[r]);
      const RankStatus* status = transport_->status(r);
      if (!status) continue;
      const uint64_t started = status->started, finished = status->finished;
      const auto latest = [&] {
        return dist::name(static_cast<Collective>(status->collective.load()));
      };
      if (status->left) {
        text += " is gone";
        if (started > 0) text += fmt::format(", last seen in #{}", started);
      } else if (started == 0) {
        text += " has not begun any collective of this group";
      } else if (started == finished) {
        text += fmt::format(" has not come: it ended {} #{} and has begun none since", latest(),
                            started);
      } else {
        text += fmt::format(" is in {} #{}", latest(), started);
      }
    }
    return fmt::format("{}", fmt::join(states, "; "));
  }

  void exchange(Round round, bool is_control = false) {
    round.label = label_;
    transport_->exchange(round, deadline_, is_control);
  }

  /// Takes an element off what goes to, or comes from, another rank.
  void shorten(Operation& o) {
    if (!o.counts.empty()) {
      int64_t& part = o.counts[(rank() + 1) % size()];
      part = std::max<int64_t>(part - 1, 0);
      return;
    }
    for (Tensor* x : {&o.in, &o.out}) {
      if (!x->defined() || x->numel() == 0) continue;
      *x = Tensor::view_of(x->storage(), {x->numel() - 1}, {1}, x->offset(), x->dtype());
    }
  }

  /// The fault that this rank is to commit now. Returns whether the operation is to be left out.
  bool commit(Operation& o) {
    using enum Fault::Kind;
    const Fault::Kind kind = options_.fault.kind;
    if (kind == kShape) shorten(o);
    if (kind == kLost || kind == kGarbled) transport_->commit(kind);
    return kind == kOrder;
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
    buffers_.assign(size(), std::vector<std::byte>(kText));
    Round round;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      round.sends.push_back({r, mine.data(), kText});
      round.receives.push_back({r, buffers_[r].data(), kText});
    }
    exchange(std::move(round), true);
    for (int r = 0; r < size(); ++r) {
      const std::string theirs(reinterpret_cast<const char*>(buffers_[r].data()), kText);
      if (r == rank() || theirs == mine) continue;
      WEFT_FAIL("the ranks disagree: rank {} runs {}, rank {} runs {}", rank(), mine.c_str(), r,
                theirs.c_str());
    }
  }

  void run(const Operation& o) {
    switch (o.collective) {
      case Collective::kAllReduce: {
        const Message mine = message(rank(), o.out, o.begin(rank()), o.counts[rank()]);
        scatter_sums(o, mine);
        gather(o, mine);
        break;
      }
      case Collective::kReduceScatter:
        scatter_sums(o, message(rank(), o.out, 0, o.out.numel()));
        break;
      case Collective::kAllGather:
        gather(o, message(rank(), o.in, 0, o.in.numel()));
        break;
      case Collective::kBroadcast:
        broadcast(o);
        if (rank() == o.peer) return;
        break;
      case Collective::kAllToAll:
        copy(message(rank(), o.out, o.begin(rank()), o.counts[rank()]),
             message(rank(), o.in, o.begin(rank()), o.counts[rank()]));
        if (o.counts[0] > 0) exchange(all_to_all_round(o, rank()));
        break;
      case Collective::kSend:
        return exchange({.sends = {{o.peer, o.in.raw(), o.in.nbytes()}}});
      case Collective::kRecv:
        exchange({.receives = {{o.peer, o.out.raw(), o.out.nbytes()}}});
        break;
      case Collective::kBarrier:
        // Dissemination: after round k a rank has heard, at second hand, from 2^(k+1) ranks.
        for (int step = 1; step < size(); step *= 2) {
          exchange({.sends = {{(rank() + step) % size(), nullptr, 0}},
                    .receives = {{(rank() + size() - step) % size(), nullptr, 0}}});
        }
        return;
    }
    o.out.bump_version();
  }

  /// The sum of this rank's part to `mine`, the parts of the others to them.
  void scatter_sums(const Operation& o, const Message& mine) {
    const int64_t item = static_cast<int64_t>(o.in.itemsize());
    const int64_t segment = std::max<int64_t>(1, options_.segment_bytes / item);
    const int64_t own = o.counts[rank()], longest = *std::ranges::max_element(o.counts);
    buffers_.assign(size(), {});
    std::vector<void*> inputs(size());
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) buffers_[r].resize(std::min(segment, own) * item);
      inputs[r] = buffers_[r].data();
    }
    for (int64_t first = 0; first < longest; first += segment) {
      exchange(scatter_round(o, rank(), first, segment, inputs));
      const int64_t count = std::clamp<int64_t>(own - first, 0, segment);
      if (count == 0) continue;
      inputs[rank()] = message(rank(), o.in, o.begin(rank()) + first, count).data;
      reduce_tree(o.in.dtype(), o.op, inputs, static_cast<std::byte*>(mine.data) + first * item,
                  count);
    }
  }

  /// Every rank's part to its place in o.out; `mine` is this rank's.
  void gather(const Operation& o, const Message& mine) {
    copy(message(rank(), o.out, o.begin(rank()), o.counts[rank()]), mine);
    exchange(gather_round(o, rank(), mine));
  }

  static void copy(const Message& to, const Message& from) {
    if (to.data != from.data && from.bytes > 0) std::memmove(to.data, from.data, from.bytes);
  }

  void broadcast(const Operation& o) {
    const int relative = (rank() + size() - o.peer) % size();
    const auto absolute = [&](int r) { return (r + o.peer) % size(); };
    int step = 1;
    for (; step < size(); step *= 2) {
      if (relative & step) {
        exchange({.receives = {{absolute(relative - step), o.out.raw(), o.out.nbytes()}}});
        break;
      }
    }
    Round round;
    for (step /= 2; step > 0; step /= 2) {
      if (relative + step < size()) {
        round.sends.push_back({absolute(relative + step), o.out.raw(), o.out.nbytes()});
      }
    }
    if (!round.sends.empty()) exchange(std::move(round));
  }

  HostOptions options_;
  const std::vector<int> world_ranks_;  // empty: the world's own
  const std::unique_ptr<Transport> transport_;
  Lists lists_;  // its own behind those of what it was made from
  Transport::Clock::time_point deadline_;
  // Of the operation at hand.
  uint16_t label_ = 0;
  std::vector<std::vector<std::byte>> buffers_;  // for what other ranks send
  std::exception_ptr broken_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> queue_;
  bool stop_ = false;
  const int exceptions_ = std::uncaught_exceptions();  // when it was made
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
  options.fault = Fault::from_environment();
  return options;
}

CommunicatorPtr make_host_communicator(std::string name, std::unique_ptr<Transport> transport,
                                       const HostOptions& options,
                                       std::shared_ptr<FlightRecorder> recorder) {
  return std::make_shared<HostCommunicator>(std::move(name), std::move(transport), options,
                                            std::move(recorder));
}

}  // namespace weft::dist
