// Any loader, shared out to ranks.
//
// A source gives batches and, once at the end of each epoch, nothing:
//
//   struct Source { std::optional<Batch> next(); };
//
// Batch is a Tensor whose first dimension counts samples, or pairs, tuples, vectors and maps of
// such, or a struct of the caller's own with a function beside it that says what its tensors are:
//
//   template <class F> void for_each_tensor(Sample& s, F&& f) { f(s.image); f(s.mask); }
//
// Every rank reads the whole source, which has to give the same on each, and keeps its part.
#pragma once

#include <algorithm>
#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "core/error.h"
#include "core/transfer.h"
#include "data/loader.h"
#include "dist/model_parallel/rank_parts.h"

namespace weft::train {

// What for_each_tensor() knows besides the caller's own structs.
template <class F>
void for_each_tensor(Tensor& x, F&& f) {
  f(x);
}
template <class T, class F>
requires std::is_arithmetic_v<T> || std::same_as<T, std::string>
void for_each_tensor(T&, F&&) {}
template <class A, class B, class F>
void for_each_tensor(std::pair<A, B>& pair, F&& f);
template <class... Ts, class F>
void for_each_tensor(std::tuple<Ts...>& all, F&& f);
template <class T, class F>
void for_each_tensor(std::vector<T>& all, F&& f);
template <class Key, class T, class F>
void for_each_tensor(std::map<Key, T>& all, F&& f);

template <class A, class B, class F>
void for_each_tensor(std::pair<A, B>& pair, F&& f) {
  for_each_tensor(pair.first, f);
  for_each_tensor(pair.second, f);
}
template <class... Ts, class F>
void for_each_tensor(std::tuple<Ts...>& all, F&& f) {
  std::apply([&](Ts&... parts) { (for_each_tensor(parts, f), ...); }, all);
}
template <class T, class F>
void for_each_tensor(std::vector<T>& all, F&& f) {
  for (T& part : all) for_each_tensor(part, f);
}
template <class Key, class T, class F>
void for_each_tensor(std::map<Key, T>& all, F&& f) {
  for (auto& [key, part] : all) for_each_tensor(part, f);
}

struct SharedLoaderOptions {
  int ranks = 1, rank = 0;
  /// Batches of the source that the ranks take together: as many as there are, each its own, or one
  /// that is cut.
  int batches = 1;
  std::optional<Device> device = Device{};  // where next() brings a batch; none: it stays
  std::shared_ptr<data::WatchedLoaders> watch = {};
};

template <class Source>
class SharedLoader {
 public:
  using Batch = typename decltype(std::declval<Source&>().next())::value_type;

  /// `source` must outlive it.
  SharedLoader(Source& source, SharedLoaderOptions options)
      : source_(source), options_(std::move(options)) {}

  /// This rank's part of the next batches; nothing once at the end of an epoch. What is left at the
  /// end of one is cut evenly, of Tensors also where there is a batch for each rank and the last
  /// one is smaller: its samples would weigh more than others in a mean over ranks. A rank whose
  /// part is empty gets the first sample again. Throws Error where the tensors of a batch differ in
  /// their number of samples, or batches that are cut together in their number of tensors.
  std::optional<Batch> next() {
    if (!ahead_) ahead_ = read();
    std::vector<Batch> round = std::move(*ahead_);
    ahead_.reset();
    if (round.empty()) {
      place_ = nullptr;
      return std::nullopt;
    }
    // Where fewer came the source has said that it is at its end, and would begin anew.
    const bool is_full = static_cast<int>(round.size()) == options_.batches;
    ahead_ = is_full ? read() : std::vector<Batch>();
    const NoGrad guard;
    const bool is_uneven = ahead_->empty() && ends_small(round);
    const bool is_one_each = is_full && !is_uneven && options_.batches == options_.ranks;
    Batch mine = std::move(round[is_one_each ? options_.rank : 0]);
    int64_t fillers = 0;
    if (!is_one_each) {
      if (round.size() > 1) join(mine, round);
      fillers = cut(mine);
    }
    for_each_tensor(mine, [&](Tensor& x) {
      x = to_device(ops::contiguous(x), options_.device.value_or(x.device()));
    });
    if (options_.watch) options_.watch->give(place_, {fillers, ahead_->empty()});
    return mine;
  }

 private:
  std::vector<Batch> read() {
    std::vector<Batch> round;
    while (static_cast<int>(round.size()) < options_.batches) {
      std::optional<Batch> batch = source_.next();
      if (!batch) break;
      round.push_back(std::move(*batch));
    }
    return round;
  }

  static Tensors tensors_of(Batch& batch) {
    Tensors all;
    for_each_tensor(batch, [&](Tensor& x) { all.push_back(x); });
    return all;
  }

  /// Whether the last batch of several is like the first but for its having fewer samples. Of
  /// batches that may hold more than tensors nobody knows what of that goes with which sample.
  static bool ends_small(const std::vector<Batch>& round) {
    if constexpr (std::same_as<Batch, Tensors>) {
      bool is_smaller = false;
      const auto is_alike = [&](const Tensor& a, const Tensor& b) {
        if (a.dim() == 0 || b.dim() != a.dim()) return false;
        is_smaller = is_smaller || b.size(0) < a.size(0);
        return std::ranges::equal(a.shape().begin() + 1, a.shape().end(), b.shape().begin() + 1,
                                  b.shape().end());
      };
      return std::ranges::equal(round.front(), round.back(), is_alike) && is_smaller;
    }
    return false;
  }

  /// Puts the others behind the first.
  static void join(Batch& first, std::vector<Batch>& others) {
    std::vector<Tensors> parts = {tensors_of(first)};
    for (size_t i = 1; i < others.size(); ++i) {
      parts.push_back(tensors_of(others[i]));
      WEFT_CHECK(parts[i].size() == parts[0].size(),
                 "loader: batches of {} and {} tensors cannot be shared out together",
                 parts[0].size(), parts[i].size());
    }
    size_t place = 0;
    for_each_tensor(first, [&](Tensor& x) {
      Tensors pieces;
      for (const Tensors& tensors : parts) pieces.push_back(tensors.at(place));
      if (x.dim() > 0) x = ops::cat(pieces, 0);
      ++place;
    });
  }

  /// Leaves this rank's rows; returns how many of them are fillers.
  int64_t cut(Batch& batch) const {
    int64_t rows = -1;
    for (const Tensor& x : tensors_of(batch)) {
      if (x.dim() == 0) continue;
      WEFT_CHECK(rows < 0 || x.size(0) == rows,
                 "loader: the tensors of a batch have {} and {} samples", rows, x.size(0));
      rows = x.size(0);
    }
    WEFT_CHECK(rows > 0, "loader: a batch without samples cannot be shared out");
    const int64_t share = dist::even_part(rows, options_.ranks, options_.rank);
    const bool is_filler = share == 0;
    const int64_t begin = is_filler ? 0 : dist::even_begin(rows, options_.ranks, options_.rank);
    const int64_t count = is_filler ? 1 : share;
    for_each_tensor(batch, [&](Tensor& x) {
      if (x.dim() > 0) x = ops::narrow(x, 0, begin, count);
    });
    return is_filler ? 1 : 0;
  }

  Source& source_;
  const SharedLoaderOptions options_;
  std::optional<std::vector<Batch>> ahead_;  // what comes next, once it was read
  data::WatchedLoaders::Place place_;        // in options_.watch
};

}  // namespace weft::train
