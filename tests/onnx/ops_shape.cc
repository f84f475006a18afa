// Op types that make tensors, or move elements without computing.
#include <cmath>

#include "kernels/index/index.h"
#include "tests/onnx/ops.h"

namespace weft::onnx {
namespace {

using enum Accuracy;

Tensor indices_of(const std::vector<int64_t>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

/// The axes of an op that takes them as an attribute or, since opset 13, as input 1.
std::vector<int64_t> axes_of(const Node& node, const Tensors& in) {
  const Tensor axes = optional(in, 1);
  return axes ? to_ints(axes) : node.ints("axes");
}

Tensors identity(const Node&, const Tensors& in) { return {ops::clone(in.at(0))}; }

Tensors constant(const Node& node, const Tensors&) {
  if (const Attribute* a = node.find("value")) return {a->t};
  if (const Attribute* a = node.find("value_float")) return {Tensor::scalar(a->f)};
  if (const Attribute* a = node.find("value_int")) {
    return {Tensor::from(std::vector<int64_t>{a->i}, {})};
  }
  if (const Attribute* a = node.find("value_ints")) return {indices_of(a->ints)};
  if (const Attribute* a = node.find("value_floats")) {
    return {Tensor::from(a->floats, {static_cast<int64_t>(a->floats.size())})};
  }
  WEFT_FAIL("Constant: no value that is a tensor");
}

Tensors constant_of_shape(const Node& node, const Tensors& in) {
  const Attribute* value = node.find("value");
  return {ops::full(Shape(to_ints(in.at(0))), value ? value->t.item() : 0,
                    value ? value->t.dtype() : DType::f32)};
}

Tensors eye_like(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int64_t rows = x.size(0), columns = x.size(1), k = node.i("k", 0);
  const Attribute* dtype = node.find("dtype");
  const int64_t n = rows + columns + std::abs(k);
  const Tensor eye = ops::eye(n, dtype ? element_type(dtype->i) : x.dtype());
  const int64_t top = std::max<int64_t>(k, 0), left = std::max<int64_t>(-k, 0);
  return {ops::narrow(ops::narrow(eye, 0, top, rows), 1, left, columns)};
}

Tensors range(const Node&, const Tensors& in) {
  const Tensor &start = in.at(0), &limit = in.at(1), &delta = in.at(2);
  const double n = std::ceil((limit.item() - start.item()) / delta.item());
  const Tensor steps = ops::arange(0, std::max<int64_t>(0, static_cast<int64_t>(n)), start.dtype());
  return {ops::add(ops::mul(steps, delta), start)};
}

Tensors shape(const Node& node, const Tensors& in) {
  const Shape& shape = in.at(0).shape();
  const Tensor sizes = indices_of({shape.begin(), shape.end()});
  return {ops::slice(sizes, 0, node.i("start", 0), node.i("end", shape.size()))};
}
Tensors size(const Node&, const Tensors& in) {
  return {Tensor::from(std::vector<int64_t>{in.at(0).numel()}, {})};
}

Tensors reshape(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  std::vector<int64_t> sizes = to_ints(in.at(1));
  for (int i = 0; i < static_cast<int>(sizes.size()); ++i) {
    if (sizes[i] == 0 && !node.i("allowzero", 0)) sizes[i] = x.size(i);
  }
  return {ops::reshape(x, Shape(sizes))};
}

Tensors flatten(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int64_t axis = node.i("axis", 1);
  int64_t rows = 1;
  for (int64_t i = 0; i < (axis < 0 ? axis + x.dim() : axis); ++i) rows *= x.size(i);
  return {ops::reshape(x, {rows, rows > 0 ? x.numel() / rows : 0})};
}

Tensors transpose(const Node& node, const Tensors& in) {
  std::vector<int64_t> order = node.ints("perm");
  for (int i = in.at(0).dim() - 1; i >= 0 && !node.find("perm"); --i) order.push_back(i);
  return {ops::permute(in[0], Shape(order))};
}

Tensors squeeze(const Node& node, const Tensors& in) {
  std::vector<int64_t> axes = axes_of(node, in);
  for (int64_t& axis : axes) axis = wrap_dim(axis, in.at(0).dim(), "Squeeze");
  std::sort(axes.rbegin(), axes.rend());
  Tensor y = in[0];
  for (int64_t axis : axes) y = ops::squeeze(y, axis);
  return {y};
}
Tensors unsqueeze(const Node& node, const Tensors& in) {
  std::vector<int64_t> axes = axes_of(node, in);
  const int dims = in.at(0).dim() + static_cast<int>(axes.size());
  for (int64_t& axis : axes) axis = wrap_dim(axis, dims, "Unsqueeze");
  std::sort(axes.begin(), axes.end());
  Tensor y = in[0];
  for (int64_t axis : axes) y = ops::unsqueeze(y, axis);
  return {y};
}

Tensors expand(const Node&, const Tensors& in) {
  const Shape wanted(to_ints(in.at(1)));
  return {ops::expand(in[0], broadcast_shapes(in[0].shape(), wanted, "Expand"))};
}

Tensors tile(const Node&, const Tensors& in) {
  Tensor y = in.at(0);
  const std::vector<int64_t> repeats = to_ints(in.at(1));
  for (int i = 0; i < y.dim(); ++i) y = ops::cat(Tensors(repeats[i], y), i);
  return {y};
}

Tensors concat(const Node& node, const Tensors& in) { return {ops::cat(in, node.i("axis", 0))}; }

Tensors split(const Node& node, const Tensors& in) {
  const Tensor &x = in.at(0), given = optional(in, 1);
  const int64_t axis = node.i("axis", 0);
  std::vector<int64_t> sizes = given ? to_ints(given) : node.ints("split");
  const size_t parts = node.outputs.size();
  if (sizes.empty()) sizes.assign(parts, x.size(axis) / static_cast<int64_t>(parts));
  Tensors pieces;
  int64_t begin = 0;
  for (int64_t size : sizes) {
    pieces.push_back(ops::narrow(x, axis, begin, size));
    begin += size;
  }
  return pieces;
}

/// ops::slice, and for negative steps, which it lacks, a selection of the indices.
Tensors slice(const Node&, const Tensors& in) {
  Tensor y = in.at(0);
  const std::vector<int64_t> begins = to_ints(in.at(1)), ends = to_ints(in.at(2));
  const Tensor axes = optional(in, 3), steps = optional(in, 4);
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t axis = axes ? to_ints(axes)[i] : static_cast<int64_t>(i);
    const int64_t step = steps ? to_ints(steps)[i] : 1, n = y.size(axis);
    if (step > 0) {
      y = ops::slice(y, axis, begins[i], ends[i], step);
      continue;
    }
    const int64_t first = std::clamp<int64_t>(begins[i] < 0 ? begins[i] + n : begins[i], -1, n - 1);
    const int64_t last = std::clamp<int64_t>(ends[i] < 0 ? ends[i] + n : ends[i], -1, n - 1);
    std::vector<int64_t> taken;
    for (int64_t j = first; j > last; j += step) taken.push_back(j);
    y = ops::index_select(y, axis, indices_of(taken));
  }
  return {y};
}

Tensors gather(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int axis = wrap_dim(node.i("axis", 0), x.dim(), "Gather");
  const Tensor index = wrap_indices(in.at(1), x.size(axis));
  Shape shape = x.shape();
  shape.erase(axis);
  for (int i = 0; i < index.dim(); ++i) shape.insert(axis + i, index.size(i));
  return {ops::reshape(ops::index_select(x, axis, ops::reshape(index, {-1})), shape)};
}
Tensors gather_elements(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int64_t axis = node.i("axis", 0);
  return {ops::gather(x, axis, wrap_indices(in.at(1), x.size(axis)))};
}
Tensors scatter_elements(const Node& node, const Tensors& in) {
  const Tensor &x = in.at(0), &updates = in.at(2);
  const int64_t axis = node.i("axis", 0);
  const Tensor index = wrap_indices(in.at(1), x.size(axis));
  const std::string reduction = node.s("reduction", "none");
  if (reduction == "add") return {ops::scatter_add(x, axis, index, updates)};
  WEFT_CHECK(reduction == "none", "ScatterElements: Weft adds or assigns, it has no {}", reduction);
  const Tensor y = ops::clone(x);
  kernels::index({.kind = kernels::IndexKind::kScatter,
                  .x = updates,
                  .index = index,
                  .y = y,
                  .axis = wrap_dim(axis, x.dim(), "ScatterElements")});
  return {y};
}

/// values: what stands elsewhere, and at the index.
Tensors one_hot(const Node& node, const Tensors& in) {
  const int64_t depth = static_cast<int64_t>(in.at(1).item());
  const Tensor index = wrap_indices(ops::cast(in.at(0), DType::i64), depth), values = in.at(2);
  const Tensor hits = ops::one_hot(index, depth, DType::boolean);
  const int dims = hits.dim();
  Shape order;
  for (int i = 0; i + 1 < dims; ++i) order.push_back(i);
  order.insert(wrap_dim(node.i("axis", -1), dims, "OneHot"), dims - 1);
  return {
      ops::permute(ops::where(hits, ops::select(values, 0, 1), ops::select(values, 0, 0)), order)};
}

Tensors pad(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const std::vector<int64_t> pads = to_ints(in.at(1));
  const std::string mode = node.s("mode", "constant");
  const int dims = x.dim();
  Tensor y = x;
  if (mode == "constant") {
    Shape shape = x.shape();
    for (int i = 0; i < dims; ++i) shape[i] += pads[i] + pads[dims + i];
    const Tensor value = optional(in, 2);
    y = ops::full(shape, value ? value.item() : 0, x.dtype());
    Tensor inner = y;
    for (int i = 0; i < dims; ++i) inner = ops::narrow(inner, i, pads[i], x.size(i));
    ops::copy_(inner, x);
    return {y};
  }
  for (int i = 0; i < dims; ++i) {
    const int64_t last = x.size(i) - 1;
    std::vector<int64_t> taken;
    for (int64_t j = -pads[i]; j <= last + pads[dims + i]; ++j) {
      const bool reflect = mode == "reflect";
      taken.push_back(reflect ? std::min(std::abs(j), 2 * last - j)
                              : std::clamp<int64_t>(j, 0, last));
    }
    y = ops::index_select(y, i, indices_of(taken));
  }
  return {y};
}

/// Zeros below (or above) the k-th diagonal.
Tensors trilu(const Node& node, const Tensors& in) {
  const Tensor &x = in.at(0), k = optional(in, 1);
  const Tensor rows = ops::unsqueeze(ops::arange(0, x.size(-2)), 1);
  const Tensor diagonal = ops::sub(ops::arange(0, x.size(-1)), rows);
  const Tensor bound = Tensor::from(std::vector<int64_t>{k ? to_ints(k)[0] : 0}, {});
  const Tensor kept = node.i("upper", 1) ? ops::ge(diagonal, bound) : ops::le(diagonal, bound);
  return {ops::where(kept, x, constant_like(x, 0))};
}

Tensors depth_to_space(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int64_t b = node.i("blocksize", 1), n = x.size(0), h = x.size(2), w = x.size(3);
  const int64_t c = x.size(1) / (b * b);
  const Tensor y = node.s("mode", "DCR") == "DCR"
                       ? ops::permute(ops::reshape(x, {n, b, b, c, h, w}), {0, 3, 4, 1, 5, 2})
                       : ops::permute(ops::reshape(x, {n, c, b, b, h, w}), {0, 1, 4, 2, 5, 3});
  return {ops::reshape(y, {n, c, h * b, w * b})};
}
Tensors space_to_depth(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int64_t b = node.i("blocksize", 1), n = x.size(0), c = x.size(1);
  const int64_t h = x.size(2) / b, w = x.size(3) / b;
  const Tensor y = ops::permute(ops::reshape(x, {n, c, h, b, w, b}), {0, 3, 5, 1, 2, 4});
  return {ops::reshape(y, {n, c * b * b, h, w})};
}

constexpr OpType kOps[] = {
    {"Concat", kExact, concat},
    {"Constant", kExact, constant},
    {"ConstantOfShape", kExact, constant_of_shape},
    {"DepthToSpace", kExact, depth_to_space},
    {"Expand", kExact, expand},
    {"EyeLike", kExact, eye_like},
    {"Flatten", kExact, flatten},
    {"Gather", kExact, gather},
    {"GatherElements", kExact, gather_elements},
    {"Identity", kExact, identity},
    {"OneHot", kExact, one_hot},
    {"Pad", kExact, pad},
    {"Range", kExact, range},
    {"Reshape", kExact, reshape},
    {"Scatter", kExact, scatter_elements},
    {"ScatterElements", kExact, scatter_elements},
    {"Shape", kExact, shape},
    {"Size", kExact, size},
    {"Slice", kExact, slice},
    {"SpaceToDepth", kExact, space_to_depth},
    {"Split", kExact, split},
    {"Squeeze", kExact, squeeze},
    {"Tile", kExact, tile},
    {"Transpose", kExact, transpose},
    {"Trilu", kExact, trilu},
    {"Unsqueeze", kExact, unsqueeze},
};

}  // namespace

std::span<const OpType> shape_ops() { return kOps; }

}  // namespace weft::onnx
