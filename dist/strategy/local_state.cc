#include "dist/strategy/local_state.h"

#include <algorithm>
#include <unordered_set>

#include "core/view.h"

namespace weft::dist {
namespace {

Shape part_shape(const TensorPlacement& placement) {
  Shape shape = placement.whole;
  if (!placement.part) return shape;
  const auto& [cut, ranks, rank] = *placement.part;
  shape[static_cast<int>(cut.dim)] = cut.kept(ranks, rank);
  return shape;
}

/// The boxes that the elements [first, last) of a tensor, counted row by row from where dimension
/// `dim` begins, fill one after another. `offset` has what stands before that dimension.
void append_boxes(const Shape& shape, int dim, Shape offset, int64_t first, int64_t last,
                  std::vector<std::pair<Shape, Shape>>& boxes) {
  if (first >= last) return;
  if (dim == shape.size()) {
    boxes.emplace_back(offset, Shape::filled(dim, 1));
    return;
  }
  int64_t row = 1;  // elements of an index of this dimension
  for (int d = dim + 1; d < shape.size(); ++d) row *= shape[d];
  int64_t begin = first / row;
  const int64_t end = last / row, in_first = first % row, in_last = last % row;
  const auto within = [&](int64_t index, int64_t from, int64_t to) {
    offset[dim] = index;
    append_boxes(shape, dim + 1, offset, from, to, boxes);
  };
  if (begin == end) return within(begin, in_first, in_last);
  if (in_first > 0) within(begin++, in_first, row);
  if (begin < end) {
    Shape size = shape;
    for (int d = 0; d < dim; ++d) size[d] = 1;
    size[dim] = end - begin;
    offset[dim] = begin;
    for (int d = dim + 1; d < shape.size(); ++d) offset[d] = 0;
    boxes.emplace_back(offset, size);
  }
  within(end, 0, in_last);
}

/// The boxes of a part of the whole as boxes of the whole.
std::vector<Piece> uncut(std::vector<Piece> pieces, const TensorPlacement::Part& part) {
  const auto& [cut, ranks, rank] = part;
  const int dim = static_cast<int>(cut.dim);
  std::vector<Piece> result;
  for (const auto& [offset, values] : pieces) {
    const int64_t end = offset[dim] + values.size(dim);
    for (const Cut::Part& mine : cut.parts(ranks, rank)) {
      const int64_t low = std::max(offset[dim], mine.offset),
                    high = std::min(end, mine.offset + mine.length);
      if (low >= high) continue;
      Shape place = offset;
      place[dim] = mine.begin + (low - mine.offset);
      result.push_back({place, view::narrow(values, dim, low - offset[dim], high - low)});
    }
  }
  return result;
}

}  // namespace

Shape TensorPlacement::local_shape() const { return flat ? Shape{flat->count} : part_shape(*this); }

std::vector<Piece> TensorPlacement::pieces(const Tensor& local) const {
  WEFT_ASSERT(local.shape() == local_shape());
  const Shape shape = part_shape(*this);
  std::vector<Piece> pieces;
  if (flat && numel(whole) > 0) {
    std::vector<std::pair<Shape, Shape>> boxes;
    append_boxes(shape, 0, Shape::filled(shape.size(), 0), flat->first, flat->first + flat->count,
                 boxes);
    int64_t begin = 0;
    for (const auto& [offset, size] : boxes) {
      const Tensor elements = view::narrow(local, 0, begin, numel(size));
      pieces.push_back({offset, view::reshape(elements, size)});
      begin += numel(size);
    }
  } else if (!flat || flat->first == 0) {
    pieces.push_back({Shape::filled(shape.size(), 0), view::reshape(local, shape)});
  }
  return part ? uncut(std::move(pieces), *part) : pieces;
}

LocalTensors whole_tensors(const nn::Module& module, int copies, int copy) {
  std::unordered_set<std::string> buffers;
  for (const auto& [name, buffer] : module.named_buffers()) buffers.insert(name);
  LocalTensors all;
  for (const auto& [name, tensor] : module.unrouted_state()) {
    TensorPlacement placement{.whole = tensor.shape(), .copies = copies, .copy = copy};
    if (buffers.contains(name)) {
      placement.copies = copy == 0 ? 1 : 0;
      placement.copy = 0;
    }
    all.push_back({name, tensor, placement});
  }
  return all;
}

}  // namespace weft::dist
