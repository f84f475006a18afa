// How values cross between Python and C++: what nanobind cannot know of tensors, shapes and dtypes.
//
// An undefined tensor is None. Functions whose tensor may be undefined take a MaybeTensor; all
// others refuse None, so that none of them meets an undefined tensor.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>
#include <string_view>

#include "autograd/ops.h"
#include "core/tensor.h"
#include "python/errors.h"  // IWYU pragma: export

namespace weft::python {

namespace nb = nanobind;
using namespace nb::literals;

/// Kernels run without the interpreter's lock.
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

/// A method that calls `f` on the object and returns that very object.
template <class T, class... Arguments>
auto on_self(auto f) {
  return [f](nb::handle_t<T> self, Arguments... arguments) {
    std::invoke(f, nb::cast<T&>(self), arguments...);
    return nb::borrow(self);
  };
}

/// A tensor or None.
struct MaybeTensor {
  Tensor tensor;
  operator const Tensor&() const { return tensor; }
};

/// What stands beside a tensor in an operation: a tensor or a number.
struct Operand {
  enum class Kind : uint8_t { kTensor, kBool, kInt, kFloat } kind = Kind::kTensor;
  Tensor tensor;
  int64_t integer = 0;
  double real = 0;

  /// The tensor; of a number a 0-dim tensor of the dtype it has beside x: an int takes x's (i64
  /// beside bool) and wraps around in it, a float x's where that is floating, else f32.
  Tensor beside(const Tensor& x) const;
  /// The same for arithmetic, which rounds no number to 16 bits and gives result_dtype(x).
  Tensor term_beside(const Tensor& x) const;
  /// Of a number beside a floating x its dtype; else what dtypes are promoted to.
  std::optional<DType> result_dtype(const Tensor& x) const;
  /// Throws Error where x, of integers, would be given another number, but for what an unsigned
  /// dtype wraps of a negative int: of -1 all bits.
  void check_fits(std::string_view function, const Tensor& x) const;
  /// As beside(x) for comparisons, which wrap nothing: beside integers an int is i64.
  Tensor compared_with(const Tensor& x) const;
  bool is_number_beside_floats(const Tensor& x) const {
    return kind != Kind::kTensor && is_floating(x.dtype());
  }
  double as_double() const { return kind == Kind::kFloat ? real : static_cast<double>(integer); }
};

/// A device or a dtype, by object or by name, or None. A name is read when the function asks for
/// it, so that its Error says what names there are.
template <class T>
struct Named {
  std::optional<T> object;
  std::optional<std::string> name;

  explicit operator bool() const { return object || name; }
  T operator*() const { return object ? *object : parse(*name); }
  T value_or(T otherwise) const { return *this ? **this : otherwise; }

 private:
  static T parse(const std::string& name);
};
using MaybeDevice = Named<Device>;
using MaybeDType = Named<DType>;

/// A sequence of sizes written out as arguments, f(2, 3), or as one tuple or list, f((2, 3)).
/// Throws a TypeError naming `function`.
Shape shape_of_arguments(const nb::args& sizes, std::string_view function);

/// False, and no exception, for what is neither an int nor a sequence of at most kMaxDims of them.
bool read_shape(nb::handle source, Shape& shape) noexcept;
/// False, and no exception, for what is no number. NumPy's scalars are numbers.
bool read_number(nb::handle source, Operand& operand) noexcept;
/// A weft.dtype, or Python's own float, int and bool.
bool read_dtype(nb::handle source, DType& dtype) noexcept;
/// The one Python object that stands for a dtype.
nb::object dtype_object(DType dtype);
/// "float32": PyTorch's name.
std::string_view long_name(DType dtype);

}  // namespace weft::python

