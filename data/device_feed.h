// How a loader's batches come to a CUDA device: as bytes, in one copy from pinned memory on a
// stream of its own, while the device works on the batch before. There they are normalised, erased
// and mixed (kernels/normalize_images), to the bits of the CPU's batches. A batch of 256 images of
// 224 pixels is 38.5 MB to copy, of f32 it would be 154.
//
//   ByteBatch batch = feed.host_batch({count, classes, erases});  // a worker, who fills it
//   auto under_way = feed.begin(std::move(batch));                // the consumer
//   ...                                                           // a step on another batch
//   const Batch ready = feed.finish(std::move(under_way));
#pragma once

#include <deque>
#include <mutex>

#include "core/stream.h"
#include "core/tensor.h"
#include "data/loader.h"
#include "data/mix.h"

namespace weft::data {

/// What a batch of bytes holds.
struct ByteLayout {
  int64_t count = 0;    // of images
  int64_t classes = 0;  // of soft labels; 0: there are none
  bool erases = false;
};

/// Views of one block of memory, on the host or on a device.
struct ByteBatch {
  ByteLayout layout;
  Tensor memory;       // u8
  Tensor pixels;       // u8 [B, 3, size, size]
  Tensor labels;       // i64 [B]
  Tensor soft_labels;  // f32 [B, classes]
  Tensor erased;       // i32 [B, 4]: top, left, height, width
  Mixing mixing;       // yet to be done to the images
};

class DeviceFeed {
 public:
  /// Images become `dtype`: f32, f16 or bf16.
  DeviceFeed(Device device, DType dtype, const Preprocess& preprocess);

  /// Pinned memory for a batch, uninitialised. Any thread may call.
  ByteBatch host_batch(const ByteLayout& layout);

  /// A batch on its way to the device.
  struct UnderWay {
    ByteBatch batch;
    Event arrives;
  };
  UnderWay begin(const ByteBatch& batch);
  /// The images, and labels, for work of the current stream. The thread does not wait.
  Batch finish(const UnderWay& under_way) const;

 private:
  /// A block that may be filled again when it has been copied.
  struct Spare {
    Tensor memory;
    Event is_copied;
  };

  int64_t bytes_of(const ByteLayout& layout) const;
  ByteBatch cut(const Tensor& memory, const ByteLayout& layout) const;

  const Device device_;
  const DType dtype_;
  const int64_t size_;
  const Stream copies_;
  Tensor values_;  // f32 [3, 256]: what a byte of each channel becomes

  std::mutex mutex_;
  std::deque<Spare> spares_;
};

}  // namespace weft::data
