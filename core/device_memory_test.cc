#include <catch2/catch.hpp>
#include <thread>

#include "core/allocator.h"
#include "core/graph.h"
#include "core/transfer.h"
#include "core/view.h"
#include "tests/skip.h"

namespace weft {
namespace {

const Device kCuda{DeviceType::cuda, 0};

/// A made-up device with little memory that says what it gave.
class SmallMemory : public MemorySource {
 public:
  explicit SmallMemory(size_t bytes) : left_(bytes) {}
  void* take(size_t bytes) override {
    if (bytes > left_) return nullptr;
    left_ -= bytes;
    void* block = std::malloc(bytes);
    sizes_[block] = bytes;
    return block;
  }
  void give_back(void* block) override {
    left_ += sizes_.at(block);
    sizes_.erase(block);
    std::free(block);
  }
  size_t capacity_for(size_t bytes) const override { return bytes; }
  std::string describe() const override { return fmt::format("device {} free", left_); }

 private:
  size_t left_;
  std::map<void*, size_t> sizes_;
};

TEST_CASE("a block returns to the stream that it was allocated on") {
  CachingAllocator allocator(kCuda, std::make_unique<SmallMemory>(1000));
  int first_stream = 0, second_stream = 0;
  void* a = allocator.allocate(100, &first_stream);
  allocator.deallocate(a, 100);
  void* b = allocator.allocate(100, &second_stream);
  CHECK(b != a);  // work on the first stream may still use a
  CHECK(allocator.allocate(100, &first_stream) == a);
  CHECK(allocator.stats().system_requests == 2);
  allocator.deallocate(a, 100);
  allocator.deallocate(b, 100);
}

TEST_CASE("the pool is given up before memory is said to be out, but not a held stream's") {
  CachingAllocator allocator(kCuda, std::make_unique<SmallMemory>(1000));
  int stream = 0, held = 0;
  allocator.hold(&held);
  allocator.deallocate(allocator.allocate(300, &held), 300);
  allocator.deallocate(allocator.allocate(600, &stream), 600);
  void* large = allocator.allocate(700, &stream);
  CHECK_THROWS_WITH(allocator.allocate(200, &stream), Catch::Contains("requested 200 bytes"));
  allocator.let_go(&held, &stream);
  void* rest = allocator.allocate(300, &stream);
  allocator.deallocate(large, 700);
  allocator.deallocate(rest, 300);
}

TEST_CASE("a block that a stream has used may outlive the stream") {
  CachingAllocator allocator(kCuda, std::make_unique<SmallMemory>(1000));
  int stream = 0, gone = 0;
  void* a = allocator.allocate(100, &stream);
  allocator.record_use(a, &gone);
  allocator.let_go(&gone, &stream);
  allocator.deallocate(a, 100);
  CHECK(allocator.allocate(100, &stream) == a);
  allocator.deallocate(a, 100);
}

/// One whose device fails when the second block is given back.
class FailingMemory : public SmallMemory {
 public:
  FailingMemory(size_t bytes, std::vector<void*>& given) : SmallMemory(bytes), given_(given) {}
  void give_back(void* block) override {
    given_.push_back(block);
    WEFT_CHECK(given_.size() != 2, "the device has failed");
    SmallMemory::give_back(block);
  }
  bool caches() const override { return false; }

