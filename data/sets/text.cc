#include "data/sets/text.h"

#include <algorithm>

#include "data/random.h"

namespace weft::data {
namespace {

/// Writes the window that begins at byte `first`; targets before byte `counted` do not count.
void fill_window(const Bytes& text, int64_t first, int64_t length, int64_t counted, int64_t* tokens,
                 int64_t* targets) {
  for (int64_t i = 0; i < length; ++i) {
    tokens[i] = text[first + i];
    targets[i] = first + i + 1 < counted ? kNoTarget : text[first + i + 1];
  }
}

TokenBatch empty_batch(int64_t batch, int64_t length) {
  return {Tensor::empty({batch, length}, DType::i64), Tensor::empty({batch, length}, DType::i64)};
}

}  // namespace

std::pair<Bytes, Bytes> split_text(const Bytes& text, double share) {
  const auto size = static_cast<double>(text.size());
  WEFT_CHECK(share > 0 && share < 1, "split_text: the share must lie in (0, 1), got {}", share);
  const auto cut = static_cast<int64_t>(share * size);
  WEFT_CHECK(cut >= 2 && text.size() - cut >= 2,
             "split_text: {} of {} bytes leave no two bytes on both sides", share, text.size());
  return {Bytes(text.begin(), text.begin() + cut), Bytes(text.begin() + cut, text.end())};
}

TokenBatch random_windows(const Bytes& text, const RandomWindows& options, int64_t step) {
  const auto& [batch, length, seed] = options;
  WEFT_CHECK(batch > 0 && length > 0 && step >= 0,
             "random_windows: expected a batch, a length and a step, got {}, {} and {}", batch,
             length, step);
  const auto size = static_cast<int64_t>(text.size());
  WEFT_CHECK(size > length, "random_windows: a text of {} bytes has no window of {} and a target",
             size, length);
  Philox random = random_stream(seed, Purpose::kText, 0, step);
  TokenBatch result = empty_batch(batch, length);
  for (int64_t i = 0; i < batch; ++i) {
    const auto first = static_cast<int64_t>(random.below(size - length));
    fill_window(text, first, length, 0, result.tokens.data<int64_t>() + i * length,
                result.targets.data<int64_t>() + i * length);
  }
  return result;
}

Windows::Windows(const Bytes& text, int64_t length, int64_t stride) : text_(text), length_(length) {
  const auto last = static_cast<int64_t>(text.size()) - 1 - length;
  WEFT_CHECK(stride > 0 && stride <= length && last >= 0,
             "Windows: expected 0 < stride <= length < bytes, got a stride of {}, a length of {} "
             "and {} bytes",
             stride, length, text.size());
  for (int64_t first = 0; first < last; first += stride) first_.push_back(first);
  first_.push_back(last);
}

TokenBatch Windows::batch(int64_t begin, int64_t end) const {
  TokenBatch result = empty_batch(std::max<int64_t>(end - begin, 0), length_);
  int64_t at = 0;
  for (int64_t n = begin; n < end; ++n) {
    WEFT_CHECK(n >= 0 && n < size(), "Windows: no window {} of {}", n, size());
    // The window before has the targets up to its end.
    const int64_t counted = n == 0 ? 0 : first_[n - 1] + length_ + 1;
    fill_window(text_, first_[n], length_, counted, result.tokens.data<int64_t>() + at,
                result.targets.data<int64_t>() + at);
    at += length_;
  }
  return result;
}

std::vector<int64_t> tokens_of(std::string_view text) {
  std::vector<int64_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

std::string text_of(std::span<const int64_t> tokens) {
  std::string text;
  for (const int64_t token : tokens) {
    WEFT_CHECK(token >= 0 && token < 256, "text_of: the token {} is no byte", token);
    text += static_cast<char>(token);
  }
  return text;
}

}  // namespace weft::data
