// The tensors are seen as [outer, axis, inner]. Reads are independent: threads share them by
// (outer, i), and a slice whose elements lie side by side is one memcpy. Writes keep the order of
// i: threads share them by (outer, block of inner), and each runs through all i. f16 and bf16 sums
// live in a widened copy of the block, rounded at the end. The limiter is memory.
#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/elementwise/walk.h"
#include "kernels/index/index.h"

namespace weft::kernels {
namespace {

/// Offsets of one tensor's elements, split at the axis.
struct Offsets {
  Offsets(const Tensor& t, const Shape& shape, int axis) : step(t.strides()[axis]) {
    const auto list = [&](int begin, int end, std::vector<int64_t>& offsets) {
      Shape sizes;
      Strides strides;
      for (int d = begin; d < end; ++d) {
        sizes.push_back(shape[d]);
        strides.push_back(t.strides()[d]);
      }
      for_each_offset(sizes, strides, [&](int64_t offset) { offsets.push_back(offset); });
    };
    list(0, axis, outer);
    list(axis + 1, shape.size(), inner);
    for (int64_t next = 0; const int64_t offset : inner) inner_is_contiguous &= offset == next++;
  }

  std::vector<int64_t> outer, inner;
  int64_t step;  // from one i to the next
  bool inner_is_contiguous = true;
};

/// With the index along the axis alone where it repeats itself along all others, as a list of
/// slices does that was expanded.
IndexProblem without_repeats(IndexProblem p, int axis) {
  const Tensor index = p.index;
  if (p.by_slice() || index.numel() == 0) return p;
  Shape list = Shape::filled(index.dim(), 1);
  list[axis] = index.shape()[axis];
  for (int d = 0; d < index.dim(); ++d) {
    if (index.strides()[d] != 0 && index.shape()[d] != list[d]) return p;
  }
  p.index = Tensor::view_of(index.storage(), list, index.strides(), index.offset(), index.dtype());
  return p;
}

struct Lines {
  const IndexProblem& p;
  const int axis = wrap_dim(p.axis, p.x.dim(), name(p.kind));
  const Shape& shape = p.moved();
  const IndexProblem listed = without_repeats(p, axis);
  const Indices checked = checked_indices(listed);
  const std::span<const int64_t> indices = checked.list;
  const bool by_slice = p.by_slice() || listed.index.numel() < p.index.numel();
  const int64_t count = shape[axis];  // elements of a line
  const Offsets x = Offsets(p.x, shape, axis), y = Offsets(p.y, shape, axis);

  int64_t outer() const { return static_cast<int64_t>(x.outer.size()); }
  int64_t inner() const { return static_cast<int64_t>(x.inner.size()); }
  int64_t index(int64_t a, int64_t i, int64_t b) const {
    return indices[by_slice ? i : (a * count + i) * inner() + b];
  }
  /// Whether the inner elements of an index lie side by side in x and y.
  bool are_whole() const { return by_slice && x.inner_is_contiguous && y.inner_is_contiguous; }
};

template <class T>
void read(const IndexProblem& p, const Lines& lines) {
  const int64_t inner = lines.inner();
  if (inner == 0) return;
  const T* x = static_cast<const T*>(p.x.raw());
  T* y = static_cast<T*>(p.y.raw());
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / inner);
  const bool is_whole = lines.are_whole();
  // The elements first, first + 1, ... before `last` of line a.
  const auto read_line = [&](int64_t a, int64_t first, int64_t last) {
    const T* const from = x + lines.x.outer[a];
    T* const to = y + lines.y.outer[a];
    const int64_t x_step = lines.x.step, y_step = lines.y.step;
    if (inner == 1) {
      const int64_t* const places = lines.indices.data() + (lines.by_slice ? 0 : a * lines.count);
      for (int64_t i = first; i < last; ++i) to[i * y_step] = from[places[i] * x_step];
      return;
    }
    for (int64_t i = first; i < last; ++i) {
      if (is_whole) {
        std::memcpy(to + i * y_step, from + lines.indices[i] * x_step, inner * sizeof(T));
        continue;
      }
      for (int64_t b = 0; b < inner; ++b) {
        to[i * y_step + lines.y.inner[b]] = from[lines.index(a, i, b) * x_step + lines.x.inner[b]];
      }
    }
  };
  parallel_for(lines.outer() * lines.count, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t a = begin / lines.count, first = begin % lines.count;
      const int64_t last = std::min(lines.count, first + end - begin);
      read_line(a, first, last);
      begin += last - first;
    }
  });
}

/// Calls f(a, first, last) for blocks [first, last) of the inner elements of every outer one.
template <class F>
void for_each_block(const Lines& lines, int64_t block, F&& f) {
  const int64_t blocks = (lines.inner() + block - 1) / block;
  const int64_t elements = std::min(block, lines.inner()) * lines.count;
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, elements));
  parallel_for(lines.outer() * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = k % blocks * block;
      f(k / blocks, first, std::min(lines.inner(), first + block));
    }
  });
}

