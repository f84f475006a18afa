// What the variants that call oneDNN share.
#pragma once

#include <omp.h>

#include <dnnl.hpp>

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
    if (threads != previous_) omp_set_num_threads(threads);
    changed_ = threads != previous_;
  }
  ~OnednnThreads() {
    if (changed_) omp_set_num_threads(previous_);
  }
  OnednnThreads(const OnednnThreads&) = delete;
  OnednnThreads& operator=(const OnednnThreads&) = delete;

 private:
  int previous_;
  bool changed_ = false;
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

}  // namespace weft::kernels
