// The best few of something by a metric: of a fit's states.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace weft::train {

/// Whether less of a metric is better, or more.
enum class Mode : uint8_t { kMin, kMax };

/// NaN is worse than any number.
inline bool is_better(Mode mode, double score, double than) {
  if (std::isnan(score) || std::isnan(than)) return !std::isnan(score);
  return mode == Mode::kMin ? score < than : score > than;
}

template <class T>
class TopK {
 public:
  struct Entry {
    T what;
    double score = 0;
  };

  /// `k`: how many there are at most; -1: any number.
  TopK(int64_t k, Mode mode) : k_(k), mode_(mode) {}

  /// Whether one with this score is among the best.
  bool takes(double score) const {
    if (k_ == 0) return false;
    return !is_full() || is_better(mode_, score, entries_.back().score);
  }
  /// Puts one that takes() has let in behind those that are as good. Returns what it drives out.
  std::optional<T> add(T what, double score) {
    std::optional<T> dropped;
    if (is_full()) {
      dropped = std::move(entries_.back().what);
      entries_.pop_back();
    }
    const auto place = std::ranges::find_if(
        entries_, [&](const Entry& other) { return is_better(mode_, score, other.score); });
    entries_.insert(place, {std::move(what), score});
    return dropped;
  }
  /// Best first.
  const std::vector<Entry>& entries() const { return entries_; }
  void set_entries(std::vector<Entry> entries) { entries_ = std::move(entries); }

 private:
  bool is_full() const { return k_ > 0 && static_cast<int64_t>(entries_.size()) >= k_; }

  int64_t k_;
  Mode mode_;
  std::vector<Entry> entries_;
};

}  // namespace weft::train
