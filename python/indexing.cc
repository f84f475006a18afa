// x[...] and x[...] = y, by NumPy's rules.
//
// Integers, slices, None and ... give views. Integer and bool tensors, lists and arrays select
// elements: their indices broadcast against each other; what they select stands in their place
// where they stand side by side, else in front. Both kinds can be mixed.
#include <algorithm>
#include <optional>

#include "autograd/ops.h"
#include "core/view.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/exchange.h"

namespace weft::python {
namespace {

[[noreturn]] void fail_index(const std::string& reason) { throw nb::index_error(reason.c_str()); }

/// What is left of x[key] once its views are taken: indices into some dimensions of `base`.
struct Selection {
  Tensor base;
  std::vector<std::pair<int, Tensor>> indices;  // dimension of base; i64 on the CPU, contiguous
  bool is_split = false;                        // a slice, None or ... stands between two indices
};

/// The indices of the true elements, a vector for each dimension.
Tensors nonzero(const Tensor& mask) {
  std::vector<std::vector<int64_t>> found(mask.dim());
  const Tensor on_cpu = ops::contiguous(ops::to(mask, Device{}));
  const bool* const is_set = on_cpu.data<bool>();
  const Strides strides = contiguous_strides(mask.shape());
  for (int64_t i = 0; i < mask.numel(); ++i) {
    if (!is_set[i]) continue;
    for (int d = 0; d < mask.dim(); ++d) found[d].push_back(i / strides[d] % mask.shape()[d]);
  }
  Tensors indices;
  for (const auto& along : found)
    indices.push_back(Tensor::from(along, {static_cast<int64_t>(along.size())}));
  return indices;
}

bool is_index(nb::handle item) {
  return PyIndex_Check(item.ptr()) && !PyBool_Check(item.ptr()) && !nb::isinstance<Tensor>(item) &&
         !nb::hasattr(item, "__array_interface__");
}

int64_t index_of(nb::handle item) {
  const Py_ssize_t index = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
  if (index == -1 && PyErr_Occurred()) throw nb::python_error();
  return index;
}

/// Of a list, an array or a tensor.
Tensor tensor_of_index(nb::handle item) {
  if (nb::isinstance<nb::list>(item) || nb::isinstance<nb::tuple>(item) ||
      PyBool_Check(item.ptr())) {
    Tensor x = nb::cast<Tensor>(nb::module_::import_("weft._weft").attr("tensor")(item));
    return x.numel() == 0 ? ops::cast(x, DType::i64) : x;
  }
  Tensor x;
  try {
    x = import_array(item);
  } catch (const nb::builtin_exception&) {
    fail_index(
        fmt::format("expected integers, slices, None, ..., and integer or bool arrays, got {}",
                    nb::repr(item).c_str()));
  }
  return x;
}

/// Takes the views of a key one after the other.
class Reader {
 public:
  Reader(const Tensor& x, nb::handle key) : x_(x) {
    const nb::tuple items =
        nb::isinstance<nb::tuple>(key) ? nb::borrow<nb::tuple>(key) : nb::make_tuple(key);
    int consumed = 0, ellipses = 0;
    for (nb::handle item : items) {
      if (item.is(Py_Ellipsis)) {
        ++ellipses;
      } else if (!item.is_none()) {
        const bool is_array = !is_index(item) && !PySlice_Check(item.ptr());
        arrays_.push_back(is_array ? tensor_of_index(item) : Tensor());
        consumed += is_array && arrays_.back().dtype() == DType::boolean ? arrays_.back().dim() : 1;
        continue;
      }
      arrays_.emplace_back();
    }
    if (ellipses > 1) fail_index("an index has at most one ...");
    // Beside arrays integers are arrays, too: of no dimensions.
    if (std::ranges::any_of(arrays_, &Tensor::defined)) {
      for (size_t i = 0; i < items.size(); ++i) {
        if (is_index(items[i])) arrays_[i] = Tensor::from(std::vector{index_of(items[i])}, {});
      }
    }
    if (consumed > x.dim()) fail_index(fmt::format("{} indices for {}", consumed, x));
    selection_.base = x;
    for (size_t i = 0; i < items.size(); ++i) take(items[i], arrays_[i], x.dim() - consumed);
  }

  Selection result() { return std::move(selection_); }

