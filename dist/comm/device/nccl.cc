#include "dist/comm/device/nccl.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/stream.h"
#include "core/view.h"
#include "dist/comm/device/nccl_api_inl.h"
#include "kernels/device/library.h"

namespace weft::dist {
namespace {

using Clock = std::chrono::steady_clock;

/// The functions used, from whichever library was found.
struct Nccl {
  kernels::Library library{"libnccl.so." + std::to_string(NCCL_MAJOR)};
#define WEFT_NCCL(name) \
  decltype(&::name) name = library.is_open() ? library.function<decltype(&::name)>(#name) : nullptr
  WEFT_NCCL(ncclGetUniqueId);
  WEFT_NCCL(ncclCommInitRankConfig);
  WEFT_NCCL(ncclCommGetAsyncError);
  WEFT_NCCL(ncclCommFinalize);
  WEFT_NCCL(ncclCommDestroy);
  WEFT_NCCL(ncclCommAbort);
  WEFT_NCCL(ncclGroupStart);
  WEFT_NCCL(ncclGroupEnd);
  WEFT_NCCL(ncclSend);
  WEFT_NCCL(ncclRecv);
  WEFT_NCCL(ncclBroadcast);
  WEFT_NCCL(ncclGetErrorString);
  WEFT_NCCL(ncclGetLastError);
#undef WEFT_NCCL
};

Nccl& nccl() {
  static auto& the_library = *new Nccl;
  return the_library;
}

class NcclCommunicator : public DeviceCommunicator {
 public:
  NcclCommunicator(CommunicatorPtr host, Device device, const NcclOptions& options,
                   std::shared_ptr<TrafficCounters> family)
      : DeviceCommunicator(std::move(host), device),
        options_(options),
        family_(std::move(family)),
        stream_(device) {
    initialize();
    watchdog_ = std::thread([this] { watch(); });
  }

  ~NcclCommunicator() override {
    {
      std::unique_lock lock(mutex_);
      // What was begun ends, or fails at its deadline.
      idle_.wait(lock, [&] { return pending_.empty(); });
      stops_ = true;
    }
    wake_.notify_one();
    watchdog_.join();
    if (!comm_) return;
    nccl().ncclCommFinalize(comm_);
    if (settle(after(kFarewell)) == ncclSuccess) {
      nccl().ncclCommDestroy(comm_);
    } else {
      abort();
    }
  }

  Traffic traffic() const override { return {own_.sent, own_.messages, host().traffic().control}; }
  Traffic family_traffic() const override {
    return {family_->sent, family_->messages, host().family_traffic().control};
  }

 protected:
  CommunicatorPtr make_group(CommunicatorPtr host) override {
    return std::make_shared<NcclCommunicator>(std::move(host), device(), options_, family_);
  }

  Work start_on_device(Operation operation) override {
    auto item = std::make_shared<Item>(device());
    item->what = describe(operation);
    item->ticket = recorder().queued(
        name(), operation.sequence, item->what,
        static_cast<int64_t>(std::max(operation.in.nbytes(), operation.out.nbytes())));
    {
      std::lock_guard lock(mutex_);
      if (failure_) {
        item->finish(failure_);
        return Work(item);
      }
    }
    recorder().started(item->ticket);
    // Behind what the caller's stream holds; and its memory is not given to others before we are
    // through, whoever lets go of it.
    Event ready(device());
    ready.record(current_stream(device()));
    stream_.wait(ready);
    for (const Tensor& tensor : {operation.in, operation.out}) {
      if (tensor.numel() == 0) continue;
      allocator(device()).record_use(tensor.storage()->data(), stream_.handle());
    }
    item->deadline = after(options_.timeout_seconds);
    try {
      const StreamGuard guard(stream_);
      run(operation, item->deadline);
    } catch (const Error& error) {
      fail(fmt::format("rank {} of {}: {}: {}", rank(), name(), item->what, error.what()));
      std::lock_guard lock(mutex_);
      item->finish(failure_);
      return Work(item);
    }
    if (operation.collective != Collective::kSend) operation.out.bump_version();
    item->event.record(stream_);
    {
      std::lock_guard lock(mutex_);
      pending_.push_back(item);
    }
    wake_.notify_one();
    return Work(item);
  }

 private:
  struct Item : Work::State {
    explicit Item(Device on) : device(on), event(on) {}
    void block() const override { current_stream(device).wait(event); }
    const Device device;
    Event event;
    std::string what;
    uint64_t ticket = 0;
    Clock::time_point deadline;
  };

  // --- Coming together and parting.

