// The curves of a run as TensorBoard reads them: `tensorboard --logdir runs`.
//
// A file of records, each a length, the masked CRC-32C of the length, a serialised tensorflow.Event
// and its masked CRC-32C. The first names the version of the format; the second starts a session at
// a step: points of earlier files that lie behind it, from a run that was interrupted there, are
// dropped by the reader. Formats: tensorflow/core/util/event.proto, lib/io/record_writer.h.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace weft::io {

class TensorBoardWriter {
 public:
  /// Creates events.out.tfevents.<seconds>.<process> in an existing directory; `first_step` is the
  /// first that will be written. Throws Error naming the file.
  TensorBoardWriter(const std::filesystem::path& directory, int64_t first_step);

  /// A point of the curve `tag`. Throws Error when it cannot be written.
  void scalar(std::string_view tag, int64_t step, double value);
  /// How the finite ones of the values are distributed, in 40 bins of equal width. Where there are
  /// none, nothing is written.
  void histogram(std::string_view tag, int64_t step, std::span<const double> values);
  /// A picture of height x width pixels, encoded as PNG.
  void image(std::string_view tag, int64_t step, int height, int width, std::string_view png);
  /// Hands everything to the operating system, so that a reader sees it.
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& event);
  /// An event with one value of a summary: its fields besides the tag.
  void write_value(std::string_view tag, int64_t step, const std::string& fields);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
};

/// CRC-32C (Castagnoli), RFC 3720 appendix B.4.
uint32_t crc32c(std::string_view bytes);

}  // namespace weft::io
