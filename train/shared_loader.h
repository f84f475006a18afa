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
// What is no tensor goes with it: a vector with as many entries as there are samples, of numbers or
// texts say, has one for each. f takes such members of a struct, too.
//
// Every rank reads the whole source, which has to give the same on each, and keeps its part.
#pragma once

#include <algorithm>
#include <any>
#include <concepts>
#include <cstring>
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

/// Whether some part of a T is a tensor, as one of the caller's structs may be.
template <class T>
constexpr bool holds_tensors = !std::is_arithmetic_v<T> && !std::same_as<T, std::string>;
template <class A, class B>
constexpr bool holds_tensors<std::pair<A, B>> = holds_tensors<A> || holds_tensors<B>;
template <class... Ts>
constexpr bool holds_tensors<std::tuple<Ts...>> = (holds_tensors<Ts> || ...);
template <class T>
constexpr bool holds_tensors<std::vector<T>> = holds_tensors<T>;
template <class Key, class T>
constexpr bool holds_tensors<std::map<Key, T>> = holds_tensors<T>;

// What for_each_tensor() knows besides the caller's own structs. f takes what is no tensor as well:
// numbers, texts, keys and vectors of such.
template <class F>
void for_each_tensor(Tensor& x, F&& f) {
  f(x);
}
template <class T, class F>
requires std::is_arithmetic_v<T> || std::same_as<T, std::string>
void for_each_tensor(T& x, F&& f) { f(x); }
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
  if constexpr (holds_tensors<T>) {
    for (T& part : all) for_each_tensor(part, f);
  } else {
    f(all);
  }
}
template <class Key, class T, class F>
void for_each_tensor(std::map<Key, T>& all, F&& f) {
  for (auto& [key, part] : all) {
    f(key);
    for_each_tensor(part, f);
  }
}

// What SharedLoader does with a part of a batch. Other types of parts have such functions beside
// them.

