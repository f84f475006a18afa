// Absent ranks: what is counted of collectives is what the engines send.
#include "dist/comm/rehearsal.h"

#include <catch2/catch.hpp>
#include <functional>
#include <vector>

#include "dist/comm/in_process.h"

using namespace weft;
using namespace weft::dist;

namespace {

void talk(Communicator& world) {
  const int n = world.size(), rank = world.rank();
  world.all_reduce(Tensor::zeros({11})).wait();
  world.all_reduce(Tensor::zeros({7}, DType::bf16), ReduceOp::kMean).wait();
  world.reduce_scatter(Tensor::zeros({5}), Tensor::zeros({5 * n})).wait();
  std::vector<int64_t> counts(n, 3);
  counts[0] = 0;
  world
      .all_gather(Tensor::zeros({3 * (n - 1)}, DType::f64),
                  Tensor::zeros({counts[rank]}, DType::f64), counts)
      .wait();
  for (int root = 0; root < n; ++root) world.broadcast(Tensor::zeros({4}), root).wait();
  world.all_to_all(Tensor::zeros({2 * n}), Tensor::zeros({2 * n})).wait();
  const Tensor passed = Tensor::zeros({9});
  if (rank == 0) world.send(passed, 1).wait();
  if (rank == 1) world.recv(passed, 0).wait();
  std::vector<int> even;
  for (int r = 0; r < n; r += 2) even.push_back(r);
  if (rank % 2 == 0) world.group(even, "even")->all_reduce(Tensor::zeros({6})).wait();
  world.barrier().wait();
}

}  // namespace

TEST_CASE("an absent rank counts what it would send") {
  for (const int ranks : {2, 3, 5, 8}) {
    std::vector<int64_t> sent(ranks);
    run_ranks(ranks, [&](Communicator& world) {
      talk(world);
      sent[world.rank()] = world.family_traffic().sent;
    });
    for (int rank = 0; rank < ranks; ++rank) {
      INFO(rank << " of " << ranks);
      const CommunicatorPtr absent = make_absent_world(rank, ranks);
      talk(*absent);
      CHECK(absent->family_traffic().sent == sent[rank]);
    }
  }
}

TEST_CASE("integers travel, numbers stay") {
  run_ranks(2, [](Communicator& world) {
    const CommunicatorPtr handle(&world, [](Communicator*) {});
    const CommunicatorPtr quiet = without_floats(handle);
    const Tensor announced = Tensor::full({2}, 1 + world.rank(), DType::i64);
    quiet->broadcast(announced, 1).wait();
    WEFT_CHECK(announced.to_vector() == std::vector<double>({2, 2}), "got {}", announced);
    const Tensor numbers = Tensor::full({2}, 1 + world.rank(), DType::f32);
    quiet->all_reduce(numbers).wait();
    WEFT_CHECK(numbers.to_vector() == std::vector<double>(2, 1 + world.rank()), "got {}", numbers);
    const int64_t announced_bytes = world.rank() == 1 ? 16 : 0;
    WEFT_CHECK(quiet->traffic().sent == announced_bytes + 8, "sent {}", quiet->traffic().sent);
    WEFT_CHECK(world.traffic().sent == announced_bytes, "sent {}", world.traffic().sent);
    // As with the engines, what is sent stays fit for a gradient, what comes does not.
    const auto version = numbers.version();
    quiet->send(numbers, 1 - world.rank()).wait();
    WEFT_CHECK(numbers.version() == version, "what was sent has changed");
    quiet->recv(numbers, 1 - world.rank()).wait();
    WEFT_CHECK(numbers.version() > version, "what came has not changed");
  });
  CHECK_THROWS_WITH(make_absent_world(2, 2), Catch::Matchers::Contains("below 2, got 2"));
}