// Enough for whole cache lines and for many threads to share a row of an embedding.
constexpr int64_t kBlock = 64;

/// y[index] = x, or += where kAdds.
template <bool kAdds, class T>
void write(const IndexProblem& p, const Lines& lines) {
  if (lines.count == 0) return;
  const T* x = static_cast<const T*>(p.x.raw());
  T* y = static_cast<T*>(p.y.raw());
  const auto join = [](T& element, T value) { kAdds ? element += value : element = value; };
  for_each_block(lines, kBlock, [&](int64_t a, int64_t first, int64_t last) {
    T* const out = y + lines.y.outer[a];
    if (lines.inner() == 1) {
      const int64_t* const places = lines.indices.data() + (lines.by_slice ? 0 : a * lines.count);
      const T* const from = x + lines.x.outer[a];
      for (int64_t i = 0; i < lines.count; ++i) {
        join(out[places[i] * lines.y.step], from[i * lines.x.step]);
      }
      return;
    }
    for (int64_t i = 0; i < lines.count; ++i) {
      const T* from = x + lines.x.outer[a] + i * lines.x.step;
      if (lines.are_whole()) {
        T* to = out + lines.indices[i] * lines.y.step;
        for (int64_t b = first; b < last; ++b) join(to[b], from[b]);
        continue;
      }
      for (int64_t b = first; b < last; ++b) {
        join(out[lines.index(a, i, b) * lines.y.step + lines.y.inner[b]], from[lines.x.inner[b]]);
      }
    }
  });
}

/// Adds f16 or bf16 in f32, rounded at the end.
template <class T>
void add_narrow(const IndexProblem& p, const Lines& lines) {
  if (lines.count == 0) return;
  const T* x = p.x.data<T>();
  T* y = p.y.data<T>();
  const int64_t size = p.y.shape()[lines.axis];
  // Of the inner elements a block is widened at a time, of a long axis a part: of 16 MiB, or a 16th
  // of the axis, since each part looks through all indices for its own.
  const int64_t block = std::clamp<int64_t>((1 << 20) / std::max<int64_t>(1, size), 1, kBlock);
  const int64_t part = std::min(size, std::max<int64_t>(1 << 22, (size + 15) / 16));
  const int64_t index_step = lines.by_slice ? 1 : lines.inner();
  for_each_block(lines, block, [&](int64_t a, int64_t first, int64_t last) {
    const int64_t width = last - first;
    const int64_t* const x_inner = lines.x.inner.data() + first;
    const int64_t* const y_inner = lines.y.inner.data() + first;
    const int64_t* const indices =
        lines.indices.data() + (lines.by_slice ? 0 : a * lines.count * lines.inner() + first);
    std::vector<float> sums(part * width);
    for (int64_t begin = 0; begin < size; begin += part) {
      const auto count = static_cast<uint64_t>(std::min(part, size - begin));
      T* const out = y + lines.y.outer[a] + begin * lines.y.step;
      const auto for_each_sum = [&](auto&& f) {
        for (uint64_t s = 0; s < count; ++s) {
          for (int64_t b = 0; b < width; ++b) {
            f(sums[s * width + b], out[s * lines.y.step + y_inner[b]]);
          }
        }
      };
      for_each_sum([](float& sum, T& element) { sum = static_cast<float>(element); });
      for (int64_t i = 0; i < lines.count; ++i) {
        const T* const from = x + lines.x.outer[a] + i * lines.x.step;
        const int64_t* const at = indices + i * index_step;
        for (int64_t b = 0; b < width; ++b) {
          const auto s = static_cast<uint64_t>(at[lines.by_slice ? 0 : b] - begin);
          if (s < count) sums[s * width + b] += static_cast<float>(from[x_inner[b]]);
        }
      }
      for_each_sum([](float& sum, T& element) { element = static_cast<T>(sum); });
    }
  });
}

}  // namespace

void index_cpu_lines(const IndexProblem& p) {
  WEFT_ASSERT(p.x.dim() == p.y.dim() && p.moved().size() == p.x.dim());
  const Lines lines{p};
  WEFT_ASSERT(!lines.by_slice || static_cast<int64_t>(lines.indices.size()) == lines.count);
  if (p.adds()) {
    return with_addable(p.dtype(), [&]<class T>(T) {
      if constexpr (std::is_arithmetic_v<T>) {
        write<true, T>(p, lines);
      } else {
        add_narrow<T>(p, lines);
      }
    });
  }
  // Elements that are only moved need no type but a size.
  with_word(itemsize(p.dtype()), [&]<class Word>(Word) {
    p.reads() ? read<Word>(p, lines) : write<false, Word>(p, lines);
  });
}

}  // namespace weft::kernels