 private:
  void take(nb::handle item, const Tensor& array, int skipped) {
    Tensor& base = selection_.base;
    if (array.defined()) {
      take_array(array);
      return;
    }
    if (is_index(item)) {
      const int64_t index = index_of(item);
      const int64_t size = base.shape()[dim_];
      if (index < -size || index >= size) {
        fail_index(
            fmt::format("index {} is out of bounds for dimension {} of {}", index, dim_, x_));
      }
      base = ops::select(base, dim_, index);
      return;
    }
    is_interrupted_ = !selection_.indices.empty();
    if (item.is_none()) {
      base = ops::unsqueeze(base, dim_++);
    } else if (item.is(Py_Ellipsis)) {
      dim_ += skipped;
    } else {
      const auto [begin, end, step, length] =
          nb::borrow<nb::slice>(item).compute(static_cast<size_t>(base.shape()[dim_]));
      if (step <= 0) throw nb::value_error("a slice's step must be positive: use flip()");
      const bool is_whole =
          begin == 0 && step == 1 && static_cast<int64_t>(length) == base.shape()[dim_];
      if (!is_whole) base = ops::slice(base, dim_, begin, std::max(begin, end), step);
      ++dim_;
    }
  }

  void take_array(const Tensor& array) {
    selection_.is_split |= is_interrupted_;
    if (array.dtype() == DType::boolean) {
      if (array.dim() == 0) {  // a new dimension, of size 1 or 0
        selection_.base = ops::unsqueeze(selection_.base, dim_);
        add_index(nonzero(ops::reshape(array, {1}))[0]);
        return;
      }
      for (int i = 0; i < array.dim(); ++i) {
        if (array.shape()[i] != selection_.base.shape()[dim_ + i]) {
          fail_index(fmt::format("a mask of shape {} does not match {} from dimension {} on",
                                 array.shape(), x_, dim_));
        }
      }
      for (const Tensor& index : nonzero(array)) add_index(index);
      return;
    }
    if (!is_integral(array.dtype()))
      fail_index(fmt::format("an index must be integer or bool, got {}", array));
    add_index(ops::contiguous(ops::to(ops::cast(array, DType::i64), Device{})));
  }

  void add_index(const Tensor& index) {
    const int64_t size = selection_.base.shape()[dim_];
    for (int64_t i = 0; i < index.numel(); ++i) {
      const int64_t at = index.data<int64_t>()[i];
      if (at < -size || at >= size) {
        fail_index(fmt::format("index {} is out of bounds for dimension {} of {}", at, dim_, x_));
      }
    }
    selection_.indices.emplace_back(dim_++, index);
  }

  const Tensor x_;
  Tensors arrays_;
  Selection selection_;
  int dim_ = 0;
  bool is_interrupted_ = false;
};

/// A selection as rows: base with the indexed dimensions in front, and one flat index into them.
struct Rows {
  Tensor matrix;  // [indexed..., rest...]
  Tensor index;   // i64 [n], on base's device
  Shape indexed, rest;
  Shape picked;   // of the indices, broadcast: n elements
  int place = 0;  // where `picked` stands among the dimensions of the result

  explicit Rows(const Selection& s) {
    Shape front, back;
    for (int d = 0; d < s.base.dim(); ++d) {
      const bool is_indexed =
          std::ranges::any_of(s.indices, [d](const auto& i) { return i.first == d; });
      (is_indexed ? front : back).push_back(d);
      (is_indexed ? indexed : rest).push_back(s.base.shape()[d]);
    }
    place = s.is_split ? 0 : static_cast<int>(front.front());
    for (const auto& [dim, index] : s.indices) {
      try {
        picked = broadcast_shapes(picked, index.shape(), "index");
      } catch (const Error& error) {
        fail_index(error.what());
      }
    }
    for (int64_t d : back) front.push_back(d);
    matrix = ops::permute(s.base, front);
    Tensor flat = Tensor::zeros(picked, DType::i64);
    for (size_t i = 0; i < s.indices.size(); ++i) {
      const int64_t size = indexed[static_cast<int>(i)];
      const Tensor along = view::expand(s.indices[i].second, picked);
      int64_t* to = flat.data<int64_t>();
      for_each_offset(along.shape(), along.strides(), [&](int64_t at) {
        const int64_t value = along.data<int64_t>()[at];
        *to = *to * size + (value < 0 ? value + size : value);
        ++to;
      });
    }
    index = ops::to(ops::reshape(flat, {flat.numel()}), s.base.device());
  }

