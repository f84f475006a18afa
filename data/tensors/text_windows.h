// Windows of a text (data/sets/text.h) as batches of tensors i64 [B, T]: tokens, and the target
// that follows each.
#pragma once

#include <optional>
#include <span>

#include "data/sets/text.h"
#include "data/tensors/tensor_dataset.h"

namespace weft::data {

/// Windows at random places, which depend on (text's size, options, epoch, index) alone. An epoch
/// has as many batches as the text has bytes for, rounded down, one at least.
class RandomWindowLoader final : public PositionedLoader {
 public:
  /// Throws Error for a text without a window. The text must outlive it.
  RandomWindowLoader(const Bytes& text, RandomWindows options);
  RandomWindowLoader(Bytes&& text, RandomWindows options) = delete;

  int64_t batches() const override { return batches_; }
  std::optional<Tensors> next();

 private:
  const Bytes& text_;
  const RandomWindows options_;
  const int64_t batches_;
};

/// Windows of one text that are all alike: each counts the second half of its targets, and each
/// byte of the text is one of these once, but for those at its beginning and end that no whole
/// window counts. So the mean over windows is that over bytes.
class WindowDataset : public TensorDataset {
 public:
  /// Throws Error for a text of fewer than length + 1 bytes, and an odd length. The text must
  /// outlive it.
  WindowDataset(const Bytes& text, int64_t length);
  WindowDataset(Bytes&& text, int64_t length) = delete;

  int64_t size() const override { return size_; }
  int64_t counted_bytes() const { return size_ * (length_ / 2); }
  Tensors sample(int64_t index) const override;
  Tensors batch(std::span<const int64_t> indices) const override;

 private:
  const Bytes& text_;
  const int64_t length_, size_;
};

}  // namespace weft::data
