#include "dist/comm/device/nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/stream.h"
#include "core/view.h"
#include "dist/comm/device/nccl_api.h"
#include "kernels/device/library.h"

namespace weft::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLibrary = "libnccl.so.2";

/// The library that was found, and its functions.
struct Nccl {
  kernels::Library library{kLibrary};
  nccl::Api api = {};

  Nccl() {
    if (!library.is_open()) return;
#define WEFT_LOAD(ours, theirs) load(api.ours, #theirs);
    WEFT_NCCL_FUNCTIONS(WEFT_LOAD)
    try {
      WEFT_NCCL_MEMORY_FUNCTIONS(WEFT_LOAD)
    } catch (const Error&) {
      api.mem_alloc = nullptr;  // a library older than these
    }
#undef WEFT_LOAD
  }

  template <class Function>
  void load(Function& function, const char* name) const {
    function = library.function<Function>(name);
  }
};

Nccl& the_library() {
  static auto& the_library = *new Nccl;
  return the_library;
}

nccl::Type type_of(DType dtype) {
  using nccl::Type;
  constexpr std::pair<DType, Type> kTypes[] = {
      {DType::f64, Type::kFloat64},   {DType::f32, Type::kFloat32}, {DType::f16, Type::kFloat16},
      {DType::bf16, Type::kBfloat16}, {DType::i64, Type::kInt64},   {DType::i32, Type::kInt32}};
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  WEFT_FAIL("NCCL adds no {}", dtype);
}

/// Memory from NCCL that is registered with a communicator as long as that lives; either may
/// outlive the other.
class RegisteredMemory : public MemorySource {
 public:
  RegisteredMemory(const nccl::Api& api, Device device, nccl::Comm comm)
      : api_(api), device_(device), comm_(comm) {}

  void* take(size_t bytes) override {
    const runtime::DeviceGuard guard(device_.index);
    void *memory = nullptr, *handle = nullptr;
    if (api_.mem_alloc(&memory, bytes) != nccl::Result::kSuccess) return nullptr;
    std::lock_guard lock(mutex_);
    const nccl::Result registered =
        comm_ ? api_.comm_register(comm_, memory, bytes, &handle) : nccl::Result::kSuccess;
    if (registered != nccl::Result::kSuccess && registered != nccl::Result::kInProgress) {
      api_.mem_free(memory);
      return nullptr;
    }
    handles_[memory] = handle;
    return memory;
  }
  void give_back(void* memory) override {
    const runtime::DeviceGuard guard(device_.index);
    // Unlike cudaFree, ncclMemFree does not wait for the kernels that still use it.
    runtime::synchronize(device_.index);
    {
      std::lock_guard lock(mutex_);
      if (comm_) api_.comm_deregister(comm_, handles_.at(memory));
      handles_.erase(memory);
    }
    api_.mem_free(memory);
  }
  size_t capacity_for(size_t bytes) const override {
    if (runtime::is_emulated()) return bytes;         // an access behind it is to be seen
    constexpr size_t kGranularity = size_t{2} << 20;  // of ncclMemAlloc
    return (bytes + kGranularity - 1) / kGranularity * kGranularity;
  }
  bool caches() const override { return !runtime::is_emulated(); }
  std::string describe() const override { return "memory registered with NCCL"; }

  /// Blocks are given out in the order of a stream: it stays as long as they do, for the allocator
  /// would not hear that it goes.
  void keep(const Stream& stream) {
    std::lock_guard lock(mutex_);
    if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
  }

  /// The communicator is about to go; where it has `failed`, so that it cannot be asked.
  void leave(bool failed) {
    std::lock_guard lock(mutex_);
    for (const auto& [memory, handle] : handles_) {
      if (comm_ && !failed) api_.comm_deregister(comm_, handle);
    }
    comm_ = nullptr;
  }

 private:
  const nccl::Api& api_;
  const Device device_;
  std::mutex mutex_;
  nccl::Comm comm_;                 // null once that has gone
  std::map<void*, void*> handles_;  // by memory
  std::vector<Stream> streams_;
};

