#include "dist/comm/processes/mpi.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/ranges.h>
#include <mpi/mpi.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "core/parallel.h"
#include "core/signal_stack.h"

namespace weft::dist {
namespace {

std::atomic<bool> any_failure{false};

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  WEFT_FAIL("{}: {}", function, text);
}

volatile sig_atomic_t is_terminated = 0;

/// A rank that was told to end gets a moment to say in which collective that found it.
void handle_termination() {
  struct sigaction action = {};
  ::sigaction(SIGTERM, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  action.sa_handler = [](int) {
    is_terminated = 1;
    ::alarm(3);
  };
  ensure_signal_stack();
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

/// MPI's own calls wait for the other ranks without end and cannot be called back. While this
/// lives, a thread keeps the time: at the deadline it says what was waited for, and ends the
/// process.
class Watchdog {
 public:
  Watchdog(const char* what, double seconds)
      : thread_([=, this] {
          std::unique_lock lock(mutex_);
          const bool is_done = done_.wait_for(lock, std::chrono::duration<double>(seconds),
                                              [&] { return is_done_; });
          if (is_done) return;
          const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
          if (!rank) rank = std::getenv("PMI_RANK");  // MPICH's
          fmt::print(stderr,
                     "weft: error: rank {}: {}: waited {} s (WEFT_DIST_TIMEOUT) for ranks that did "
                     "not come\n",
                     rank ? rank : "?", what, seconds);
          ::_exit(1);
        }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_one();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;  // last: it uses the others
};

double timeout_seconds = 60;  // of the world's options

void finalize() {
  if (!any_failure) {
    const Watchdog watchdog("MPI_Finalize", timeout_seconds);
    MPI_Finalize();
    return;
  }
  // The first to leave makes mpirun end the others: they get the time to say what they know.
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

void initialize() {
  static const bool once = [] {
    int given = 0;
    const Watchdog watchdog("MPI_Init", timeout_seconds);
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given), "MPI_Init_thread");
    WEFT_CHECK(given == MPI_THREAD_MULTIPLE,
               "MPI: this installation does not serve several threads (level {} of {})", given,
               static_cast<int>(MPI_THREAD_MULTIPLE));
    handle_termination();
    std::atexit(finalize);
    return true;
  }();
  static_cast<void>(once);
}

bool process_has_ended(int pid) { return pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH; }

class MpiTransport : public Transport {
 public:
  MpiTransport(MPI_Comm comm, int rank, int size, size_t largest_message)
      : Transport(rank, size), comm_(comm), largest_message_(largest_message), statuses_(size) {
    const Watchdog watchdog("the ranks of a group", timeout_seconds);
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    share_statuses();
  }

  RankStatus* status(int rank) override { return statuses_[rank]; }
  bool has_loose_messages() const override { return has_loose_messages_; }

  void leave(const std::string& reason) override {
    any_failure = true;
    RankStatus& mine = *statuses_[rank()];
    if (mine.left) return;
    reason.copy(mine.reason, sizeof mine.reason - 1);
    mine.left = true;
  }

 protected:
  std::unique_ptr<Transport> make_group(const std::vector<int>& ranks, int place) override {
    for (int r : ranks) {
      const std::optional<std::string> reason = why_gone(r);
      if (reason) WEFT_FAIL("a group of ranks {}: {}", fmt::join(ranks, ", "), *reason);
    }
    MPI_Group all, some;
    MPI_Comm comm;
    const Watchdog watchdog("a group's making", timeout_seconds);
    check(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
    check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some),
          "MPI_Group_incl");
    check(MPI_Comm_create_group(comm_, some, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&all);
    MPI_Group_free(&some);
    return std::make_unique<MpiTransport>(comm, place, static_cast<int>(ranks.size()),
                                          largest_message_);
  }

  void do_exchange(const Round& round, Clock::time_point deadline) override {
    std::vector<MPI_Request> requests;
    std::vector<int> peers, bytes;  // of each request
    const auto post = [&](const Message& message, int tag, auto begin, const char* name) {
      size_t offset = 0;
      do {
        const auto piece = static_cast<int>(std::min(largest_message_, message.bytes - offset));
        requests.push_back(MPI_REQUEST_NULL);
        peers.push_back(message.peer);
        check(begin(static_cast<char*>(message.data) + offset, piece, MPI_BYTE, message.peer, tag,
                    comm_, &requests.back()),
              name);
        bytes.push_back(piece);
        offset += static_cast<size_t>(piece);
      } while (offset < message.bytes);
    };
    size_t received = 0;
    try {
      for (const Message& message : round.receives) {
        post(message, MPI_ANY_TAG, MPI_Irecv, "MPI_Irecv");
      }
      received = requests.size();
      for (const Message& message : round.sends) post(message, round.label, MPI_Isend, "MPI_Isend");
      bytes.resize(received);
      wait(requests, peers, bytes, round.label, deadline);
    } catch (...) {
      give_up(requests, received);
      throw;
    }
  }

 private:
  /// Nothing as long as the rank may come.
  std::optional<std::string> why_gone(int peer) {
    RankStatus* const status = statuses_[peer];
    if (!status) return {};
    if (process_has_ended(status->pid)) {
      status->left = true;
      return fmt::format("rank {} has died (process {})", peer, status->pid.load());
    }
    if (!status->left) return {};
    return fmt::format("rank {} gave up ({})", peer, status->reason);
  }

  /// Takes back the receives, which come first, that no message has reached: it would change what
  /// the caller has gone on with.
  void give_up(std::vector<MPI_Request>& requests, size_t received) {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] == MPI_REQUEST_NULL) continue;
      if (i < received) MPI_Cancel(&requests[i]);
      int complete = 0;
      MPI_Test(&requests[i], &complete, MPI_STATUS_IGNORE);
      has_loose_messages_ = has_loose_messages_ || !complete;
    }
  }

