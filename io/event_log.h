// The events of a run for programs: one JSON object a line.
//
//   EventLog log(stdout);
//   log.write("step", {{"step", 10}, {"loss", 1.25}});   // {"event":"step","step":10,"loss":1.25}
//
// Numbers that JSON lacks (NaN, infinities) become null. Each line is flushed, so that a reader at
// the other end of a pipe sees it at once.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"

namespace weft::io {

class EventLog {
 public:
  /// Writes to `out`; nothing at all when it is null.
  explicit EventLog(std::FILE* out) : out_(out) {}

  /// Throws Error when the line cannot be written.
  void write(std::string_view event, const nlohmann::ordered_json& fields) const {
    if (!out_) return;
    nlohmann::ordered_json line = {{"event", event}};
    line.update(fields);
    const std::string text = line.dump() + "\n";
    const bool written = std::fwrite(text.data(), 1, text.size(), out_) == text.size();
    WEFT_CHECK(written && std::fflush(out_) == 0, "cannot write the JSON events");
  }

 private:
  std::FILE* out_;
};

}  // namespace weft::io
