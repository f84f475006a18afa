// Where allocators get their memory.
#include <sys/mman.h>

#include <cstdlib>

#include "core/allocator.h"

namespace weft {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t bytes, size_t multiple) {
  WEFT_CHECK(bytes <= SIZE_MAX - multiple, "out of memory: requested {} bytes", bytes);
  return (bytes + multiple - 1) / multiple * multiple;
}

class SystemMemory : public MemorySource {
 public:
  void* take(size_t bytes) override {
    const bool huge = bytes >= kHugePage;
    void* block = std::aligned_alloc(huge ? kHugePage : kAlignment,
                                     huge ? round_up(bytes, kHugePage) : bytes);
    if (block && huge) madvise(block, bytes, MADV_HUGEPAGE);
    return block;
  }
  void give_back(void* block) override { std::free(block); }
  // Large blocks are whole pages.
  size_t capacity_for(size_t bytes) const override {
    return round_up(bytes, bytes < kPage ? kAlignment : kPage);
  }

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kHugePage = size_t{2} << 20;
};

class DeviceMemory : public MemorySource {
 public:
  explicit DeviceMemory(int device) : device_(device) {}
  void* take(size_t bytes) override { return runtime::allocate(device_, bytes); }
  void give_back(void* block) override { runtime::deallocate(device_, block); }
  size_t capacity_for(size_t bytes) const override {
    if (runtime::is_emulated()) return bytes;  // an access behind it is to be seen
    constexpr size_t kAlignment = 512, kLarge = size_t{1} << 20;
    return round_up(bytes, bytes < kLarge ? kAlignment : 16 * kPage);
  }
  bool caches() const override { return !runtime::is_emulated(); }
  std::string describe() const override {
    const runtime::MemoryInfo info = runtime::memory_info(device_);
    return fmt::format("device {} of {} free", info.free, info.total);
  }

 private:
  const int device_;
};

}  // namespace

std::unique_ptr<MemorySource> make_memory_source(Device device) {
  if (device.type == DeviceType::cpu) return std::make_unique<SystemMemory>();
  return std::make_unique<DeviceMemory>(device.index);
}

}  // namespace weft
