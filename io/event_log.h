// The events of a run for programs: one JSON object a line.
//
//   EventLog log(stdout);
//   log.write("step", {{"step", 10}, {"loss", 1.25}});   // {"event":"step","step":10,"loss":1.25}
//
// Numbers that JSON lacks (NaN, infinities) become null, bytes that are not UTF-8 U+FFFD. Each line
// is written at once, so that a reader at the other end of a pipe sees it.
#pragma once

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

namespace weft::io {

class EventLog {
 public:
  /// Writes to `out`; nothing at all when it is null. The first line that cannot be written is the
  /// last: standard error says so, and `on_failure` is called, since a run should save what it has
  /// rather than end there.
  explicit EventLog(std::FILE* out, std::function<void()> on_failure = {})
      : out_(out), on_failure_(std::move(on_failure)) {}

  void write(std::string_view event, const nlohmann::ordered_json& fields);
  /// Whether a line could not be written.
  bool has_failed() const { return has_failed_; }

 private:
  std::FILE* const out_;
  const std::function<void()> on_failure_;
  bool has_failed_ = false;
};

/// What EventLog writes a line with: waits for a reader who is slow, unless the stream does not
/// block and its reader takes nothing for two seconds. False where it fails; errno says why.
bool write_through(std::FILE* out, std::string_view text);

}  // namespace weft::io
