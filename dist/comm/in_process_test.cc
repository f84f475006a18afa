#include "dist/comm/in_process.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "dist/comm/testing/conformance.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

InProcessOptions with_timeout(double seconds) { return {.host = {.timeout_seconds = seconds}}; }

/// What each rank's own error said.
std::vector<std::string> errors_of(int ranks, const std::function<void(Communicator&)>& body,
                                   const InProcessOptions& options) {
  std::vector<std::string> errors(ranks);
  run_ranks(
      ranks,
      [&](Communicator& c) {
        try {
          body(c);
        } catch (const std::exception& error) {
          errors[c.rank()] = error.what();
        }
      },
      options);
  return errors;
}

}  // namespace

TEST_CASE("ranks as threads conform") {
  for (int ranks : {1, 2, 3, 4, 8}) {
    INFO(ranks);
    CHECK_NOTHROW(run_ranks(ranks, [](Communicator& c) { run_conformance(c); }));
  }
}

TEST_CASE("segments and the comparison of operations change no result") {
  InProcessOptions options;
  options.host.segment_bytes = 64;
  options.host.compares_operations = true;
  CHECK_NOTHROW(run_ranks(
      3, [](Communicator& c) { run_conformance(c); }, options));
}

TEST_CASE("a rank that does not come is named with the collective and its number") {
  const auto errors = errors_of(
      3,
      [](Communicator& c) {
        const Tensor x = Tensor::zeros({4});
        c.all_reduce(x).wait();
        if (c.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(900));
          return;
        }
        c.all_reduce(x).wait();
      },
      with_timeout(0.3));
  for (int r : {0, 1}) {
    CHECK_THAT(errors[r], Contains("all_reduce #2 (sum f32 [4])"));
    CHECK_THAT(errors[r], Contains("rank 2"));
  }
  // The first to time out; the other may have heard of it from the first.
  CHECK_THAT(errors[0] + errors[1],
             Contains("rank 2 has not come: it ended all_reduce #1 and has begun none since"));
}

TEST_CASE("who waits for a waiting rank names the one that is missing") {
  // Rank 2 waits in a broadcast for rank 0, which waits for nobody; rank 1 has stalled.
  const auto errors = errors_of(
      4,
      [](Communicator& c) {
        if (c.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(900));
          return;
        }
        c.barrier().wait();
      },
      with_timeout(0.3));
  CHECK(errors[1] == "");
  CHECK_THAT(errors[0] + errors[2] + errors[3],
             Contains("rank 1 has not begun any collective of this group"));
}

TEST_CASE("the error of one rank ends the others at once") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(run_ranks(
                        4,
                        [](Communicator& c) {
                          WEFT_CHECK(c.rank() != 3, "rank 3 has no data");
                          c.barrier().wait();
                        },
                        with_timeout(30)),
                    Contains("rank 3 has no data"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("a communicator that failed fails again, with the same reason") {
  const auto errors = errors_of(
      2,
      [](Communicator& c) {
        if (c.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(400));
        const Work first = c.barrier();
        const Work second = c.all_reduce(Tensor::zeros({1}));
        CHECK_THROWS_WITH(first.wait(), Contains("barrier #1"));
        second.wait();
      },
      with_timeout(0.1));
  CHECK_THAT(errors[0], Contains("barrier #1"));
}

TEST_CASE("a group that is made after a rank has left does not wait for it") {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<bool> has_left{false};
  const auto errors = errors_of(
      3,
      [&](Communicator& c) {
        if (c.rank() == 2) {
          c.leave("no memory");
          has_left = true;
          return;
        }
        while (!has_left) std::this_thread::yield();
        c.group({0, 1, 2}, "late")->group({1, 0, 2}, "later")->barrier().wait();
      },
      with_timeout(20));
  for (int r : {0, 1}) {
    CHECK_THAT(errors[r],
               Contains("of later: barrier #1") && Contains("rank 2 gave up (no memory)"));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("debugging compares the next collective across ranks") {
  InProcessOptions options = with_timeout(20);
  options.host.compares_operations = true;
  const auto errors = errors_of(
      3,
      [](Communicator& c) {
        c.barrier().wait();
        const Tensor x = Tensor::zeros({c.rank() == 1 ? 5 : 4});
        c.all_reduce(x).wait();
      },
      options);
  CHECK_THAT(errors[0], Contains("the ranks disagree: rank 0 runs all_reduce #2 (sum f32 [4]), "
                                 "rank 1 runs all_reduce #2 (sum f32 [5])"));
}

TEST_CASE("messages of another size than expected are refused") {
  const auto errors = errors_of(
      2,
      [](Communicator& c) {
        if (c.rank() == 0) {
          c.send(Tensor::zeros({4}), 1).wait();
        } else {
          c.recv(Tensor::zeros({5}), 0).wait();
        }
      },
      with_timeout(5));
  CHECK_THAT(errors[1], Contains("expected 20 bytes from rank 0, which sent 16"));
}

TEST_CASE("the flight recorder keeps the latest collectives") {
  run_ranks(2, [](Communicator& c) {
    for (int i = 0; i < 3; ++i) c.all_reduce(Tensor::zeros({8})).wait();
    const auto entries = c.recorder().entries();
    WEFT_CHECK(entries.size() == 3 && entries[2].sequence == 3 &&
                   entries[2].state == FlightRecorder::State::kDone &&
                   entries[2].collective == "all_reduce #3 (sum f32 [8])" &&
                   entries[2].started >= entries[2].queued,
               "unexpected record: {}", c.recorder().to_json().dump());
  });
  FlightRecorder recorder(0, 4);
  for (uint64_t i = 1; i <= 10; ++i) recorder.finished(recorder.queued("g", i, "x", 0), true);
  CHECK(recorder.entries().size() == 4);
  CHECK(recorder.entries()[0].sequence == 7);
}

TEST_CASE("a slowed communicator takes the time of its network") {
  InProcessOptions options;
  options.latency_seconds = 0.02;
  options.bytes_per_second = 1e6;
  run_ranks(
      2,
      [](Communicator& c) {
        const auto begin = std::chrono::steady_clock::now();
        const Work work = c.all_reduce(Tensor::zeros({10000}));  // 20 kB there, 20 kB back
        const double asked =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        work.wait();
        const double done =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        WEFT_CHECK(done >= 0.08, "it took {} s", done);
        WEFT_CHECK(asked < 0.02, "asking for it took {} s", asked);
      },
      options);
}

TEST_CASE("a rank that leaves a collective out or sends an element less is named, not obeyed") {
  for (const auto kind : {Fault::Kind::kOrder, Fault::Kind::kShape}) {
    INFO(static_cast<int>(kind));
    InProcessOptions options = with_timeout(5);
    options.host.fault = {.kind = kind, .rank = 1, .at = 2};
    const auto errors = errors_of(
        3,
        [](Communicator& c) {
          for (int i = 0; i < 5; ++i) c.all_reduce(Tensor::zeros({6})).wait();
        },
        options);
    CHECK_THAT(errors[0], Contains("all_reduce #3") && Contains("rank 1"));
    CHECK_THAT(errors[2], Contains("all_reduce #3") && Contains("rank 1"));
  }
}
