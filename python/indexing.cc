// x[...] and x[...] = y, by NumPy's rules.
//
// Integers, slices, None and ... give views. Integer and bool tensors, lists and arrays select
// elements: their indices broadcast against each other; what they select stands in their place
// where they stand side by side, else in front. Both kinds can be mixed.
#include <algorithm>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/exchange.h"

namespace weft::python {
namespace {

[[noreturn]] void fail_index(const std::string& reason) { throw nb::index_error(reason.c_str()); }

/// What is left of x[key] once its views are taken: indices into dimensions of `base`, as
/// ops::index takes them, or none.
struct Selection {
  Tensor base;
  Tensors indices;
  bool is_empty = false;  // they select no element
};

bool is_index(nb::handle item) {
  if (!PyIndex_Check(item.ptr()) || PyBool_Check(item.ptr()) || nb::isinstance<Tensor>(item)) {
    return false;
  }
  if (!nb::hasattr(item, "__array_interface__")) return true;
  // Of NumPy the integer scalars, which have no length; arrays without dimensions have the method.
  if (nb::hasattr(item, "__len__")) return false;
  const auto kind = nb::cast<std::string>(item.attr("dtype").attr("kind"));
  return kind == "i" || kind == "u";
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
  Reader(const Tensor& x, nb::handle key) : x_(x), base_(x) {
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
    for (size_t i = 0; i < items.size(); ++i) take(items[i], arrays_[i], x.dim() - consumed);
  }

  Selection result() const {
    Selection s{base_, indices_};
    if (!has_index()) return {base_};
    Shape picked;
    for (const Tensor& index : indices_) {
      try {
        if (index.defined()) picked = broadcast_shapes(picked, index.shape(), "index");
      } catch (const Error& error) {
        fail_index(error.what());
      }
    }
    s.is_empty = numel(picked) == 0 || base_.numel() == 0;
    if (!is_split_) return s;
    // What they select leads, as that of an index into the first dimensions does.
    Shape order;
    for (int d = 0; d < base_.dim(); ++d) order.push_back(d);
    std::stable_partition(order.begin(), order.end(), [&](int64_t d) {
      return d < std::ssize(indices_) && indices_[d].defined();
    });
    s.base = ops::permute(base_, order);
    std::erase_if(s.indices, [](const Tensor& index) { return !index.defined(); });
    return s;
  }

 private:
  bool has_index() const { return std::ranges::any_of(indices_, &Tensor::defined); }
  /// The dimension of base that comes next.
  int dim() const { return static_cast<int>(indices_.size()); }

  void take(nb::handle item, const Tensor& array, int skipped) {
    if (array.defined()) return take_array(array);
    if (is_index(item)) {
      const int64_t index = index_of(item);
      check_bounds(index);
      base_ = ops::select(base_, dim(), index);
      return;
    }
    is_interrupted_ = has_index();
    if (item.is_none()) {
      base_ = ops::unsqueeze(base_, dim());
    } else if (item.is(Py_Ellipsis)) {
      indices_.resize(indices_.size() + skipped);
      return;
    } else {
      const auto [begin, end, step, length] =
          nb::borrow<nb::slice>(item).compute(static_cast<size_t>(base_.shape()[dim()]));
      if (step <= 0) throw nb::value_error("a slice's step must be positive: use flip()");
      const bool is_whole =
          begin == 0 && step == 1 && static_cast<int64_t>(length) == base_.shape()[dim()];
      if (!is_whole) base_ = ops::slice(base_, dim(), begin, std::max(begin, end), step);
    }
    indices_.emplace_back();
  }

  void take_array(const Tensor& array) {
    is_split_ |= is_interrupted_;
    if (array.dtype() == DType::boolean) {
      if (array.dim() == 0) {  // a new dimension, of size 1 or 0
        base_ = ops::unsqueeze(base_, dim());
        return take_mask(ops::reshape(array, {1}));
      }
      return take_mask(array);
    }
    if (!is_integral(array.dtype()))
      fail_index(fmt::format("an index must be integer or bool, got {}", array));
    const Tensor index = ops::contiguous(ops::to(ops::cast(array, DType::i64), Device{}));
    for (int64_t i = 0; i < index.numel(); ++i) check_bounds(index.data<int64_t>()[i]);
    indices_.push_back(index);
  }

  void take_mask(const Tensor& mask) {
    for (int i = 0; i < mask.dim(); ++i) {
      if (mask.shape()[i] != base_.shape()[dim() + i]) {
        fail_index(fmt::format("a mask of shape {} does not match {} from dimension {} on",
                               mask.shape(), x_, dim()));
      }
    }
    const Tensor places = ops::nonzero(mask);
    for (int i = 0; i < mask.dim(); ++i) indices_.push_back(ops::select(places, 1, i));
  }

  void check_bounds(int64_t index) const {
    const int64_t size = base_.shape()[dim()];
    if (index < -size || index >= size) {
      fail_index(fmt::format("index {} is out of bounds for dimension {} of {}", index, dim(), x_));
    }
  }

  const Tensor x_;
  Tensors arrays_;
  Tensor base_;
  Tensors indices_;  // of the dimensions of base so far, undefined where there is none
  // A slice, None or ... stands between two of them, or behind the last one.
  bool is_split_ = false, is_interrupted_ = false;
};

Tensor get_item(const Tensor& x, nb::handle key) {
  const Selection s = Reader(x, key).result();
  if (s.indices.empty()) return s.base.is_same(x) ? ops::view(x, x.shape()) : s.base;
  const nb::gil_scoped_release unlocked;
  return ops::index(s.base, s.indices);
}

void set_item(const Tensor& x, nb::handle key, nb::handle value) {
  Selection s = Reader(x, key).result();
  Operand operand;
  Tensor values;
  if (nb::isinstance<Tensor>(value)) {
    values = nb::cast<Tensor>(value);
  } else if (read_number(value, operand)) {
    operand.check_fits("setitem", x);
    const bool is_rounded = operand.kind == Operand::Kind::kFloat && !is_floating(x.dtype());
    values = is_rounded ? Tensor::full({}, operand.real, DType::f64)
                        : operand.beside(Tensor::empty({0}, x.dtype()));
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
  } else if (s.is_empty) {
    ops::expand(values, ops::index(s.base, s.indices).shape());  // is refused as elsewhere
  } else {
    ops::copy_(s.base, ops::index_put(s.base, s.indices, values));
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