  void initialize() {
    ncclUniqueId id = {};
    if (rank() == 0) check(nccl().ncclGetUniqueId(&id), "ncclGetUniqueId");
    const Tensor bytes = Tensor::empty({static_cast<int64_t>(sizeof id)}, DType::u8);
    std::memcpy(bytes.raw(), &id, sizeof id);
    host().broadcast(bytes, 0).wait();
    std::memcpy(&id, bytes.raw(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int previous = 0;
    cudaGetDevice(&previous);
    cudaSetDevice(device().index);
    ncclComm_t made = nullptr;
    const ncclResult_t begun = nccl().ncclCommInitRankConfig(&made, size(), id, rank(), &config);
    comm_ = made;
    cudaSetDevice(previous);
    try {
      check(begun == ncclInProgress ? ncclSuccess : begun, "ncclCommInitRankConfig");
      check(settle(after(options_.timeout_seconds)), "ncclCommInitRankConfig");
    } catch (const Error& error) {
      abort();
      WEFT_FAIL("rank {} of {} on {}: {}", rank(), name(), device(), error.what());
    }
  }

  /// Waits until NCCL has done what it was told on the host's side.
  ncclResult_t settle(Clock::time_point deadline) {
    while (true) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = nccl().ncclCommGetAsyncError(comm_, &state);
      if (asked != ncclSuccess) return asked;
      if (state != ncclInProgress) return state;
      WEFT_CHECK(Clock::now() < deadline,
                 "NCCL is still under way at the deadline: another rank has not come");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    const char* more = nccl().ncclGetLastError(comm_);
    WEFT_FAIL("{}: {}{}", call, nccl().ncclGetErrorString(result),
              more && *more ? fmt::format(" ({})", more) : "");
  }

  /// Frees the device from the collectives under way. From a thread of its own, since it may hang.
  void abort() {
    const ncclComm_t comm = comm_.exchange(nullptr);
    if (!comm) return;
    const auto has_ended = std::make_shared<std::atomic<bool>>(false);
    std::thread helper([comm, has_ended] {
      nccl().ncclCommAbort(comm);
      *has_ended = true;
    });
    for (const auto deadline = after(kFarewell); !*has_ended && Clock::now() < deadline;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!*has_ended) {
      fmt::print(stderr, "weft: error: rank {} of {}: ncclCommAbort does not return\n", rank(),
                 name());
      std::_Exit(1);
    }
    helper.join();
  }

  // --- Watching.

  void watch() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stops_ || !pending_.empty(); });
      if (pending_.empty()) return;
      const std::shared_ptr<Item> item = pending_.front();
      lock.unlock();
      std::string problem;
      bool is_done = false;
      try {
        is_done = item->event.is_done();
        ncclResult_t state = ncclSuccess;
        if (!is_done && comm_) {
          check(nccl().ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
          if (state != ncclInProgress) check(state, "NCCL");
          WEFT_CHECK(Clock::now() < item->deadline,
                     "it has not ended within {} s: a rank has not come, or its network is gone",
                     options_.timeout_seconds);
        }
      } catch (const Error& error) {
        problem = error.what();
      }
      if (!problem.empty()) {
        fail(fmt::format("rank {} of {}: {}: {}", rank(), name(), item->what, problem));
      }
      if (!is_done && problem.empty()) std::this_thread::sleep_for(std::chrono::microseconds(200));
      lock.lock();
      if (!is_done && problem.empty()) continue;
      // After a failure nothing that follows can be trusted.
      while (!pending_.empty() && (is_done || failure_)) {
        const std::shared_ptr<Item> ended = pending_.front();
        pending_.pop_front();
        recorder().finished(ended->ticket, !failure_);
        ended->finish(failure_);
        if (!failure_) break;
      }
      if (pending_.empty()) idle_.notify_all();
    }
  }

  void fail(const std::string& reason) {
    {
      std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = std::make_exception_ptr(Error(reason));
    }
    recorder().dump();
    host().leave(reason);
    abort();
  }

  // --- The collectives, on stream_.

  void exchange(const Round& round, Clock::time_point deadline) {
    if (round.sends.empty() && round.receives.empty()) return;
    const auto stream = static_cast<cudaStream_t>(stream_.handle());
    check(nccl().ncclGroupStart(), "ncclGroupStart");
    for (const Message& m : round.sends) {
      nccl().ncclSend(m.data, m.bytes, ncclInt8, m.peer, comm_, stream);
      for (TrafficCounters* counters : {&own_, family_.get()}) {
        counters->sent += static_cast<int64_t>(m.bytes);
        ++counters->messages;
      }
    }
    for (const Message& m : round.receives) {
      nccl().ncclRecv(m.data, m.bytes, ncclInt8, m.peer, comm_, stream);
    }
    const ncclResult_t ended = nccl().ncclGroupEnd();
    check(ended == ncclInProgress ? ncclSuccess : ended, "ncclGroupEnd");
    check(settle(deadline), "NCCL");
  }