 private:
  std::vector<void*>& given_;
};

TEST_CASE("a block is given back once, whatever fails behind it") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  std::vector<void*> given;
  CachingAllocator allocator(kCuda, std::make_unique<FailingMemory>(1000, given));
  const Stream user(kCuda);
  int stream = 0;
  std::vector<void*> blocks(2);
  for (void*& block : blocks) {
    block = allocator.allocate(100, &stream);
    allocator.record_use(block, user.handle());
  }
  for (void* block : blocks) allocator.deallocate(block, 100);
  CHECK_THROWS_WITH(allocator.allocate(300, &stream), "the device has failed");
  CHECK_NOTHROW(allocator.release_pool());
  CHECK(given == blocks);
  std::free(blocks[1]);
}

TEST_CASE("the blocks of a stream that goes are its heir's, not those of the next at its address") {
  CachingAllocator allocator(kCuda, std::make_unique<SmallMemory>(1000));
  int stream = 0, gone = 0;
  const bool was_held = GENERATE(false, true);
  if (was_held) allocator.hold(&gone);
  void* pooled = allocator.allocate(100, &gone);
  void* live = allocator.allocate(200, &gone);
  allocator.deallocate(pooled, 100);
  allocator.let_go(&gone, &stream);
  allocator.deallocate(live, 200);
  CHECK(allocator.allocate(100, &stream) == pooled);
  CHECK(allocator.allocate(200, &stream) == live);
  CHECK(allocator.stats().system_requests == 2);
  allocator.deallocate(pooled, 100);
  allocator.deallocate(live, 200);
}

TEST_CASE("running out of memory names the ops that hold most of it and what to try") {
  CachingAllocator allocator(kCuda, std::make_unique<SmallMemory>(1000));
  int stream = 0;
  void* a = allocator.allocate(300, &stream);
  allocator.name_recent("gemm");
  void* b = allocator.allocate(200, &stream);
  void* c = allocator.allocate(210, &stream);
  allocator.name_recent("layer_norm");
  allocator.name_recent("softmax");  // which made nothing
  CHECK(allocator.largest(1) == "layer_norm 410 bytes in 2 blocks");
  CHECK_THROWS_WITH(
      allocator.allocate(500, &stream),
      "out of memory on cuda:0: requested 500 bytes; live 710, reserved 710, peak 710, device 290 "
      "free; most by op: layer_norm 410 bytes in 2 blocks, gemm 300 bytes in 1 block. Try a "
      "smaller batch, --accumulate or --checkpoint-activations");
  allocator.deallocate(a, 300);
  allocator.deallocate(b, 200);
  allocator.deallocate(c, 210);
}

TEST_CASE("a device that does not exist is refused with the reason") {
  const int count = runtime::device_count();
  CHECK((count == 0) == !runtime::no_device_reason().empty());
  const Device beyond{DeviceType::cuda, 99};
  if (count == 0) {
    CHECK_THROWS_WITH(Tensor::empty({3}, DType::f32, kCuda),
                      "device cuda:0 is not available: " + runtime::no_device_reason());
  } else {
    CHECK_THROWS_WITH(Tensor::empty({3}, DType::f32, beyond),
                      Catch::StartsWith("device cuda:99 is not available: this machine shows"));
  }
  CHECK_NOTHROW(require_device(Device{}));
}

TEST_CASE("a missing driver, one that is too old and one without a device are told apart") {
  using Catch::Contains;
  using runtime::explain_no_device;
  // Without a driver CUDA's error is the one of a driver that is too old.
  CHECK_THAT(explain_no_device({.driver = 0, .toolkit = 13000, .refused_as_old = true}),
             Contains("no NVIDIA driver is loaded") && Contains("--device cpu"));
  CHECK_THAT(explain_no_device({.driver = 12080, .toolkit = 13020, .refused_as_old = true}),
             Contains("too old: it serves CUDA 12.8, this program was built with 13.2"));
  CHECK_THAT(explain_no_device({.driver = 12080, .toolkit = 13000, .error = "unknown error"}),
             Contains("too old"));
  CHECK_THAT(explain_no_device({.driver = 13000, .toolkit = 13020}),
             Contains("shows no device") && Contains("$CUDA_VISIBLE_DEVICES"));
  CHECK(explain_no_device({.driver = 13000, .toolkit = 13000, .error = "system not yet ready"}) ==
        "system not yet ready; see nvidia-smi, or use --device cpu");
}

TEST_CASE("tensors travel to the device and back, strides and all") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const Tensor x = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4});
  const Tensor there = to_device(x, kCuda);
  CHECK(there.device() == kCuda);
  CHECK(there.to_vector() == x.to_vector());
  CHECK(to_device(there, kCuda).is_same(there));
  const Tensor part = view::transpose(view::narrow(x, 1, 1, 2), 0, 1);
  CHECK(to_device(part, kCuda).to_vector() == part.to_vector());
  CHECK(to_device(part, kCuda).strides() == part.strides());
  CHECK(view::select(view::select(there, 0, 2), 0, 1).item() == 9);
  CHECK(Tensor::zeros({5}, DType::f64, kCuda).to_vector() == std::vector<double>(5, 0));
  CHECK(to_device(Tensor::zeros({0, 3}), kCuda).to_vector().empty());
  const Tensor pinned = empty_pinned({3, 4}, DType::f32);
  copy_same_layout(there, pinned);
  CHECK(pinned.to_vector() == x.to_vector());
  if (runtime::device_count() > 1) {
    CHECK(to_device(there, {DeviceType::cuda, 1}).to_vector() == x.to_vector());
  }
}

TEST_CASE("streams have their own order and events tie them together") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const Stream shared = current_stream(kCuda), other(kCuda);
  {
    const StreamGuard guard(other);
    CHECK(current_stream(kCuda) == other);
  }
  CHECK(current_stream(kCuda) == shared);
  Event begin(kCuda), end(kCuda);
  begin.record(shared);
  end.record(shared);
  end.synchronize();
  CHECK(end.is_done());
  CHECK(end.ms_since(begin) >= 0);
  CHECK_THROWS_WITH(Event(Device{}).record(shared), Catch::Contains("cannot be recorded"));
}