  /// The dimensions `picked`, then `rest`, put where the result has them; and back.
  Shape order(bool inverse) const {
    Shape shape;
    const int n = picked.size(), all = n + rest.size();
    for (int d = 0; d < all; ++d) {
      const int from = d < place ? n + d : d < place + n ? d - place : d;
      const int to = d < n ? d + place : d - n < place ? d - n : d;
      shape.push_back(inverse ? to : from);
    }
    return shape;
  }
  Tensor flat() const {
    Shape shape = rest;
    shape.insert(0, numel(indexed));
    return ops::reshape(matrix, shape);
  }
  Shape picked_then_rest() const {
    Shape shape = picked;
    for (int64_t size : rest) shape.push_back(size);
    return shape;
  }
};

Tensor get_item(const Tensor& x, nb::handle key) {
  const Selection s = Reader(x, key).result();
  if (s.indices.empty()) return s.base.is_same(x) ? ops::view(x, x.shape()) : s.base;
  const nb::gil_scoped_release unlocked;
  const Rows rows(s);
  const Tensor picked = ops::index_select(rows.flat(), 0, rows.index);
  return ops::permute(ops::reshape(picked, rows.picked_then_rest()), rows.order(false));
}

/// base with `values` at the selected places; of values for one place the last.
Tensor with_items(const Selection& s, const Tensor& values) {
  const Rows rows(s);
  Shape shape;
  for (int64_t d : rows.order(false)) shape.push_back(rows.picked_then_rest()[static_cast<int>(d)]);
  const Tensor spread = ops::permute(ops::expand(values, shape), rows.order(true));
  Shape flat_shape = rows.rest;
  flat_shape.insert(0, rows.index.numel());
  const Tensor sources = ops::reshape(spread, flat_shape);

  const int64_t count = numel(rows.indexed);
  const Tensor source = Tensor::zeros({count}, DType::i64);
  const Tensor is_hit = Tensor::zeros({count}, DType::boolean);
  const Tensor index = ops::to(rows.index, Device{});
  for (int64_t i = 0; i < index.numel(); ++i) {
    source.data<int64_t>()[index.data<int64_t>()[i]] = i;
    is_hit.data<bool>()[index.data<int64_t>()[i]] = true;
  }
  Shape mask_shape = Shape::filled(rows.rest.size() + 1, 1);
  mask_shape[0] = count;
  const Device device = s.base.device();
  const Tensor placed = ops::index_select(sources, 0, ops::to(source, device));
  const Tensor flat =
      ops::where(ops::to(ops::reshape(is_hit, mask_shape), device), placed, rows.flat());
  Shape front = rows.indexed;
  for (int64_t size : rows.rest) front.push_back(size);
  Shape back(s.base.shape());
  int next = 0, rest = static_cast<int>(s.indices.size());
  for (int d = 0; d < s.base.dim(); ++d) {
    const bool is_indexed =
        std::ranges::any_of(s.indices, [d](const auto& i) { return i.first == d; });
    back[d] = is_indexed ? next++ : rest++;
  }
  return ops::permute(ops::reshape(flat, front), back);
}

void set_item(const Tensor& x, nb::handle key, nb::handle value) {
  Selection s = Reader(x, key).result();
  Operand operand;
  Tensor values;
  if (nb::isinstance<Tensor>(value)) {
    values = nb::cast<Tensor>(value);
  } else if (read_number(value, operand)) {
    values = operand.beside(Tensor::empty({0}, x.dtype()));
  } else {
    values = nb::cast<Tensor>(nb::module_::import_("weft._weft").attr("as_tensor")(value));
  }
  check_writable("setitem", x);
  const nb::gil_scoped_release unlocked;
  values = ops::to(ops::cast(values, x.dtype()), x.device());
  if (s.indices.empty()) {
    // Leading dimensions of size 1 are dropped, as NumPy does.
    while (values.dim() > s.base.dim() && values.shape()[0] == 1) values = ops::squeeze(values, 0);
    ops::copy_(s.base, values);
  } else if (numel(Rows(s).picked_then_rest()) > 0) {
    ops::copy_(s.base, with_items(s, values));
  }
}

}  // namespace

void bind_indexing(nb::class_<Tensor>& tensor) {
  tensor.def("__getitem__", &get_item, nb::arg("key").none())
      .def("__setitem__", &set_item, nb::arg("key").none(), "value"_a)
      .def("__iter__", [](const Tensor& x) {
        if (x.dim() == 0) throw nb::type_error("iteration over a tensor of no dimensions");
        nb::list rows;
        for (int64_t i = 0; i < x.shape()[0]; ++i) rows.append(ops::select(x, 0, i));
        return nb::iter(rows);
      });
}

}  // namespace weft::python