/// How many samples it may be of; -1: it is of none in particular.
inline int64_t rows_in(const Tensor& x) { return x.dim() > 0 ? x.size(0) : -1; }
template <class T>
int64_t rows_in(const std::vector<T>& x) {
  return static_cast<int64_t>(x.size());
}
template <class T>
int64_t rows_in(const T&) {
  return -1;
}
/// Puts the rows of the others behind those of the first.
inline Tensor joined(const Tensors& pieces) { return ops::cat(pieces, 0); }
template <class T>
std::vector<T> joined(const std::vector<std::vector<T>>& pieces) {
  std::vector<T> all;
  for (const std::vector<T>& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}
inline void keep_rows(Tensor& x, int64_t begin, int64_t count) {
  x = ops::narrow(x, 0, begin, count);
}
template <class T>
void keep_rows(std::vector<T>& x, int64_t begin, int64_t count) {
  x = std::vector<T>(x.begin() + begin, x.begin() + begin + count);
}
inline bool is_same(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor x = to_device(ops::contiguous(a), Device{});
  const Tensor y = to_device(ops::contiguous(b), Device{});
  return std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}
template <class T>
bool is_same(const T& a, const T& b) {
  return a == b;
}
inline std::string text_of(const Tensor& x) {
  return x.dim() == 0 ? fmt::format("{}", x.item())
                      : fmt::format("a tensor of shape {}", x.shape());
}
template <class T>
std::string text_of(const std::vector<T>& x) {
  return fmt::format("a vector of {}", x.size());
}
template <class T>
std::string text_of(const T& x) {
  return fmt::format("{}", x);
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
  /// their number of samples, or batches that are cut together in their number of parts, or in one
  /// that is not of their samples.
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
      fillers = join_and_cut(mine, round);
    }
    each_tensor(mine, [&](Tensor& x) {
      x = to_device(ops::contiguous(x), options_.device.value_or(x.device()));
    });
    if (options_.watch) options_.watch->give(place_, {fillers, ahead_->empty()});
    return mine;
  }

  /// An iteration begins, of the source as well, without what was read ahead in an earlier one.
  int64_t begin() {
    ahead_.reset();
    place_ = nullptr;
    return source_.begin();
  }
  int64_t iteration() const { return source_.iteration(); }

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

  /// Calls f with each part, the tensors among them. `rows` tells what a part of as many is.
  template <class F>
  struct EachPart {
    int64_t rows;
    F f;
    template <class T>
    void operator()(T& part) {
      f(part);
    }
  };
  template <class F>
  EachPart(int64_t, F) -> EachPart<F>;

  template <class F>
  static void each_tensor(Batch& batch, F f) {
    for_each_tensor(batch, [&]<class T>(T& part) {
      if constexpr (std::same_as<T, Tensor>) f(part);
    });
  }

  /// Samples of a batch; -1: no tensor counts them.
  static int64_t rows_of(Batch& batch) {
    int64_t rows = -1;
    each_tensor(batch, [&](const Tensor& x) {
      if (x.dim() == 0) return;
      WEFT_CHECK(rows < 0 || x.size(0) == rows,
                 "loader: the tensors of a batch have {} and {} samples", rows, x.size(0));
      rows = x.size(0);
    });
    return rows;
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

  /// Puts the batches of a round, of which `mine` was taken out as the first, behind each other and
  /// leaves this rank's rows; returns how many of them are fillers.
  int64_t join_and_cut(Batch& mine, std::vector<Batch>& round) const {
    std::vector<int64_t> rows;
    std::vector<std::vector<std::any>> parts;
    int64_t total = 0;
    for (size_t i = 0; i < round.size(); ++i) {
      Batch& batch = i == 0 ? mine : round[i];
      rows.push_back(rows_of(batch));
      WEFT_CHECK(rows[i] >= 0, "loader: a batch without samples cannot be shared out");
      total += rows[i];
      parts.emplace_back();
      for_each_tensor(batch,
                      EachPart{rows[i], [&](const auto& part) { parts[i].push_back(part); }});
      WEFT_CHECK(parts[i].size() == parts[0].size(),
                 "loader: batches of {} and {} parts cannot be shared out together",
                 parts[0].size(), parts[i].size());
    }
    WEFT_CHECK(total > 0, "loader: a batch without samples cannot be shared out");
    const int64_t share = dist::even_part(total, options_.ranks, options_.rank);
    const bool is_filler = share == 0;
    const int64_t begin = is_filler ? 0 : dist::even_begin(total, options_.ranks, options_.rank);
    const int64_t count = is_filler ? 1 : share;
    size_t place = 0;
    const auto share_part = [&]<class T>(T& part) {
      using Part = std::remove_const_t<T>;
      std::vector<Part> pieces;
      bool is_of_rows = true;
      for (size_t i = 0; i < parts.size(); ++i) {
        const auto* piece = std::any_cast<Part>(&parts[i][place]);
        WEFT_CHECK(piece,
                   "loader: part {} of batches that are shared out together has several types",
                   place);
        is_of_rows = is_of_rows && rows_in(*piece) == rows[i];
        pieces.push_back(*piece);
      }
      if constexpr (requires { keep_rows(part, begin, count); }) {
        if (is_of_rows && pieces.size() > 1) part = joined(pieces);
        if (is_of_rows) keep_rows(part, begin, count);
      }
      for (size_t i = 1; i < pieces.size() && !is_of_rows; ++i) {
        WEFT_CHECK(is_same(pieces[0], pieces[i]),
                   "loader: batches of {} and {} samples are shared out together: expected their "
                   "part {} to have as many, or to be the same in both, got {} and {}",
                   rows[0], rows[i], place, text_of(pieces[0]), text_of(pieces[i]));
      }
      ++place;
    };
    for_each_tensor(mine, EachPart{rows[0], share_part});
    return is_filler ? 1 : 0;
  }

  Source& source_;
  const SharedLoaderOptions options_;
  std::optional<std::vector<Batch>> ahead_;  // what comes next, once it was read
  data::WatchedLoaders::Place place_;        // in options_.watch
};

}  // namespace weft::train
