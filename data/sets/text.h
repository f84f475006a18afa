// Text as bytes, and windows of it as what a language model learns from.
//
//   const auto [train, validation] = split_text(read_file("shakespeare.txt"), 0.9);
//   TokenBatch batch = random_windows(train, {.batch = 16, .length = 128, .seed = seed}, step);
//   loss = cross_entropy(model(batch.tokens), batch.targets)
//
// A token is a byte, 0..255. The target of each is the byte that follows it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace weft::data {

using Bytes = std::vector<uint8_t>;

/// The first `share` of a text, rounded down to whole bytes, and the rest: what tests a model then
/// follows what trains it. Throws Error unless both have two bytes at least.
std::pair<Bytes, Bytes> split_text(const Bytes& text, double share);

struct TokenBatch {
  Tensor tokens;   // i64 [B, T]
  Tensor targets;  // i64 [B, T]; kNoTarget: does not count
};
inline constexpr int64_t kNoTarget = -100;  // cross_entropy's ignore_index

struct RandomWindows {
  int64_t batch = 1;
  int64_t length = 1;  // tokens in a window
  uint64_t seed = 0;
};
/// Windows at random places, which depend on (text's size, options, step) alone. Throws Error for
/// a text of fewer than length + 1 bytes.
TokenBatch random_windows(const Bytes& text, const RandomWindows& options, int64_t step);

/// All of a text in windows of `length` tokens, each `stride` behind the one before it, the last
/// one where the text ends. Every byte but the first is a target once: where windows overlap, in
/// the first that reaches it, so that targets have at least length - stride tokens before them, but
/// for the text's first ones.
class Windows {
 public:
  /// Throws Error unless 0 < stride <= length < text.size(). The text must outlive the windows.
  Windows(const Bytes& text, int64_t length, int64_t stride);
  Windows(const Bytes& text, int64_t length) : Windows(text, length, length) {}
  Windows(Bytes&& text, int64_t length, int64_t stride) = delete;
  Windows(Bytes&& text, int64_t length) = delete;

  int64_t size() const { return static_cast<int64_t>(first_.size()); }
  /// Those of the numbers [begin, end).
  TokenBatch batch(int64_t begin, int64_t end) const;

 private:
  const Bytes& text_;
  int64_t length_;
  std::vector<int64_t> first_;  // byte of each window
};

/// Bytes as a prompt, and tokens as bytes. Throws Error for a token above 255.
std::vector<int64_t> tokens_of(std::string_view text);
std::string text_of(std::span<const int64_t> tokens);

}  // namespace weft::data