TEST_CASE("a stream that goes leaves its memory to the one that all threads share") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const auto reserved = [] { return allocator(kCuda).stats().reserved; };
  const size_t before = reserved();
  const void* address = nullptr;
  {
    const Stream stream(kCuda);
    allocator(kCuda).hold(stream.handle());
    const StreamGuard guard(stream);
    address = Tensor::empty({5000}, DType::f32, kCuda).raw();
    CHECK(reserved() > before);
  }
  // The emulated device's allocator pools nothing but what is held.
  if (runtime::is_emulated()) {
    CHECK(reserved() == before);
  } else {
    CHECK(Tensor::empty({5000}, DType::f32, kCuda).raw() == address);
  }
}

TEST_CASE("a captured graph runs when it is launched, on what its inputs then hold") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const Tensor x = to_device(Tensor::from(std::vector<float>{1, 2}, {2}), kCuda);
  const Tensor y = Tensor::zeros({2}, DType::f32, kCuda);
  DeviceGraph graph(kCuda);
  CHECK_THROWS_WITH(graph.launch(), Catch::Contains("after its capture"));
  graph.capture([&] {
    // A temporary of the capture: its memory stays the graph's.
    const Tensor temporary = Tensor::empty({2}, DType::f32, kCuda);
    copy_same_layout(x, temporary);
    copy_same_layout(temporary, y);
  });
  CHECK(y.to_vector() == std::vector<double>{0, 0});
  graph.launch();
  CHECK(y.to_vector() == std::vector<double>{1, 2});
  copy_same_layout(to_device(Tensor::from(std::vector<float>{5, 6}, {2}), kCuda), x);
  graph.launch();
  CHECK(y.to_vector() == std::vector<double>{5, 6});
  CHECK_THROWS_WITH(graph.capture([] {}), Catch::Contains("captured once"));
}

TEST_CASE("a capture asks CUDA nothing that would end it") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const Stream other(kCuda);
  const Tensor y = Tensor::zeros({2}, DType::f32, kCuda);
  for (bool is_shared : {false, true}) {
    Tensor x = to_device(Tensor::from(std::vector<float>{1, 2}, {2}), kCuda);
    if (is_shared) allocator(kCuda).record_use(x.raw(), other.handle());
    DeviceGraph graph(kCuda);
    const size_t before = allocator(kCuda).stats().reserved;
    graph.capture([&] {
      // Memory of another stream, freed while it is captured, rests; the next request finds it so.
      x = {};
      const Tensor temporary = Tensor::empty({3}, DType::f32, kCuda);
      copy_same_layout(Tensor::view_of(temporary.storage(), {2}, {1}, 0, DType::f32), y);
    });
    CHECK(allocator(kCuda).stats().reserved >= before);
    if (!runtime::is_emulated()) continue;
    // The emulated device's allocator keeps nothing: the first request after it gives it back.
    const Tensor next = Tensor::empty({1}, DType::f32, kCuda);
    CHECK(allocator(kCuda).stats().reserved ==
          before - 2 * sizeof(float) + (3 + 1) * sizeof(float));
  }
}

TEST_CASE("the emulated device refuses what CUDA forbids while a graph is captured") {
  if (!runtime::is_emulated() || runtime::device_count() == 0) WEFT_SKIP("no emulated device");
  const runtime::EventHandle event = runtime::create_event(0);
  const auto capture = [](const std::function<void()>& work) { DeviceGraph(kCuda).capture(work); };
  CHECK_THROWS_WITH(capture([&] { runtime::is_done(0, event); }),
                    Catch::Contains("cudaEventQuery is not allowed while"));
  CHECK_THROWS_WITH(capture([&] { runtime::synchronize_event(0, event); }),
                    Catch::Contains("cudaEventSynchronize is not allowed while"));
  CHECK_THROWS_WITH(capture([] { runtime::synchronize(0); }),
                    Catch::Contains("cudaDeviceSynchronize is not allowed while"));
  void* const block = runtime::allocate(0, 64);
  CHECK_THROWS_WITH(capture([&] { runtime::deallocate(0, block); }),
                    Catch::Contains("the capture has no graph: cudaFree was called"));
  CHECK_NOTHROW(capture([] {}));
  CHECK(runtime::is_done(0, event));
  runtime::destroy_event(0, event);
}

TEST_CASE("a thread that waits for a device while another captures is told, and spoils nothing") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  DeviceGraph graph(kCuda);
  std::string problem;
  graph.capture([&] {
    std::thread([&] {
      try {
        synchronize(kCuda);
      } catch (const Error& error) {
        problem = error.what();
      }
    }).join();
  });
  CHECK(problem ==
        "cudaDeviceSynchronize is not possible on cuda:0 while a graph is captured there");
  CHECK_NOTHROW(graph.launch());
  CHECK_NOTHROW(synchronize(kCuda));
}

TEST_CASE("on the CPU a graph repeats its function") {
  int count = 0;
  DeviceGraph graph({});
  graph.capture([&] { ++count; });
  graph.launch();
  CHECK(count == 2);
}

}  // namespace
}  // namespace weft