namespace nanobind::detail {

template <>
struct type_caster<weft::Tensor> : type_caster_base<weft::Tensor> {
  template <typename T>
  static handle from_cpp(T&& value, rv_policy policy, cleanup_list* cleanup) noexcept {
    if constexpr (!is_pointer_v<T>) {
      if (!value.defined()) return none().release();
    }
    return type_caster_base<weft::Tensor>::from_cpp(std::forward<T>(value), policy, cleanup);
  }
};

/// A number, which a tensor may be where that has no gradient to lose.
template <>
struct type_caster<double> {
  NB_TYPE_CASTER(double, const_name("float"))
  bool from_python(handle source, uint32_t flags, cleanup_list*) noexcept {
    const bool is_float = PyFloat_CheckExact(source.ptr());
    if (!is_float && (flags & cast_flags::convert) == 0) return false;
    weft::Tensor* tensor = nullptr;
    if (!is_float && try_cast(source, tensor, false) && tensor && tensor->requires_grad()) {
      return false;
    }
    value = PyFloat_AsDouble(source.ptr());
    if (value != -1 || !PyErr_Occurred()) return true;
    PyErr_Clear();
    return false;
  }
  static handle from_cpp(double number, rv_policy, cleanup_list*) noexcept {
    return PyFloat_FromDouble(number);
  }
};

template <>
struct type_caster<weft::python::MaybeTensor> {
  NB_TYPE_CASTER(weft::python::MaybeTensor, const_name("Tensor"))
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    value.tensor = {};
    if (source.is_none()) return true;
    make_caster<weft::Tensor> caster;
    if (!caster.from_python(source, flags, cleanup)) return false;
    value.tensor = static_cast<weft::Tensor&>(caster);
    return true;
  }
  static handle from_cpp(const weft::python::MaybeTensor& maybe, rv_policy policy,
                         cleanup_list* cleanup) noexcept {
    return make_caster<weft::Tensor>::from_cpp(maybe.tensor, policy, cleanup);
  }
};

template <>
struct type_caster<weft::python::Operand> {
  NB_TYPE_CASTER(weft::python::Operand, const_name("Tensor | float | int | bool"))
  bool from_python(handle source, uint32_t, cleanup_list* cleanup) noexcept {
    make_caster<weft::Tensor> caster;
    if (!source.is_none() && caster.from_python(source, 0, cleanup)) {
      value.tensor = static_cast<weft::Tensor&>(caster);
      return true;
    }
    return weft::python::read_number(source, value);
  }
};

template <class T>
struct type_caster<weft::python::Named<T>> {
  NB_TYPE_CASTER(weft::python::Named<T>, make_caster<T>::Name + const_name(" | str"))
  bool from_python(handle source, uint32_t, cleanup_list* cleanup) noexcept {
    value = {};
    if (source.is_none()) return true;
    if (PyUnicode_Check(source.ptr())) {
      const char* const text = PyUnicode_AsUTF8(source.ptr());
      if (!text) return PyErr_Clear(), false;
      value.name = text;
      return true;
    }
    make_caster<T> caster;
    if (!caster.from_python(source, 0, cleanup)) return false;
    value.object = caster.operator cast_t<T>();
    return true;
  }
};

template <>
struct type_caster<weft::Shape> {
  NB_TYPE_CASTER(weft::Shape, const_name("int | collections.abc.Sequence[int]"))
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    return weft::python::read_shape(source, value);
  }
  static handle from_cpp(const weft::Shape& shape, rv_policy, cleanup_list*) noexcept {
    PyObject* const tuple = PyTuple_New(shape.size());
    for (int i = 0; tuple && i < shape.size(); ++i)
      PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(shape[i]));
    return tuple;
  }
};

template <>
struct type_caster<weft::DType> {
  NB_TYPE_CASTER(weft::DType, const_name("dtype"))
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    return weft::python::read_dtype(source, value);
  }
  static handle from_cpp(weft::DType dtype, rv_policy, cleanup_list*) noexcept {
    return weft::python::dtype_object(dtype).release();
  }
};

template <>
struct type_caster<weft::ops::Size2d> {
  NB_TYPE_CASTER(weft::ops::Size2d, const_name("int | tuple[int, int]"))
  type_caster() : value(0) {}
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    weft::Shape shape;
    if (!weft::python::read_shape(source, shape) || shape.size() < 1 || shape.size() > 2)
      return false;
    value = weft::ops::Size2d(shape.front(), shape.back());
    return true;
  }
  static handle from_cpp(const weft::ops::Size2d& size, rv_policy, cleanup_list*) noexcept {
    return make_tuple(size[0], size[1]).release();
  }
};

}  // namespace nanobind::detail
