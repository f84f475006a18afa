#include "io/tensorboard.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

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

namespace {

constexpr std::string_view kEvents = "events.out.tfevents.";

/// TensorBoard reads a directory's files by the seconds in their names. Those of a new one are more
/// than those of any that is there, wherever the clock was set meanwhile.
int64_t seconds_of_new_file(const std::filesystem::path& directory) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename();
    int64_t other = 0;
    if (!name.starts_with(kEvents)) continue;
    const auto [end, error] =
        std::from_chars(name.data() + kEvents.size(), name.data() + name.size(), other);
    constexpr int64_t kMost = 9'999'999'999;  // ten digits, which sort by value
    if (error == std::errc() && other >= seconds && other < kMost) seconds = other + 1;
  }
  return seconds;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, int64_t first_step) {
  path_ = directory / fmt::format("{}{}.{}", kEvents, seconds_of_new_file(directory), getpid());
  file_.reset(std::fopen(path_.c_str(), "wb"));
  WEFT_CHECK(file_, "cannot create {}: {}", path_.string(), std::strerror(errno));
  write(event(0, field(3, "brain.Event:2")));  // file_version
  // session_log { status: START }
  write(event(first_step, field(7, key(1, kVarint) + varint(1))));
}

// tensorflow/core/framework/summary.proto: Summary.Value and what it may hold.

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value) {
  write_value(tag, step, key(2, kFixed32) + bytes_of(static_cast<float>(value)));  // simple_value
}

void TensorBoardWriter::histogram(std::string_view tag, int64_t step,
                                  std::span<const double> values) {
  constexpr int kBins = 40;
  double least = HUGE_VAL, most = -HUGE_VAL, count = 0, sum = 0, squares = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
    ++count;
    sum += value;
    squares += value * value;
  }
  if (count == 0) return;
  // A single value gets a bin of some width.
  const double width = most > least ? (most - least) / kBins : std::max(std::abs(least), 1.0) / 1e3;
  std::array<double, kBins> bins = {};
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    ++bins[std::min(static_cast<int>((value - least) / width), kBins - 1)];
  }
  std::string limits, counts;
  for (int i = 0; i < kBins; ++i) {
    limits += bytes_of(least + width * (i + 1));
    counts += bytes_of(bins[i]);
  }
  std::string histogram;
  for (const auto& [number, figure] : {std::pair(1, least), std::pair(2, most), std::pair(3, count),
                                       std::pair(4, sum), std::pair(5, squares)}) {
    histogram += key(number, kFixed64) + bytes_of(figure);
  }
  write_value(tag, step, field(5, histogram + field(6, limits) + field(7, counts)));
}

void TensorBoardWriter::image(std::string_view tag, int64_t step, int height, int width,
                              std::string_view png) {
  constexpr uint64_t kRgb = 3;  // colorspace
  const std::string image = key(1, kVarint) + varint(static_cast<uint64_t>(height)) +
                            key(2, kVarint) + varint(static_cast<uint64_t>(width)) +
                            key(3, kVarint) + varint(kRgb) + field(4, png);
  write_value(tag, step, field(4, image));
}

void TensorBoardWriter::write_value(std::string_view tag, int64_t step, const std::string& fields) {
  write(event(step, field(5, field(1, field(1, tag) + fields))));
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
