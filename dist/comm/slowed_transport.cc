#include <algorithm>
#include <thread>

#include "dist/comm/transport.h"

namespace weft::dist {
namespace {

class SlowedTransport : public Transport {
 public:
  SlowedTransport(std::unique_ptr<Transport> inner, double latency, double bandwidth)
      : Transport(inner->rank(), inner->size()),
        inner_(std::move(inner)),
        latency_(latency),
        bandwidth_(bandwidth) {}

  RankStatus* status(int rank) override { return inner_->status(rank); }
  void leave(const std::string& reason) override { inner_->leave(reason); }

 protected:
  std::unique_ptr<Transport> make_group(const std::vector<int>& ranks) override {
    return slowed(inner_->group(ranks), latency_, bandwidth_);
  }

  void do_exchange(std::span<const Message> sends, std::span<const Message> receives,
                   Clock::time_point deadline) override {
    const Clock::time_point begin = Clock::now();
    inner_->exchange(sends, receives, deadline);
    const auto bytes_of = [](std::span<const Message> messages) {
      size_t bytes = 0;
      for (const Message& message : messages) bytes += message.bytes;
      return static_cast<double>(bytes);
    };
    // Links carry both directions at once.
    const double seconds = latency_ + std::max(bytes_of(sends), bytes_of(receives)) / bandwidth_;
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(seconds)));
  }

 private:
  std::unique_ptr<Transport> inner_;
  const double latency_, bandwidth_;
};

}  // namespace

std::unique_ptr<Transport> slowed(std::unique_ptr<Transport> transport, double latency,
                                  double bandwidth) {
  WEFT_CHECK(latency >= 0 && bandwidth > 0,
             "slowed: expected a latency >= 0 s and a bandwidth > 0 B/s, got {} and {}", latency,
             bandwidth);
  return std::make_unique<SlowedTransport>(std::move(transport), latency, bandwidth);
}

}  // namespace weft::dist
