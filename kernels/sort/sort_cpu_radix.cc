// A line at a time. Elements of 8 or 16 bits are of few different values: where a line has more of
// them, counts say where each value begins. Other elements become one integer each, its key above
// its place, so that no two are equal and any sort is stable. Long lines are sorted by the key's
// bytes, least significant first; a byte that all keys share costs nothing but its count. Short
// lines, and a few elements of long ones, are left to the C++ library. The limiter of long lines
// are the scattered writes of each pass.
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "kernels/reduce/reduce_layout.h"
#include "kernels/sort/sort.h"
#include "kernels/sort/sort_key.h"

namespace weft::kernels {
namespace {

// Below this 256 counters for each byte cost more than they save.
constexpr size_t kRadixSize = 512;

/// Sorts integers whose lower half is in order already. The result lies in one of the two.
template <class Packed>
std::span<Packed> sort_by_bytes(std::span<Packed> items, std::span<Packed> spare) {
  constexpr int kBytes = sizeof(Packed) / 2;
  const auto byte_of = [](Packed item, int k) {
    return static_cast<uint8_t>(item >> (8 * (kBytes + k)));
  };
  std::array<std::array<size_t, 256>, kBytes> counts = {};
  for (Packed item : items) {
    for (int k = 0; k < kBytes; ++k) ++counts[k][byte_of(item, k)];
  }
  for (int k = 0; k < kBytes; ++k) {
    if (counts[k][byte_of(items[0], k)] == items.size()) continue;
    size_t first = 0;
    for (size_t& count : counts[k]) count = std::exchange(first, first + count);
    for (Packed item : items) spare[counts[k][byte_of(item, k)]++] = item;
    std::swap(items, spare);
  }
  return items;
}

template <class T>
struct Line {
  using Key = decltype(sort_key(T{}));
  using Packed = std::conditional_t<sizeof(Key) == 4, uint64_t, unsigned __int128>;

  const T* x;
  T* values;
  int64_t* places;
  int64_t x_step, value_step, place_step, size, kept;
  Key turn;  // what makes the order of the keys descending

  Packed item(int64_t place) const {
    const Key key = sort_key(x[place * x_step]) ^ turn;
    return static_cast<Packed>(key) << (8 * sizeof(Key)) | static_cast<Packed>(place);
  }
  void put(int64_t to, int64_t place) const {
    values[to * value_step] = x[place * x_step];
    places[to * place_step] = place;
  }
};

/// Sorts a line with a count for each value that its elements can have.
template <class T>
void sort_by_counts(const Line<T>& line, std::vector<int64_t>& counts) {
  const auto value_of = [&](int64_t i) -> size_t {
    const auto key = narrow_sort_key(line.x[i * line.x_step]);
    return static_cast<decltype(key)>(key ^ line.turn);
  };
  counts.assign(size_t{1} << (8 * sizeof(T)), 0);
  for (int64_t i = 0; i < line.size; ++i) ++counts[value_of(i)];
  int64_t first = 0;
  for (int64_t& count : counts) count = std::exchange(first, first + count);
  for (int64_t i = 0; i < line.size; ++i) {
    if (const int64_t to = counts[value_of(i)]++; to < line.kept) line.put(to, i);
  }
}

/// The first of a line's items in order. `items` and `spare` are memory for them.
template <class T, class Packed = typename Line<T>::Packed>
std::span<Packed> sort_items(const Line<T> line, std::vector<Packed>& items,
                             std::vector<Packed>& spare) {
  const bool are_few = line.kept < line.size / 64;
  items.resize(are_few ? line.kept : line.size);
  const auto count = static_cast<int64_t>(items.size());
  for (int64_t i = 0; i < count; ++i) items[i] = line.item(i);
  if (are_few) {
    // The first ones so far, the last of them on top of a heap: one comparison turns nearly every
    // other element away.
    std::ranges::make_heap(items);
    for (int64_t i = count; i < line.size; ++i) {
      const Packed item = line.item(i);
      if (item > items.front()) continue;
      std::ranges::pop_heap(items);
      items.back() = item;
      std::ranges::push_heap(items);
    }
    std::ranges::sort_heap(items);
    return items;
  }
  if (line.kept < line.size / 8) {
    std::nth_element(items.begin(), items.begin() + line.kept, items.end());
    std::sort(items.begin(), items.begin() + line.kept);
    return items;
  }
  if (items.size() < kRadixSize) {
    std::sort(items.begin(), items.end());
    return items;
  }
  if constexpr (sizeof(Packed) == sizeof(int64_t)) {
    // The places are assigned in the end: until then their memory is spare.
    if (line.place_step == 1 && line.kept == line.size) {
      return sort_by_bytes<Packed>(items, {reinterpret_cast<Packed*>(line.places), items.size()});
    }
  }
  spare.resize(line.size);
  return sort_by_bytes<Packed>(items, spare);
}

/// The shape, or strides, of the lines along an axis.
Shape without_axis(Shape shape, int axis) {
  shape.erase(axis);
  return shape;
}

template <class T>
void run(const SortProblem& p) {
  using Key = typename Line<T>::Key;
  using Packed = typename Line<T>::Packed;
  const int axis = wrap_dim(p.axis, p.x.dim(), "sort");
  const int64_t size = p.x.shape()[axis], kept = p.values.shape()[axis];
  WEFT_CHECK(sizeof(Key) == 8 || size < int64_t{1} << 32,
             "sort: a line of {} elements is too long: expected fewer than 2^32", size);
  const Shape lines = without_axis(p.x.shape(), axis);
  const Strides x_lines = without_axis(p.x.strides(), axis),
                value_lines = without_axis(p.values.strides(), axis),
                place_lines = without_axis(p.places.strides(), axis);
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, size));
  parallel_for(numel(lines), grain, [&](int64_t begin, int64_t end) {
    OffsetWalk x_walk(lines, x_lines, begin), value_walk(lines, value_lines, begin),
        place_walk(lines, place_lines, begin);
    std::vector<Packed> items, spare;
    std::vector<int64_t> counts;
    for (int64_t number = begin; number < end; ++number) {
      const Line<T> line = {.x = p.x.data<T>() + x_walk.offset(),
                            .values = p.values.data<T>() + value_walk.offset(),
                            .places = p.places.data<int64_t>() + place_walk.offset(),
                            .x_step = p.x.strides()[axis],
                            .value_step = p.values.strides()[axis],
                            .place_step = p.places.strides()[axis],
                            .size = size,
                            .kept = kept,
                            .turn = p.descending ? ~Key{0} : Key{0}};
      x_walk.next(), value_walk.next(), place_walk.next();
      if constexpr (sizeof(T) <= 2) {
        if (kept >= size / 64 && size >= std::max<int64_t>(kRadixSize, 1 << (8 * sizeof(T)))) {
          sort_by_counts(line, counts);
          continue;
        }
      }
      const std::span<const Packed> sorted = sort_items(line, items, spare);
      for (int64_t i = 0; i < kept; ++i) {
        line.put(i, static_cast<int64_t>(static_cast<Key>(sorted[i])));
      }
    }
  });
}

}  // namespace

void sort_cpu_radix(const SortProblem& p) {
  if (p.values.numel() == 0) return;
  visit_dtype(p.x.dtype(), [&]<class T>(TypeTag<T>) { run<T>(p); });
}

}  // namespace weft::kernels
