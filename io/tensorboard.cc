#include "io/tensorboard.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/error.h"

namespace weft::io {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// Protocol buffers, encoding: a key is (field << 3 | wire type).
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, WireType type) { return varint(field << 3 | type); }

std::string field(int number, std::string_view bytes) {
  return key(number, kBytes) + varint(bytes.size()) + std::string(bytes);
}

/// tensorflow.Event: wall_time = 1, step = 2, and what happened.
std::string event(int64_t step, const std::string& what) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return key(1, kFixed64) + bytes_of(now.count()) + key(2, kVarint) +
         varint(static_cast<uint64_t>(step)) + what;
}

uint32_t masked_crc(std::string_view bytes) {
  constexpr uint32_t kMaskDelta = 0xa282ead8;
  return std::rotr(crc32c(bytes), 15) + kMaskDelta;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed
    std::array<uint32_t, 256> entries;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ kPolynomial : crc >> 1;
      entries[i] = crc;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, int64_t first_step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  path_ = directory / fmt::format("events.out.tfevents.{}.{}",
                                  std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                                  getpid());
  file_.reset(std::fopen(path_.c_str(), "wb"));
  WEFT_CHECK(file_, "cannot create {}: {}", path_.string(), std::strerror(errno));
  write(event(0, field(3, "brain.Event:2")));  // file_version
  // session_log { status: START }
  write(event(first_step, field(7, key(1, kVarint) + varint(1))));
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value) {
  // summary { value { tag, simple_value } }
  const std::string point = field(1, tag) + key(2, kFixed32) + bytes_of(static_cast<float>(value));
  write(event(step, field(5, field(1, point))));
}

void TensorBoardWriter::flush() {
  WEFT_CHECK(std::fflush(file_.get()) == 0, "cannot write {}: {}", path_.string(),
             std::strerror(errno));
}

void TensorBoardWriter::write(const std::string& event) {
  const std::string length = bytes_of(uint64_t{event.size()});
  const std::string record =
      length + bytes_of(masked_crc(length)) + event + bytes_of(masked_crc(event));
  WEFT_CHECK(std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size(),
             "cannot write {}: {}", path_.string(), std::strerror(errno));
}

}  // namespace weft::io
