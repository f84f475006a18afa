#include "data/device_feed.h"

#include <algorithm>

#include "core/allocator.h"
#include "core/transfer.h"
#include "kernels/normalize_images/normalize_images.h"

namespace weft::data {
namespace {

/// Parts of a block begin where kernels may read vectors.
int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

DeviceFeed::DeviceFeed(Device device, DType dtype, const Preprocess& preprocess)
    : device_(device), dtype_(dtype), size_(preprocess.size), copies_(device) {
  const Tensor values = Tensor::empty({3, 256}, DType::f32);
  normalization_table(preprocess.normalization, values.data<float>());
  const StreamGuard guard(copies_);  // before all batches, which finish() waits for
  values_ = to_device(values, device);
}

int64_t DeviceFeed::bytes_of(const ByteLayout& layout) const {
  return aligned(layout.count * 3 * size_ * size_) + aligned(layout.count * 8) +
         aligned(layout.count * layout.classes * 4) + (layout.erases ? layout.count * 16 : 0);
}

ByteBatch DeviceFeed::cut(const Tensor& memory, const ByteLayout& layout) const {
  int64_t offset = 0;
  const auto part = [&](const Shape& shape, DType dtype) {
    const auto item = static_cast<int64_t>(itemsize(dtype));
    const Tensor view =
        Tensor::view_of(memory.storage(), shape, contiguous_strides(shape), offset / item, dtype);
    offset += aligned(numel(shape) * item);
    return view;
  };
  ByteBatch batch = {.layout = layout, .memory = memory};
  batch.pixels = part({layout.count, 3, size_, size_}, DType::u8);
  batch.labels = part({layout.count}, DType::i64);
  if (layout.classes > 0) batch.soft_labels = part({layout.count, layout.classes}, DType::f32);
  if (layout.erases) batch.erased = part({layout.count, 4}, DType::i32);
  return batch;
}

ByteBatch DeviceFeed::host_batch(const ByteLayout& layout) {
  const int64_t bytes = bytes_of(layout);
  {
    std::lock_guard lock(mutex_);
    const auto spare = std::ranges::find_if(spares_, [&](const Spare& s) {
      return s.memory.numel() == bytes && s.is_copied.is_done();
    });
    if (spare != spares_.end()) {
      const Tensor memory = spare->memory;
      spares_.erase(spare);
      return cut(memory, layout);
    }
  }
  return cut(empty_pinned({bytes}, DType::u8), layout);
}

DeviceFeed::UnderWay DeviceFeed::begin(const ByteBatch& batch) {
  const StreamGuard guard(copies_);
  UnderWay under_way{cut(to_device(batch.memory, device_), batch.layout), Event(device_)};
  under_way.batch.mixing = batch.mixing;
  under_way.arrives.record(copies_);
  std::lock_guard lock(mutex_);
  spares_.push_back({batch.memory, under_way.arrives});
  return under_way;
}

Batch DeviceFeed::finish(const UnderWay& under_way) const {
  const ByteBatch& b = under_way.batch;
  const Stream stream = current_stream(device_);
  stream.wait(under_way.arrives);
  // The blocks are the copies' stream's: they are not filled again before this stream is through.
  for (const Tensor& block : {b.memory, values_}) {
    if (block.numel() == 0) continue;
    allocator(device_).record_use(block.storage()->data(), stream.handle());
  }
  Batch batch;
  batch.images = Tensor::empty(b.pixels.shape(), dtype_, device_);
  batch.labels = b.labels;
  batch.soft_labels = b.soft_labels;
  const Window& cut = b.mixing.cut;
  kernels::normalize_images({.x = b.pixels,
                             .values = values_,
                             .erased = b.erased,
                             .y = batch.images,
                             .keep = b.layout.count > 1 ? b.mixing.keep : 1,
                             .cut_top = cut.top,
                             .cut_left = cut.left,
                             .cut_height = cut.height,
                             .cut_width = cut.width});
  return batch;
}

}  // namespace weft::data
