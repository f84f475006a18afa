#include "core/allocator.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "core/memory_account.h"
#include "core/tensor.h"

namespace weft {
namespace {

TEST_CASE("a freed block serves the next request of about its size") {
  CachingAllocator allocator{Device{}};
  void* first = allocator.allocate(100000);
  allocator.deallocate(first, 100000);
  CHECK(allocator.allocate(100000) == first);
  allocator.deallocate(first, 100000);
  void* slightly_smaller = allocator.allocate(95000);
  CHECK(slightly_smaller == first);
  // Half of a block would waste the rest of it.
  void* half = allocator.allocate(50000);
  CHECK(half != first);
  allocator.deallocate(slightly_smaller, 95000);
  void* other = allocator.allocate(50000);
  CHECK(other != first);
  allocator.deallocate(half, 50000);
  allocator.deallocate(other, 50000);
  CHECK(allocator.stats().allocations == 5);
  CHECK(allocator.stats().system_requests == 3);
}

TEST_CASE("of equal blocks the one freed last is taken first") {
  CachingAllocator allocator{Device{}};
  void* blocks[3];
  for (void*& block : blocks) block = allocator.allocate(1 << 20);
  for (void* block : blocks) allocator.deallocate(block, 1 << 20);
  for (int i = 2; i >= 0; --i) CHECK(allocator.allocate(1 << 20) == blocks[i]);
  for (void* block : blocks) allocator.deallocate(block, 1 << 20);
}

TEST_CASE("small blocks serve requests of their size, counted or not") {
  CachingAllocator allocator{Device{}};
  void* const a = allocator.allocate(100);
  void* const b = allocator.allocate(128);
  CHECK(allocator.stats().live == 228);
  CHECK(allocator.stats().reserved == 256);
  allocator.deallocate(a, 100);
  allocator.deallocate(b, 128);
  CHECK(allocator.allocate(65) == b);  // the one freed last, of two cache lines as well
  CHECK(allocator.allocate(128) == a);
  void* const small = allocator.allocate(64);
  CHECK(small != a);
  CHECK(allocator.stats().live == 257);
  CHECK(allocator.stats().system_requests == 3);
  // A block that an account counts is found again when it is freed, whoever frees it.
  MemoryAccount account;
  void* counted = nullptr;
  {
    const MemoryAccount::Joined joined(account);
    counted = allocator.allocate(100);
    CHECK(account.total().live == 100);
    allocator.deallocate(b, 65);
    CHECK(account.total().live == 100);
  }
  allocator.deallocate(counted, 100);
  CHECK(account.total().live == 0);
  allocator.deallocate(a, 128);
  CHECK(allocator.stats().live == 64);
  allocator.release_pool();
  CHECK(allocator.stats().reserved == 64);
  allocator.deallocate(small, 64);
}

TEST_CASE("live, reserved and peak bytes are counted") {
  CachingAllocator allocator{Device{}};
  CHECK(allocator.allocate(0) == nullptr);
  allocator.deallocate(nullptr, 0);
  void* a = allocator.allocate(1000);
  void* b = allocator.allocate(5000);
  MemoryStats stats = allocator.stats();
  CHECK(stats.live == 6000);
  CHECK(stats.reserved == 1024 + 8192);  // whole cache lines, whole pages
  CHECK(stats.peak_live == 6000);
  CHECK(stats.peak_reserved == stats.reserved);
  allocator.deallocate(b, 5000);
  stats = allocator.stats();
  CHECK(stats.live == 1000);
  CHECK(stats.reserved == 1024 + 8192);
  CHECK(stats.peak_live == 6000);
  allocator.reset_peak();
  CHECK(allocator.stats().peak_live == 1000);
  CHECK(allocator.stats().peak_reserved == 1024 + 8192);
  allocator.release_pool();
  CHECK(allocator.stats().reserved == 1024);
  allocator.reset_peak();
  CHECK(allocator.stats().peak_reserved == 1024);
  allocator.deallocate(a, 1000);
  CHECK(allocator.stats().live == 0);
  allocator.release_pool();
  CHECK(allocator.stats().reserved == 0);
}

TEST_CASE("blocks are aligned and apart") {
  CachingAllocator allocator{Device{}};
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  for (size_t bytes : {1u, 63u, 64u, 65u, 4095u, 4097u, 3u << 20}) {
    auto* block = static_cast<unsigned char*>(allocator.allocate(bytes));
    CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
    std::memset(block, static_cast<int>(blocks.size()), bytes);
    blocks.emplace_back(block, bytes);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [block, bytes] = blocks[i];
    CHECK(block[0] == i);
    CHECK(block[bytes - 1] == i);
    allocator.deallocate(block, bytes);
  }
}

TEST_CASE("memory that the system does not have is an error with figures") {
  CachingAllocator allocator{Device{}};
  void* held = allocator.allocate(100);
  void* pooled = allocator.allocate(200);
  allocator.deallocate(pooled, 200);
  CHECK_THROWS_WITH(allocator.allocate(size_t{1} << 62),
                    Catch::StartsWith("out of memory on cpu: requested 4611686018427387904 bytes; "
                                      "live 100, reserved 128, peak 300"));
  CHECK(allocator.stats().live == 100);
  allocator.deallocate(held, 100);
}

TEST_CASE("threads share an allocator") {
  CachingAllocator allocator{Device{}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&allocator] {
      for (size_t i = 1; i <= 500; ++i) allocator.deallocate(allocator.allocate(i * 64), i * 64);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(allocator.stats().allocations == 2000);
  CHECK(allocator.stats().live == 0);
}

TEST_CASE("tensors give their memory back with the last handle") {
  const size_t before = allocator(Device{}).stats().live;
  {
    const Tensor x = Tensor::empty({1000}, DType::f64);
    const Tensor alias = x;
    CHECK(allocator(Device{}).stats().live == before + 8000);
  }
  CHECK(allocator(Device{}).stats().live == before);
}

TEST_CASE("each CPU index counts its own memory; other devices are refused") {
  const Device second{DeviceType::cpu, 1};
  const size_t before = allocator(second).stats().live;
  const Tensor x = Tensor::empty({16}, DType::f32, second);
  CHECK(allocator(second).stats().live == before + 64);
  CHECK(&allocator(second) != &allocator(Device{}));
}

TEST_CASE("an account counts its threads' blocks by kind, wherever they are freed") {
  MemoryAccount mine, other;
  Tensor kept, gradient;
  {
    const MemoryAccount::Joined joined(mine);
    {
      const MemoryScope scope(MemoryKind::kParameters);
      kept = Tensor::zeros({100});
      const MemoryScope inner(MemoryKind::kBuckets);
      Tensor::zeros({50});
    }
    gradient = Tensor::zeros({25});
    CHECK(mine.bytes(MemoryKind::kActivations).live == 100);
    assign_memory(gradient, MemoryKind::kGradients);
    const MemoryAccount::Joined nested(other);
    CHECK(other.total().live == 0);
    const Tensor elsewhere = Tensor::zeros({10});
    CHECK(other.total().live == 40);
  }
  CHECK(other.total().live == 0);
  CHECK(other.total().peak == 40);
  CHECK(mine.bytes(MemoryKind::kParameters).live == 400);
  CHECK(mine.bytes(MemoryKind::kBuckets).live == 0);
  CHECK(mine.bytes(MemoryKind::kBuckets).peak == 200);
  CHECK(mine.bytes(MemoryKind::kActivations).live == 0);
  CHECK(mine.bytes(MemoryKind::kGradients).live == 100);
  CHECK(mine.state().live == 500);
  CHECK(mine.state().peak == 600);
  // Another thread frees what this one took; what nobody counts is nobody's.
  std::thread([&] { kept = {}; }).join();
  gradient = {};
  const Tensor uncounted = Tensor::zeros({1000});
  CHECK(mine.total().live == 0);
  mine.reset_peak();
  CHECK(mine.total().peak == 0);
}

TEST_CASE("a thread that works for another counts on its account, as its kind") {
  MemoryAccount account;
  Tensor made;
  {
    const MemoryAccount::Joined joined(account);
    const MemoryScope scope(MemoryKind::kGathered);
    std::thread([&, owner = memory::current_owner()] {
      {
        const memory::WorkingFor working(owner);
        made = Tensor::zeros({8});
      }
      const Tensor uncounted = Tensor::zeros({8});
      CHECK(account.total().live == 32);
    }).join();
  }
  CHECK(account.bytes(MemoryKind::kGathered).live == 32);
  made = {};
  CHECK(account.total().live == 0);
}

}  // namespace
}  // namespace weft
