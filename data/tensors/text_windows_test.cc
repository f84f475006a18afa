#include "data/tensors/text_windows.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "autograd/ops.h"

namespace weft::data {
namespace {

using Catch::Matchers::Contains;

/// 0, 1, 2, ..., so that a byte says where it stood.
Bytes counted(int64_t size) {
  Bytes text(size);
  std::iota(text.begin(), text.end(), uint8_t{0});
  return text;
}

std::vector<int64_t> values(const Tensor& x) {
  return {x.data<int64_t>(), x.data<int64_t>() + x.numel()};
}

TEST_CASE("random windows come in epochs as long as the text, the same from any place") {
  const Bytes text = counted(200);
  RandomWindowLoader loader(text, {.batch = 3, .length = 8, .seed = 5});
  REQUIRE(loader.batches() == 200 / 24);
  std::vector<std::vector<int64_t>> epochs[2];
  for (auto& epoch : epochs) {
    while (const auto batch = loader.next()) {
      const auto &tokens = (*batch)[0], &targets = (*batch)[1];
      REQUIRE(tokens.shape() == Shape{3, 8});
      for (int64_t i = 0; i < tokens.numel(); ++i) {
        CHECK(values(targets)[i] == values(tokens)[i] + 1);
      }
      epoch.push_back(values(tokens));
    }
    CHECK(epoch.size() == 8);
  }
  CHECK(epochs[0] != epochs[1]);
  loader.seek({1, 3});
  CHECK(values((*loader.next())[0]) == epochs[1][3]);
  CHECK_THROWS_WITH(loader.seek({1, 9}), Contains("an epoch has 8 batches"));
  CHECK_THROWS_WITH(RandomWindowLoader(text, {.batch = 1, .length = 200}),
                    Contains("a text of 200 bytes has no window of 200"));
}

TEST_CASE("windows that test count each byte once, and all count alike") {
  const int64_t bytes = GENERATE(9, 10, 12, 13, 100, 101);
  const Bytes text = counted(bytes);
  const WindowDataset windows(text, 8);
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < windows.size(); ++i) {
    const Tensors sample = windows.sample(i);
    REQUIRE(sample[0].shape() == Shape{8});
    const auto these = values(sample[1]);
    for (int64_t j = 0; j < 8; ++j) {
      CHECK(values(sample[0])[j] == 4 * i + j);
      if (j < 4) CHECK(these[j] == kNoTarget);
    }
    targets.insert(targets.end(), these.begin() + 4, these.end());
  }
  std::vector<int64_t> expected(targets.size());
  std::iota(expected.begin(), expected.end(), 5);
  CHECK(targets == expected);
  CHECK(windows.counted_bytes() == static_cast<int64_t>(targets.size()));
  CHECK(bytes - 5 - windows.counted_bytes() < 4);  // what is left at the end
  const std::vector<int64_t> both = {windows.size() - 1, 0};
  CHECK(values(ops::contiguous(ops::select(windows.batch(both)[0], 0, 1))) ==
        values(windows.sample(0)[0]));
}

TEST_CASE("texts without a window to test are refused") {
  const Bytes text = counted(8);
  CHECK_THROWS_WITH(WindowDataset(text, 8), Contains("a length of 8 and 8 bytes"));
  CHECK_THROWS_WITH(WindowDataset(text, 3), Contains("expected an even length"));
}

}  // namespace
}  // namespace weft::data
