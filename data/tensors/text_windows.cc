#include "data/tensors/text_windows.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/error.h"

namespace weft::data {

RandomWindowLoader::RandomWindowLoader(const Bytes& text, RandomWindows options)
    : text_(text),
      options_(options),
      batches_(std::max<int64_t>(1, static_cast<int64_t>(text.size()) /
                                        std::max<int64_t>(1, options.batch * options.length))) {
  random_windows(text_, options_, 0);  // says what is wrong
}

std::optional<Tensors> RandomWindowLoader::next() {
  if (position().batch == batches_) {
    begin_next_epoch();
    return std::nullopt;
  }
  const auto [epoch, batch] = position();
  advance();
  const TokenBatch windows = random_windows(text_, options_, epoch * batches_ + batch);
  return Tensors{windows.tokens, windows.targets};
}

WindowDataset::WindowDataset(const Bytes& text, int64_t length)
    : text_(text),
      length_(length),
      size_((static_cast<int64_t>(text.size()) - 1 - length / 2) /
            std::max<int64_t>(1, length / 2)) {
  WEFT_CHECK(length > 0 && length % 2 == 0 && size_ > 0,
             "WindowDataset: expected an even length, and more bytes; got a length of {} and {} "
             "bytes",
             length, text.size());
}

Tensors WindowDataset::sample(int64_t index) const {
  const NoGrad guard;
  Tensors rows = batch({&index, 1});
  for (Tensor& row : rows) row = ops::select(row, 0, 0);
  return rows;
}

Tensors WindowDataset::batch(std::span<const int64_t> indices) const {
  const Shape shape = {static_cast<int64_t>(indices.size()), length_};
  const Tensor tokens = Tensor::empty(shape, DType::i64),
               targets = Tensor::empty(shape, DType::i64);
  int64_t* token = tokens.data<int64_t>();
  int64_t* target = targets.data<int64_t>();
  for (const int64_t index : indices) {
    WEFT_CHECK(index >= 0 && index < size_, "WindowDataset: no window {} of {}", index, size_);
    const uint8_t* const bytes = text_.data() + index * (length_ / 2);
    for (int64_t i = 0; i < length_; ++i) {
      *token++ = bytes[i];
      *target++ = i < length_ / 2 ? kNoTarget : bytes[i + 1];
    }
  }
  return {tokens, targets};
}

}  // namespace weft::data
