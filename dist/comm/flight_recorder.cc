#include "dist/comm/flight_recorder.h"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace weft::dist {
namespace {

double microseconds(FlightRecorder::Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

}  // namespace

uint64_t FlightRecorder::queued(std::string group, uint64_t sequence, std::string collective,
                                int64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t ticket = next_ticket_++;
  Entry entry{.ticket = ticket,
              .group = std::move(group),
              .sequence = sequence,
              .collective = std::move(collective),
              .bytes = bytes,
              .queued = Clock::now()};
  if (ring_.size() < capacity_) {
    ring_.push_back(std::move(entry));
  } else {
    ring_[ticket % capacity_] = std::move(entry);
  }
  return ticket;
}

FlightRecorder::Entry* FlightRecorder::find(uint64_t ticket) {
  Entry& entry = ring_[ticket % capacity_];
  return entry.ticket == ticket ? &entry : nullptr;  // overwritten meanwhile
}

void FlightRecorder::started(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  if (Entry* entry = find(ticket)) {
    entry->state = State::kRunning;
    entry->started = Clock::now();
  }
}

void FlightRecorder::finished(uint64_t ticket, bool succeeded) {
  std::lock_guard lock(mutex_);
  if (Entry* entry = find(ticket)) {
    entry->state = succeeded ? State::kDone : State::kFailed;
    entry->finished = Clock::now();
  }
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
  std::lock_guard lock(mutex_);
  std::vector<Entry> result;
  const uint64_t first = next_ticket_ > ring_.size() ? next_ticket_ - ring_.size() : 0;
  for (uint64_t ticket = first; ticket < next_ticket_; ++ticket) {
    result.push_back(ring_[ticket % capacity_]);
  }
  return result;
}

nlohmann::json FlightRecorder::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  const Clock::time_point now = Clock::now();
  constexpr const char* kStates[] = {"queued", "running", "done", "failed"};
  for (const Entry& e : entries()) {
    nlohmann::json item = {{"group", e.group},
                           {"sequence", e.sequence},
                           {"collective", e.collective},
                           {"bytes", e.bytes},
                           {"state", kStates[static_cast<int>(e.state)]},
                           {"queued_us_ago", microseconds(now - e.queued)}};
    if (e.state != State::kQueued) item["started_us_ago"] = microseconds(now - e.started);
    if (e.state == State::kDone || e.state == State::kFailed) {
      item["took_us"] = microseconds(e.finished - e.started);
    }
    list.push_back(std::move(item));
  }
  return {{"rank", rank_}, {"collectives", list}};
}

void FlightRecorder::dump() const noexcept {
  try {
    const char* directory = std::getenv("WEFT_DIST_DUMP");
    if (!directory || !*directory) return;
    const std::string path = fmt::format("{}/rank-{}.json", directory, rank_);
    const std::string hidden = fmt::format("{}/.rank-{}.json", directory, rank_);
    std::FILE* file = std::fopen(hidden.c_str(), "w");
    if (!file) return;
    const std::string text = to_json().dump(1) + "\n";
    const bool complete = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) == 0 && complete) std::rename(hidden.c_str(), path.c_str());
  } catch (...) {
    // The error that led here matters more than the lack of its record.
  }
}

}  // namespace weft::dist
