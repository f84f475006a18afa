#include "data/sets/text.h"

#include <catch2/catch.hpp>
#include <set>

namespace weft::data {
namespace {

using Catch::Matchers::Contains;

/// 0, 1, 2, ...: a byte says where it stands.
Bytes counting(int64_t size) {
  Bytes text(size);
  for (int64_t i = 0; i < size; ++i) text[i] = static_cast<uint8_t>(i);
  return text;
}

std::vector<int64_t> values(const Tensor& x) {
  const auto* first = x.data<int64_t>();
  return {first, first + x.numel()};
}

TEST_CASE("a text is split by position") {
  const auto [train, validation] = split_text(counting(21), 0.9);
  CHECK(train == counting(18));
  CHECK(validation == Bytes{18, 19, 20});
  CHECK_THROWS_WITH(split_text(counting(21), 1), "split_text: the share must lie in (0, 1), got 1");
  CHECK_THROWS_WITH(split_text(counting(10), 0.95),
                    "split_text: 0.95 of 10 bytes leave no two bytes on both sides");
}

TEST_CASE("windows cover a text and count every byte once") {
  const Bytes text = counting(100);
  for (const auto& [length, stride] : {std::pair(10, 10), {10, 3}, {7, 1}, {99, 99}, {64, 40}}) {
    CAPTURE(length, stride);
    const Windows windows(text, length, stride);
    const TokenBatch all = windows.batch(0, windows.size());
    CHECK(all.tokens.shape() == Shape{windows.size(), length});
    const auto tokens = values(all.tokens), targets = values(all.targets);
    std::vector<int64_t> counted;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (targets[i] == kNoTarget) continue;
      CHECK(targets[i] == tokens[i] + 1);
      counted.push_back(targets[i]);
      const int64_t seen = static_cast<int64_t>(i) % length + 1;
      if (i >= static_cast<size_t>(length)) CHECK(seen > length - stride);
    }
    const auto expected = tokens_of(std::string(text.begin() + 1, text.end()));
    CHECK(counted == expected);
  }
  const Windows windows(text, 10);
  CHECK(values(windows.batch(3, 5).tokens)[0] == 30);
  CHECK(values(windows.batch(3, 5).tokens)[10] == 40);
  CHECK_THROWS_WITH(windows.batch(0, 11), "Windows: no window 10 of 10");
  CHECK_THROWS_WITH(Windows(text, 100),
                    "Windows: expected 0 < stride <= length < bytes, got a stride of 100, a length "
                    "of 100 and 100 bytes");
  CHECK_THROWS_WITH(Windows(text, 10, 11), Contains("a stride of 11"));
  CHECK_THROWS_WITH(Windows(text, 10, 0), Contains("a stride of 0"));
}

TEST_CASE("random windows depend on seed and step, and reach every place") {
  const Bytes text = counting(20);
  const RandomWindows options = {.batch = 8, .length = 16, .seed = 3};
  const auto first_tokens = [&](int64_t step) {
    const TokenBatch batch = random_windows(text, options, step);
    std::vector<int64_t> first;
    const auto tokens = values(batch.tokens), targets = values(batch.targets);
    for (size_t i = 0; i < tokens.size(); ++i) {
      CHECK(targets[i] == tokens[i] + 1);
      if (i % 16 == 0) first.push_back(tokens[i]);
    }
    return first;
  };
  CHECK(first_tokens(5) == first_tokens(5));
  CHECK(first_tokens(5) != first_tokens(6));
  std::set<int64_t> seen;
  for (int64_t step = 0; step < 20; ++step) {
    for (const int64_t first : first_tokens(step)) seen.insert(first);
  }
  // 160 draws of 4 miss one with a probability of 4 (3/4)^160, below 1e-19.
  CHECK(seen == std::set<int64_t>{0, 1, 2, 3});
  CHECK_THROWS_WITH(random_windows(text, {.length = 20}, 0),
                    "random_windows: a text of 20 bytes has no window of 20 and a target");
  CHECK_THROWS_WITH(random_windows(text, {.batch = 0}, 0),
                    "random_windows: expected a batch, a length and a step, got 0, 1 and 0");
}

TEST_CASE("text becomes tokens and comes back") {
  const std::string text = "a\xff\n";
  CHECK(tokens_of(text) == std::vector<int64_t>{97, 255, 10});
  CHECK(text_of(tokens_of(text)) == text);
  CHECK_THROWS_WITH(text_of(std::vector<int64_t>{256}), "text_of: the token 256 is no byte");
}

}  // namespace
}  // namespace weft::data