class NcclCommunicator : public DeviceCommunicator {
 public:
  NcclCommunicator(CommunicatorPtr host, Device device, const NcclOptions& options,
                   std::shared_ptr<TrafficCounters> family)
      : DeviceCommunicator(std::move(host), device),
        options_(options),
        api_(options.api ? *options.api : the_library().api),
        family_(std::move(family)),
        stream_(device) {
    initialize();
    if (api_.mem_alloc) {
      auto memory = std::make_unique<RegisteredMemory>(api_, this->device(), comm_);
      registered_ = memory.get();
      buffers_ = {new CachingAllocator(this->device(), std::move(memory)), delete_if_possible};
    }
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
    // What others free later must not be noted on a stream that has gone.
    if (buffers_) buffers_->let_go(stream_.handle(), current_stream_handle(device()));
    if (!comm_) return;
    if (registered_) registered_->leave(false);
    api_.comm_finalize(comm_);
    try {
      check(settle(after(kFarewell)), "ncclCommFinalize");
      api_.comm_destroy(comm_);
    } catch (const Error&) {  // also at the deadline: another rank has not come to its farewell
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

  Tensor registered_buffer(int64_t elements, DType dtype, BufferLife life) override {
    const size_t bytes = static_cast<size_t>(elements) * itemsize(dtype);
    if (!buffers_ || bytes == 0) return {};
    void* memory = nullptr;
    std::function<void()> release;
    if (life == BufferLife::kStays) {
      memory = registered_->take(bytes);
      WEFT_CHECK(memory, "{}: NCCL has no {} bytes to register on {}", name(), bytes, device());
      release = [memory, source = registered_, owner = buffers_] { source->give_back(memory); };
    } else {
      const Stream stream = current_stream(device());
      registered_->keep(stream);
      memory = buffers_->allocate(bytes, stream.handle());
      buffers_->name_recent(name());
      release = [memory, bytes, buffers = buffers_] { buffers->deallocate(memory, bytes); };
    }
    return Tensor::view_of(std::make_shared<Storage>(memory, bytes, device(), release), {elements},
                           {1}, 0, dtype);
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
      void* const memory = tensor.storage()->data();
      allocator(device()).record_use(memory, stream_.handle());
      if (buffers_) buffers_->record_use(memory, stream_.handle());
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
  using Result = nccl::Result;

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

  static void delete_if_possible(CachingAllocator* buffers) {
    try {
      buffers->release_pool();
    } catch (const Error&) {
      return;  // a device that has failed keeps its memory
    }
    delete buffers;
  }

  void initialize() {
    nccl::UniqueId id = {};
    if (rank() == 0) check(api_.get_unique_id(&id), "ncclGetUniqueId");
    const Tensor bytes = Tensor::empty({static_cast<int64_t>(sizeof id)}, DType::u8);
    std::memcpy(bytes.raw(), &id, sizeof id);
    host().broadcast(bytes, 0).wait();
    std::memcpy(&id, bytes.raw(), sizeof id);
    nccl::Config config;
    nccl::Comm made = nullptr;
    const auto begin = [&] {
      const runtime::DeviceGuard guard(device().index);
      return api_.comm_init_rank_config(&made, size(), id, rank(), &config);
    };
    const Result begun = begin();
    comm_ = made;
    try {
      check(begun, "ncclCommInitRankConfig");
      check(settle(after(options_.timeout_seconds)), "ncclCommInitRankConfig");
    } catch (const Error& error) {
      abort();
      WEFT_FAIL("rank {} of {} on {}: {}", rank(), name(), device(), error.what());
    }
  }

  /// Waits until NCCL has done what it was told on the host's side.
  Result settle(Clock::time_point deadline) {
    while (true) {
      const Result state = state_of_comm();
      if (state != Result::kInProgress) return state;
      WEFT_CHECK(Clock::now() < deadline,
                 "NCCL is still under way at the deadline: another rank has not come");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// What NCCL says of the communicator, which another thread may abort meanwhile.
  Result state_of_comm() {
    std::lock_guard lock(comm_mutex_);
    require_comm();
    Result state = Result::kSuccess;
    const Result asked = api_.comm_get_async_error(comm_, &state);
    return asked == Result::kSuccess ? state : asked;
  }
  /// Under comm_mutex_.
  void require_comm() const { WEFT_CHECK(comm_, "NCCL's communicator has been aborted"); }

  void check(Result result, const char* call) {
    if (result == Result::kSuccess || result == Result::kInProgress) return;
    std::lock_guard lock(comm_mutex_);
    const char* more = api_.get_last_error(comm_);
    WEFT_FAIL("{}: {}{}", call, api_.get_error_string(result),
              more && *more ? fmt::format(" ({})", more) : "");
  }

  /// Frees the device from the collectives under way. From a thread of its own, since it may hang.
  void abort() {
    // What NCCL gave out it frees without the communicator, too.
    if (registered_) registered_->leave(true);
    nccl::Comm comm = nullptr;
    {
      std::lock_guard lock(comm_mutex_);  // no call is using it, and none will
      comm = std::exchange(comm_, nullptr);
    }
    if (!comm) return;
    const auto has_ended = std::make_shared<std::atomic<bool>>(false);
    std::thread helper([comm, has_ended, &api = api_] {
      api.comm_abort(comm);
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
        if (!is_done) {
          check(state_of_comm(), "NCCL");
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

  nccl::Stream stream() const { return stream_.handle(); }

  void count(size_t bytes, int64_t messages = 1) {
    for (TrafficCounters* counters : {&own_, family_.get()}) {
      counters->sent += static_cast<int64_t>(bytes);
      counters->messages += messages;
    }
  }

  /// One of NCCL's functions, or several as a group, which is one launch.
  template <class Function>
  void call(const char* what, Clock::time_point deadline, Function&& function) {
    const auto called = [&] {
      std::lock_guard lock(comm_mutex_);
      require_comm();
      return function();
    };
    check(called(), what);
    check(settle(deadline), what);
  }
  template <class Function>
  void call_group(Clock::time_point deadline, Function&& function) {
    call("ncclGroupEnd", deadline, [&] {
      const Result begun = api_.group_start();
      if (begun != Result::kSuccess) return begun;
      function();  // its errors are those of the group's end
      return api_.group_end();
    });
  }

  void exchange(const Round& round, Clock::time_point deadline) {
    if (round.sends.empty() && round.receives.empty()) return;
    call_group(deadline, [&] {
      for (const Message& m : round.sends) {
        api_.send(m.data, m.bytes, nccl::Type::kInt8, m.peer, comm_, stream());
        count(m.bytes);
      }
      for (const Message& m : round.receives) {
        api_.recv(m.data, m.bytes, nccl::Type::kInt8, m.peer, comm_, stream());
      }
    });
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
        if (nccl_adds(o)) return all_reduce(o, deadline);
        const Tensor part = own_part(o, o.out);
        scatter_sums(o, part, deadline);
        return gather(o, part, deadline);
      }
      case Collective::kReduceScatter:
        if (nccl_adds(o)) return reduce_scatter(o, deadline);
        return scatter_sums(o, flat(o.out), deadline);
      case Collective::kAllGather:
        return gather(o, flat(o.in), deadline);
      case Collective::kBroadcast:
        if (o.out.nbytes() == 0) return;
        // Down a ring, whose last rank sends nothing.
        if ((rank() + 1) % size() != o.peer) count(o.out.nbytes());
        return call("ncclBroadcast", deadline, [&] {
          return api_.broadcast(o.out.raw(), o.out.raw(), o.out.nbytes(), nccl::Type::kInt8, o.peer,
                                comm_, stream());
        });
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

  // Sums by NCCL.

  /// Not where NaN has to win: NCCL's maxima and minima say nothing of it.
  bool nccl_adds(const Operation& o) const {
    return options_.collectives == Collectives::kNccl &&
           (o.op == ReduceOp::kSum || o.op == ReduceOp::kMean);
  }
  static nccl::Op op_of(const Operation& o) {
    return o.op == ReduceOp::kMean ? nccl::Op::kAvg : nccl::Op::kSum;
  }
  static bool is_even(const Operation& o) {
    return std::ranges::all_of(o.counts, [&](int64_t count) { return count == o.counts[0]; });
  }
  /// Bytes of all parts but this rank's.
  size_t bytes_of_others(const Operation& o) const {
    return static_cast<size_t>(o.begin(size()) - o.counts[rank()]) * o.in.itemsize();
  }

  void all_reduce(const Operation& o, Clock::time_point deadline) {
    if (o.in.numel() == 0) return;
    // A ring of reduce_scatter and all_gather; trees and NVLS send no more.
    count(bytes_of_others(o) + static_cast<size_t>(o.counts[rank()]) * o.in.itemsize() *
                                   static_cast<size_t>(size() - 1));
    call("ncclAllReduce", deadline, [&] {
      return api_.all_reduce(o.in.raw(), o.out.raw(), static_cast<size_t>(o.in.numel()),
                             type_of(o.in.dtype()), op_of(o), comm_, stream());
    });
  }

  void reduce_scatter(const Operation& o, Clock::time_point deadline) {
    if (o.in.numel() == 0) return;
    const nccl::Type type = type_of(o.in.dtype());
    count(bytes_of_others(o));
    if (is_even(o)) {
      return call("ncclReduceScatter", deadline, [&] {
        return api_.reduce_scatter(o.in.raw(), o.out.raw(), static_cast<size_t>(o.counts[0]), type,
                                   op_of(o), comm_, stream());
      });
    }
    call_group(deadline, [&] {
      for (int r = 0; r < size(); ++r) {
        if (o.counts[r] == 0) continue;
        const Message part = message(r, o.in, o.begin(r), o.counts[r]);
        api_.reduce(part.data, r == rank() ? o.out.raw() : nullptr,
                    static_cast<size_t>(o.counts[r]), type, op_of(o), r, comm_, stream());
      }
    });
  }

  // Sums in the order of reduce_tree.h, of bytes that NCCL moves.

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
    if (!is_even(o)) {
      copy(own_part(o, o.out), mine);
      return exchange(gather_round(o, rank(), message(rank(), mine, 0, mine.numel())), deadline);
    }
    if (mine.numel() == 0) return;
    count(mine.nbytes() * static_cast<size_t>(size() - 1));
    call("ncclAllGather", deadline, [&] {
      return api_.all_gather(mine.raw(), o.out.raw(), mine.nbytes(), nccl::Type::kInt8, comm_,
                             stream());
    });
  }

  static constexpr double kFarewell = 10;  // seconds

  const NcclOptions options_;
  const nccl::Api& api_;
  std::shared_ptr<CachingAllocator> buffers_;  // null where NCCL is older than registrations
  RegisteredMemory* registered_ = nullptr;     // what they are made of
  const std::shared_ptr<TrafficCounters> family_;
  TrafficCounters own_;
  const Stream stream_;

  std::mutex comm_mutex_;      // held in each of NCCL's calls, none of which waits
  nccl::Comm comm_ = nullptr;  // null once it has been aborted

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
  if (runtime::is_emulated()) return "NCCL does not know of emulated devices";
  return the_library().library.problem();
}

CommunicatorPtr make_nccl_communicator(CommunicatorPtr host, Device device,
                                       const NcclOptions& options) {
  require_device(device);
  const std::string problem = options.api ? "" : nccl_problem();
  WEFT_CHECK(problem.empty(), "NCCL cannot be used: {}", problem);
  return std::make_shared<NcclCommunicator>(std::move(host), device, options,
                                            std::make_shared<TrafficCounters>());
}

}  // namespace weft::dist
