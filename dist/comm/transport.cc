#include "dist/comm/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace weft::dist {

std::chrono::steady_clock::time_point after(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLongest = 1e9;  // thirty years; a clock's nanoseconds count to 292
  const std::chrono::duration<double> wait(std::min(seconds, kLongest));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

Message message(int peer, const Tensor& x, int64_t first, int64_t count) {
  const auto item = static_cast<int64_t>(x.itemsize());
  return {peer, static_cast<std::byte*>(x.raw()) + first * item, static_cast<size_t>(count * item)};
}

Round scatter_round(const Operation& o, int rank, int64_t first, int64_t segment,
                    const std::vector<void*>& into) {
  const auto elements_for = [&](int r) {
    return std::clamp<int64_t>(o.counts[r] - first, 0, segment);
  };
  const auto item = static_cast<int64_t>(o.in.itemsize());
  const int ranks = static_cast<int>(o.counts.size());
  Round round;
  for (int k = 1; k < ranks; ++k) {
    const int to = (rank + k) % ranks, from = (rank + ranks - k) % ranks;
    if (const int64_t part = elements_for(to)) {
      round.sends.push_back(message(to, o.in, o.begin(to) + first, part));
    }
    if (const int64_t own = elements_for(rank)) {
      round.receives.push_back({from, into[from], static_cast<size_t>(own * item)});
    }
  }
  return round;
}

Round gather_round(const Operation& o, int rank, const Message& mine) {
  const int ranks = static_cast<int>(o.counts.size());
  Round round;
  for (int k = 1; k < ranks; ++k) {
    const int to = (rank + k) % ranks, from = (rank + ranks - k) % ranks;
    if (mine.bytes > 0) round.sends.push_back({to, mine.data, mine.bytes});
    if (o.counts[from] == 0) continue;
    round.receives.push_back(message(from, o.out, o.begin(from), o.counts[from]));
  }
  return round;
}

Round all_to_all_round(const Operation& o, int rank) {
  const int ranks = static_cast<int>(o.counts.size());
  Round round;
  for (int k = 1; k < ranks && o.counts[0] > 0; ++k) {
    const int to = (rank + k) % ranks, from = (rank + ranks - k) % ranks;
    round.sends.push_back(message(to, o.in, o.begin(to), o.counts[to]));
    round.receives.push_back(message(from, o.out, o.begin(from), o.counts[from]));
  }
  return round;
}

uint16_t label_of(const Operation& o) {
  if (o.collective == Collective::kSend || o.collective == Collective::kRecv) {
    return static_cast<uint16_t>(Collective::kSend);
  }
  return static_cast<uint16_t>((o.sequence & 0xfff) << 3 | static_cast<unsigned>(o.collective));
}

void check_label(int peer, uint16_t sent, uint16_t expected) {
  const auto text = [](uint16_t label) {
    return fmt::format("{} #{}", name(static_cast<Collective>(label & 7)), label >> 3);
  };
  WEFT_CHECK(sent == expected,
             "the ranks disagree: rank {} sent what belongs to {}, expected was {} (numbers modulo "
             "4096)",
             peer, text(sent), text(expected));
}

void Transport::commit(Fault::Kind) {
  WEFT_FAIL("WEFT_DIST_FAULT: these ranks have no connections to spoil; expected ranks over TCP");
}

void Transport::exchange(const Round& round, Clock::time_point deadline, bool is_control) {
  const auto bytes_of = [](const std::vector<Message>& messages) {
    int64_t bytes = 0;
    for (const Message& message : messages) bytes += static_cast<int64_t>(message.bytes);
    return bytes;
  };
  const int64_t sent = bytes_of(round.sends);
  for (TrafficCounters* counters : {&own_, family_.get()}) {
    if (is_control) {
      counters->control += sent;
    } else {
      counters->sent += sent;
      counters->messages += static_cast<int64_t>(round.sends.size());
    }
  }
  const Clock::time_point begin = Clock::now();
  do_exchange(round, deadline);
  if (latency_ == 0 && bandwidth_ == 0) return;
  // Links carry both directions at once.
  const auto bytes = static_cast<double>(std::max(sent, bytes_of(round.receives)));
  const double seconds = latency_ + (bandwidth_ > 0 ? bytes / bandwidth_ : 0);
  std::this_thread::sleep_until(
      begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

std::unique_ptr<Transport> Transport::group(const std::vector<int>& ranks) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  std::unique_ptr<Transport> group = make_group(ranks, static_cast<int>(place - ranks.begin()));
  group->family_ = family_;
  group->slow_down(latency_, bandwidth_);
  return group;
}

void Transport::slow_down(double latency, double bandwidth) {
  WEFT_CHECK(latency >= 0 && bandwidth >= 0,
             "slow network: expected a latency in s and a bandwidth in B/s >= 0, got {} and {}",
             latency, bandwidth);
  latency_ = latency;
  bandwidth_ = bandwidth;
}

}  // namespace weft::dist
