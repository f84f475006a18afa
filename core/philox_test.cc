#include "core/philox.h"

#include <catch2/catch.hpp>
#include <set>

namespace weft {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that Random123 is distributed with (kat_vectors).
TEST_CASE("Philox4x32-10 gives the published words") {
  CHECK(philox4x32(0, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  static_assert(philox4x32(0, 0, 0)[0] == 0x6627e8d5);
}

TEST_CASE("a uniform number is never 0 and never 1") {
  CHECK(uniform_from_bits(0) == 0x1p-24f);
  CHECK(uniform_from_bits(0xffffffffu) == 1 - 0x1p-24f);
  CHECK(uniform_from_bits(0x80000000u) - 0.5f == 0.5f - uniform_from_bits(0x7fffffffu));
  CHECK(uniform_from_bits(0x80000000u) > 0.5f);
}

TEST_CASE("a reader walks its stream word by word from any block") {
  Philox reader(3, 4, 5);
  const Words first = philox4x32(3, 4, 5), second = philox4x32(3, 4, 6);
  for (uint32_t word : first) CHECK(reader.next_u32() == word);
  CHECK(reader.next_u64() == (uint64_t{second[0]} << 32 | second[1]));
}

TEST_CASE("seeds, streams and offsets give different blocks") {
  std::set<Words> blocks;
  for (uint64_t i = 0; i < 10; ++i) {
    for (uint64_t shift : {0, 32}) {
      blocks.insert(philox4x32(i << shift, 0, 0));
      blocks.insert(philox4x32(0, i << shift, 0));
      blocks.insert(philox4x32(0, 0, i << shift));
    }
  }
  CHECK(blocks.size() == 9 * 6 + 1);
}

// Of n independent draws with variance v the mean has standard deviation sqrt(v / n); the seeds are
// fixed, so five of them are a statement about these numbers, not a chance of failing.
TEST_CASE("uniform, normal and bounded draws have their moments") {
  constexpr int kDraws = 100000;
  Philox reader(11);
  double uniform = 0, normal = 0, square = 0, fourth = 0;
  std::array<int, 7> counts{};
  for (int i = 0; i < kDraws; ++i) {
    uniform += reader.uniform(-1, 3);
    const double z = reader.normal();
    normal += z;
    square += z * z;
    fourth += z * z * z * z;
    ++counts[reader.below(7)];
  }
  const double sigma = 5 / std::sqrt(kDraws);
  CHECK(std::abs(uniform / kDraws - 1) < sigma * 4 / std::sqrt(12.0));
  CHECK(std::abs(normal / kDraws) < sigma);
  CHECK(std::abs(square / kDraws - 1) < sigma * std::sqrt(2.0));
  CHECK(std::abs(fourth / kDraws - 3) < sigma * std::sqrt(96.0));
  for (int count : counts) {
    CHECK(std::abs(count - kDraws / 7.0) < 5 * std::sqrt(kDraws / 7.0 * 6 / 7));
  }
}

TEST_CASE("below(n) stays below n, also at the ends") {
  Philox reader(1);
  CHECK(reader.below(1) == 0);
  for (int i = 0; i < 100; ++i) CHECK(reader.below((uint64_t{1} << 63) + 1) <= uint64_t{1} << 63);
}

}  // namespace
}  // namespace weft