  /// The first requests are receives of `expected` bytes with this label.
  void wait(std::vector<MPI_Request>& requests, const std::vector<int>& peers,
            const std::vector<int>& expected, uint16_t label, Clock::time_point deadline) {
    if (requests.empty()) return;
    std::vector<MPI_Status> statuses(requests.size());
    Clock::time_point next_look = Clock::now() + kLookInterval;
    int looks_since_termination = 0;
    for (int turn = 0;; ++turn) {
      int done = 0;
      const int code =
          MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses.data());
      if (code == MPI_ERR_IN_STATUS) {
        for (const MPI_Status& status : statuses) {
          if (status.MPI_ERROR != MPI_ERR_PENDING) check(status.MPI_ERROR, "MPI_Testall");
        }
      }
      check(code, "MPI_Testall");
      if (done) break;
      // Short waits are bridged at once; in long ones the core belongs to the computation.
      if (turn < kYields) {
        ::sched_yield();
      } else {
        std::this_thread::sleep_for(kNap);
      }
      const Clock::time_point now = Clock::now();
      if (now < next_look) continue;
      next_look = now + kLookInterval;
      std::vector<int> missing;
      for (size_t i = 0; i < requests.size(); ++i) {
        int complete = 0;
        if (requests[i] != MPI_REQUEST_NULL &&
            MPI_Request_get_status(requests[i], &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
            !complete && std::find(missing.begin(), missing.end(), peers[i]) == missing.end()) {
          missing.push_back(peers[i]);
        }
      }
      for (int peer : missing) {
        if (const std::optional<std::string> reason = why_gone(peer)) {
          throw PeersMissing(*reason, {peer});
        }
      }
      if (is_terminated && ++looks_since_termination > 10) {
        throw PeersMissing("this rank was told to end, another one having failed", missing);
      }
      // With nobody missing it is this process that was stopped.
      if (now >= deadline && !missing.empty()) {
        throw PeersMissing("the deadline has passed", missing);
      }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      int bytes = 0;
      check_label(peers[i], static_cast<uint16_t>(statuses[i].MPI_TAG), label);
      check(MPI_Get_count(&statuses[i], MPI_BYTE, &bytes), "MPI_Get_count");
      WEFT_CHECK(bytes == expected[i], "expected {} bytes from rank {}, which sent {}", expected[i],
                 peers[i], bytes);
    }
  }

  /// Puts the statuses of the ranks of this host into memory that they share. It lives until MPI
  /// is finalised: freeing a window would wait for ranks that may have died.
  void share_statuses() {
    MPI_Comm host;
    check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &host),
          "MPI_Comm_split_type");
    int host_rank = 0, host_size = 1;
    MPI_Comm_rank(host, &host_rank);
    MPI_Comm_size(host, &host_size);
    void* mine = nullptr;
    MPI_Win window;
    check(MPI_Win_allocate_shared(kStatusBytes, 1, MPI_INFO_NULL, host, &mine, &window),
          "MPI_Win_allocate_shared");
    auto* status = new (aligned(mine)) RankStatus;
    status->pid = ::getpid();
    std::vector<int> ranks(host_size);
    const int own = rank();
    check(MPI_Allgather(&own, 1, MPI_INT, ranks.data(), 1, MPI_INT, host), "MPI_Allgather");
    for (int i = 0; i < host_size; ++i) {
      MPI_Aint bytes;
      int unit;
      void* address = nullptr;
      check(MPI_Win_shared_query(window, i, &bytes, &unit, &address), "MPI_Win_shared_query");
      statuses_[ranks[i]] = static_cast<RankStatus*>(aligned(address));
    }
  }

  /// Where a status lies in memory of kStatusBytes, which MPI aligns as it likes: at the same place
  /// in each process, since pages are mapped as wholes.
  static void* aligned(void* memory) {
    size_t bytes = kStatusBytes;
    return std::align(alignof(RankStatus), sizeof(RankStatus), memory, bytes);
  }

  static constexpr size_t kStatusBytes = sizeof(RankStatus) + alignof(RankStatus) - 1;
  static constexpr int kYields = 50;
  static constexpr std::chrono::microseconds kNap{50};
  static constexpr std::chrono::milliseconds kLookInterval{50};

  const MPI_Comm comm_;
  const size_t largest_message_;
  std::vector<RankStatus*> statuses_;
  bool has_loose_messages_ = false;
};

}  // namespace

std::string_view mpi_library() {
#if defined OPEN_MPI
  return "Open MPI";
#elif defined MPICH_VERSION
  return "MPICH";
#else
  return "unknown";
#endif
}

CommunicatorPtr make_mpi_world(const MpiOptions& options) {
  timeout_seconds = options.host.timeout_seconds;
  initialize();
  int rank = 0, size = 1;
  MPI_Comm comm;
  {
    const Watchdog watchdog("the world's making", timeout_seconds);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  }
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (!std::getenv("OMP_NUM_THREADS")) {
    set_num_threads(std::max(1, omp_get_num_procs() / std::max(1, mpi_local_size())));
  }
  return make_host_communicator(
      "world", std::make_unique<MpiTransport>(comm, rank, size, options.largest_message),
      options.host, std::make_shared<FlightRecorder>(rank));
}

}  // namespace weft::dist