  static Tensor flat(const Tensor& x) { return view::reshape(x, {x.numel()}); }
  /// This rank's part of a tensor that o.counts cut.
  Tensor own_part(const Operation& o, const Tensor& whole) const {
    return view::narrow(flat(whole), 0, o.begin(rank()), o.counts[rank()]);
  }

  static void copy(const Tensor& to, const Tensor& from) {
    const NoGrad guard;
    if (to.numel() == 0 || to.raw() == from.raw()) return;
    Tensor target = to;
    ops::copy_(target, from);
  }

  void run(const Operation& o, Clock::time_point deadline) {
    switch (o.collective) {
      case Collective::kAllReduce: {
        const Tensor part = own_part(o, o.out);
        scatter_sums(o, part, deadline);
        return gather(o, part, deadline);
      }
      case Collective::kReduceScatter:
        return scatter_sums(o, flat(o.out), deadline);
      case Collective::kAllGather:
        return gather(o, flat(o.in), deadline);
      case Collective::kBroadcast: {
        if (o.out.nbytes() == 0) return;
        const ncclResult_t result =
            nccl().ncclBroadcast(o.out.raw(), o.out.raw(), o.out.nbytes(), ncclInt8, o.peer, comm_,
                                 static_cast<cudaStream_t>(stream_.handle()));
        check(result == ncclInProgress ? ncclSuccess : result, "ncclBroadcast");
        return check(settle(deadline), "ncclBroadcast");
      }
      case Collective::kAllToAll:
        copy(own_part(o, o.out), own_part(o, o.in));
        return exchange(all_to_all_round(o, rank()), deadline);
      case Collective::kSend:
        return exchange({.sends = {{o.peer, o.in.raw(), o.in.nbytes()}}}, deadline);
      case Collective::kRecv:
        return exchange({.receives = {{o.peer, o.out.raw(), o.out.nbytes()}}}, deadline);
      case Collective::kBarrier:
        WEFT_FAIL("a barrier is the host's");
    }
  }

  /// Each part of o.in to the rank that keeps it; this rank's, reduced, to `out`.
  void scatter_sums(const Operation& o, const Tensor& out, Clock::time_point deadline) {
    const int64_t segment =
        std::max<int64_t>(1, options_.segment_bytes / static_cast<int64_t>(o.in.itemsize()));
    const int64_t longest = *std::ranges::max_element(o.counts);
    for (int64_t first = 0; first < longest; first += segment) {
      const int64_t own = std::clamp<int64_t>(o.counts[rank()] - first, 0, segment);
      std::vector<Tensor> parts(size());
      std::vector<void*> into(size());
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) {
          parts[r] = view::narrow(own_part(o, o.in), 0, std::min(first, o.counts[r]), own);
        } else {
          parts[r] = Tensor::empty({own}, o.in.dtype(), device());
          into[r] = parts[r].raw();
        }
      }
      exchange(scatter_round(o, rank(), first, segment, into), deadline);
      if (own > 0) copy(view::narrow(out, 0, first, own), reduce_tree_on_device(o.op, parts));
    }
  }

  /// Every rank's part to its place in o.out; `mine` is this rank's.
  void gather(const Operation& o, const Tensor& mine, Clock::time_point deadline) {
    copy(own_part(o, o.out), mine);
    exchange(gather_round(o, rank(), message(rank(), mine, 0, mine.numel())), deadline);
  }

  static constexpr double kFarewell = 10;  // seconds

  const NcclOptions options_;
  const std::shared_ptr<TrafficCounters> family_;
  TrafficCounters own_;
  const Stream stream_;
  std::atomic<ncclComm_t> comm_{nullptr};

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<std::shared_ptr<Item>> pending_;
  std::exception_ptr failure_;
  bool stops_ = false;
  std::thread watchdog_;
};

}  // namespace

std::string nccl_problem() {
  if (runtime::device_count() == 0) return runtime::no_device_reason();
  return nccl().library.problem();
}

CommunicatorPtr make_nccl_communicator(CommunicatorPtr host, Device device,
                                       const NcclOptions& options) {
  require_device(device);
  const std::string problem = nccl_problem();
  WEFT_CHECK(problem.empty(), "NCCL cannot be used: {}", problem);
  return std::make_shared<NcclCommunicator>(std::move(host), device, options,
                                            std::make_shared<TrafficCounters>());
}

}  // namespace weft::dist
