// A line at a time: each element becomes one integer, its key above its place, so that no two are
// equal and any sort is stable. Long lines are sorted by the key's bytes, least significant first;
// a byte that all keys share costs nothing but its count. Short lines, and a few elements of long
// ones, are left to the C++ library. The limiter of long lines are the scattered writes of each
// pass.
#include <algorithm>
#include <array>
#include <vector>

#include "core/parallel.h"
#include "kernels/reduce/reduce_layout.h"
#include "kernels/sort/sort.h"
#include "kernels/sort/sort_key.h"

namespace weft::kernels {
namespace {

// Below this 256 counters for each byte cost more than they save.
constexpr size_t kRadixSize = 512;

/// Sorts integers whose lower half is in order already.
template <class Packed>
void sort_by_bytes(std::vector<Packed>& items, std::vector<Packed>& spare) {
  constexpr int kBytes = sizeof(Packed) / 2;
  const auto byte_of = [](Packed item, int k) {
    return static_cast<uint8_t>(item >> (8 * (kBytes + k)));
  };
  std::array<std::array<size_t, 256>, kBytes> counts = {};
  for (Packed item : items) {
    for (int k = 0; k < kBytes; ++k) ++counts[k][byte_of(item, k)];
  }
  spare.resize(items.size());
  for (int k = 0; k < kBytes; ++k) {
    if (counts[k][byte_of(items[0], k)] == items.size()) continue;
    size_t first = 0;
    for (size_t& count : counts[k]) count = std::exchange(first, first + count);
    for (Packed item : items) spare[counts[k][byte_of(item, k)]++] = item;
    items.swap(spare);
  }
}

template <class Packed>
void sort_line(std::vector<Packed>& items, std::vector<Packed>& spare, int64_t kept) {
  const auto end = items.begin() + kept;
  if (kept < static_cast<int64_t>(items.size() / 64)) {
    // Nearly every element is turned away by one comparison.
    std::partial_sort(items.begin(), end, items.end());
  } else if (kept < static_cast<int64_t>(items.size() / 8)) {
    std::nth_element(items.begin(), end, items.end());
    std::sort(items.begin(), end);
  } else if (items.size() < kRadixSize) {
    std::sort(items.begin(), items.end());
  } else {
    sort_by_bytes(items, spare);
  }
}

/// The shape, or strides, of the lines along an axis.
Shape without_axis(Shape shape, int axis) {
  shape.erase(axis);
  return shape;
}

template <class T>
void run(const SortProblem& p) {
  using Key = decltype(sort_key(T{}));
  using Packed = std::conditional_t<sizeof(Key) == 4, uint64_t, unsigned __int128>;
  constexpr int kShift = 8 * sizeof(Key);
  const int axis = wrap_dim(p.axis, p.x.dim(), "sort");
  const int64_t size = p.x.shape()[axis], kept = p.values.shape()[axis];
  WEFT_CHECK(sizeof(Key) == 8 || size < int64_t{1} << 32,
             "sort: a line of {} elements is too long: expected fewer than 2^32", size);
  const Shape lines = without_axis(p.x.shape(), axis);
  const Strides x_lines = without_axis(p.x.strides(), axis),
                value_lines = without_axis(p.values.strides(), axis),
                place_lines = without_axis(p.places.strides(), axis);
  const int64_t x_step = p.x.strides()[axis], value_step = p.values.strides()[axis],
                place_step = p.places.strides()[axis];
  const Key turn = p.descending ? ~Key{0} : Key{0};
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, size));
  parallel_for(numel(lines), grain, [&](int64_t begin, int64_t end) {
    OffsetWalk x_walk(lines, x_lines, begin), value_walk(lines, value_lines, begin),
        place_walk(lines, place_lines, begin);
    std::vector<Packed> items(size), spare;
    for (int64_t line = begin; line < end; ++line) {
      const T* const x = p.x.data<T>() + x_walk.offset();
      for (int64_t i = 0; i < size; ++i) {
        const Key key = sort_key(x[i * x_step]) ^ turn;
        items[i] = static_cast<Packed>(key) << kShift | static_cast<Packed>(i);
      }
      sort_line(items, spare, kept);
      T* const values = p.values.data<T>() + value_walk.offset();
      int64_t* const places = p.places.data<int64_t>() + place_walk.offset();
      for (int64_t i = 0; i < kept; ++i) {
        const auto place = static_cast<int64_t>(static_cast<Key>(items[i]));
        values[i * value_step] = x[place * x_step];
        places[i * place_step] = place;
      }
      x_walk.next(), value_walk.next(), place_walk.next();
    }
  });
}

}  // namespace

void sort_cpu_radix(const SortProblem& p) {
  if (p.values.numel() == 0) return;
  visit_dtype(p.x.dtype(), [&]<class T>(TypeTag<T>) { run<T>(p); });
}

}  // namespace weft::kernels
