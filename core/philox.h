// Philox4x32-10: random numbers as a pure function of (seed, stream, offset).
//
// Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. The key is
// the seed; the counter holds the offset in its lower and the stream in its upper half, as cuRAND's
// generator does. Any element of any stream is drawn without drawing the others, so results depend
// neither on threads nor on devices nor on ranks.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace weft {

/// Four random words of block `offset` of a stream.
constexpr std::array<uint32_t, 4> philox4x32(uint64_t seed, uint64_t stream, uint64_t offset) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

/// A number in (0, 1): the middle of one of 2^23 equal intervals, which a float holds exactly.
constexpr float uniform_from_bits(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

/// A sequential reader of one stream.
class Philox {
 public:
  explicit Philox(uint64_t seed, uint64_t stream = 0, uint64_t offset = 0)
      : seed_(seed), stream_(stream), offset_(offset) {}

  uint32_t next_u32() {
    if (used_ == 4) {
      block_ = philox4x32(seed_, stream_, offset_++);
      used_ = 0;
    }
    return block_[used_++];
  }
  uint64_t next_u64() {
    const uint64_t high = next_u32();
    return high << 32 | next_u32();
  }
  /// In (0, 1).
  float uniform() { return uniform_from_bits(next_u32()); }
  float uniform(float low, float high) { return low + (high - low) * uniform(); }
  /// In [0, n), exactly uniform (rejection). n > 0.
  uint64_t below(uint64_t n) {
    const uint64_t limit = ~uint64_t{0} - (~uint64_t{0} % n + 1) % n;
    uint64_t x = next_u64();
    while (x > limit) x = next_u64();
    return x % n;
  }
  /// Standard normal, by Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log((next_u32() + 0.5) * 0x1p-32));
    return radius * std::cos(2.0 * std::numbers::pi * ((next_u32() + 0.5) * 0x1p-32));
  }

 private:
  uint64_t seed_, stream_, offset_;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace weft
