// What the variants that call oneDNN share.
#pragma once

#include <omp.h>
#include <sys/mman.h>

#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "core/tensor.h"

namespace weft::kernels {

inline const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// f32 or bf16.
inline dnnl::memory::data_type onednn_type(DType dtype) {
  WEFT_ASSERT(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

/// OpenMP's thread count as oneDNN sees it, for as long as this lives.
class OnednnThreads {
 public:
  explicit OnednnThreads(int threads) : previous_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~OnednnThreads() { omp_set_num_threads(previous_); }
  OnednnThreads(const OnednnThreads&) = delete;
  OnednnThreads& operator=(const OnednnThreads&) = delete;

 private:
  int previous_;
};

/// Memory of a description: the caller's, or uninitialised memory from the caching allocator.
struct OnednnMemory {
  Tensor bytes;  // undefined where the memory is the caller's
  dnnl::memory object;

  OnednnMemory(const dnnl::memory::desc& desc, const void* data)
      : object(desc, onednn_engine(), const_cast<void*>(data)) {}
  explicit OnednnMemory(const dnnl::memory::desc& desc)
      : bytes(Tensor::empty({static_cast<int64_t>(desc.get_size())}, DType::u8)),
        object(desc, onednn_engine(), bytes.raw()) {}
};

/// The scratchpad is an argument of the primitive's.
inline dnnl::primitive_attr onednn_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// Throws Error where the system has no more memory for the code that oneDNN is about to generate:
/// it would write to none.
inline void require_room_for_code() {
  constexpr size_t kRoom = size_t{16} << 20;
  void* const room =
      ::mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  WEFT_CHECK(room != MAP_FAILED, "out of memory on cpu: no {} bytes for oneDNN's code", kRoom);
  ::munmap(room, kRoom);
}

/// Primitive(key), made the first time that it is asked for and kept: that takes 0.2 to 0.4 ms.
template <class Primitive, class Key>
std::shared_ptr<const Primitive> cached_primitive(const Key& key) {
  constexpr size_t kMostPrimitives = 4096;
  static std::shared_mutex mutex;
  static std::map<Key, std::shared_ptr<const Primitive>> cache;
  {
    std::shared_lock lock(mutex);
    const auto entry = cache.find(key);
    if (entry != cache.end()) return entry->second;
  }
  require_room_for_code();
  auto primitive = std::make_shared<const Primitive>(key);
  std::unique_lock lock(mutex);
  if (cache.size() >= kMostPrimitives) cache.clear();
  return cache.emplace(key, std::move(primitive)).first->second;
}

}  // namespace weft::kernels
