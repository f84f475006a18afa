#include "python/casters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "autograd/raw.h"
#include "python/bindings.h"

namespace weft::python {
namespace {

/// A dtype as an object of Python's, one for each.
struct DTypeObject {
  DType dtype;
};

struct Names {
  DType dtype;
  std::string_view name, alias;
};

// PyTorch's names. The others go by their own.
constexpr Names kNames[] = {
    {DType::f64, "float64", "double"},
    {DType::f32, "float32", "float"},
    {DType::f16, "float16", "half"},
    {DType::bf16, "bfloat16", "bfloat16"},
    {DType::f8e4m3, "float8_e4m3fn", "float8_e4m3fn"},
    {DType::f8e5m2, "float8_e5m2", "float8_e5m2"},
    {DType::i64, "int64", "long"},
    {DType::i32, "int32", "int"},
    {DType::u8, "uint8", "uint8"},
};

Names names_of(DType dtype) {
  const Names* const found = std::ranges::find(kNames, dtype, &Names::dtype);
  return found == std::end(kNames) ? Names{dtype, name(dtype), name(dtype)} : *found;
}

nb::str text_of(std::string_view text) { return nb::str(text.data(), text.size()); }

std::array<PyObject*, std::size(kAllDTypes)> objects;  // never freed: the module lives as long

}  // namespace

std::string_view long_name(DType dtype) { return names_of(dtype).name; }

nb::object dtype_object(DType dtype) { return nb::borrow(objects[static_cast<size_t>(dtype)]); }

bool read_dtype(nb::handle source, DType& dtype) noexcept {
  DTypeObject* object = nullptr;
  if (nb::try_cast(source, object) && object) {
    dtype = object->dtype;
    return true;
  }
  PyObject* const type = source.ptr();
  if (type == reinterpret_cast<PyObject*>(&PyFloat_Type)) return dtype = DType::f32, true;
  if (type == reinterpret_cast<PyObject*>(&PyLong_Type)) return dtype = DType::i64, true;
  if (type == reinterpret_cast<PyObject*>(&PyBool_Type)) return dtype = DType::boolean, true;
  return false;
}

template <>
DType Named<DType>::parse(const std::string& text) {
  for (const DType candidate : kAllDTypes) {
    const Names n = names_of(candidate);
    if (text == n.name || text == n.alias) return candidate;
  }
  return parse_dtype(text);
}

template <>
Device Named<Device>::parse(const std::string& text) {
  return parse_device(text);
}

bool read_shape(nb::handle source, Shape& shape) noexcept {
  shape = {};
  PyObject* const object = source.ptr();
  const auto append = [&](PyObject* item) {
    if (PyBool_Check(item) || PyFloat_Check(item)) return false;
    const Py_ssize_t size = PyNumber_AsSsize_t(item, PyExc_OverflowError);
    if (size == -1 && PyErr_Occurred()) return PyErr_Clear(), false;
    shape.push_back(size);
    return true;
  };
  if (PyTuple_Check(object) || PyList_Check(object)) {
    // Of a list a copy: an element's __index__ may change it.
    const nb::object items = nb::steal(PySequence_Tuple(object));
    if (!items.is_valid()) return PyErr_Clear(), false;
    const Py_ssize_t count = PyTuple_GET_SIZE(items.ptr());
    if (count > kMaxDims) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!append(PyTuple_GET_ITEM(items.ptr(), i))) return false;
    }
    return true;
  }
  return PyIndex_Check(object) && append(object);
}

Shape shape_of_arguments(const nb::args& sizes, std::string_view function) {
  Shape shape;
  const bool is_one = sizes.size() == 1 && !PyIndex_Check(nb::handle(sizes[0]).ptr());
  if (!read_shape(is_one ? nb::handle(sizes[0]) : nb::handle(sizes), shape)) {
    throw type_error("{}: expected at most {} integers, got {}", function, kMaxDims,
                     nb::repr(sizes).c_str());
  }
  return shape;
}

bool read_number(nb::handle source, Operand& operand) noexcept {
  PyObject* const object = source.ptr();
  if (PyFloat_Check(object)) {
    operand.kind = Operand::Kind::kFloat;
    operand.real = PyFloat_AS_DOUBLE(object);
    return true;
  }
  const bool is_bool = PyBool_Check(object);
  if (is_bool || PyLong_Check(object)) {
    int overflow = 0;
    operand.integer = PyLong_AsLongLongAndOverflow(object, &overflow);
    operand.kind = is_bool ? Operand::Kind::kBool : Operand::Kind::kInt;
    return overflow == 0;
  }
  // NumPy's scalars, but no arrays: those have a length.
  PyNumberMethods* const methods = Py_TYPE(object)->tp_as_number;
  if (!methods || PySequence_Check(object) || nb::hasattr(source, "__dlpack__")) {
    // NumPy gives its scalars the methods of sequences, too.
    if (!nb::hasattr(source, "dtype") || !nb::hasattr(source, "item") ||
        nb::hasattr(source, "__dlpack__"))
      return false;
  }
  const nb::object letter =
      nb::getattr(nb::getattr(source, "dtype", nb::none()), "kind", nb::none());
  const std::string_view kind =
      PyUnicode_Check(letter.ptr()) ? nb::borrow<nb::str>(letter).c_str() : "";
  if (kind == "b") {
    operand.integer = PyObject_IsTrue(object);
    operand.kind = Operand::Kind::kBool;
    return true;
  }
  // Their imaginary parts and units would be lost.
  if (kind == "c" || kind == "m" || kind == "M") return false;
  if (methods && methods->nb_index) {
    PyObject* const number = PyNumber_Index(object);
    if (!number) return PyErr_Clear(), false;
    int overflow = 0;
    operand.integer = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    operand.kind = Operand::Kind::kInt;
    return overflow == 0;
  }
  if (!methods || !methods->nb_float) return false;
  operand.real = PyFloat_AsDouble(object);
  if (operand.real == -1 && PyErr_Occurred()) return PyErr_Clear(), false;
  operand.kind = Operand::Kind::kFloat;
  return true;
}

namespace {

Tensor number_on(Device device, double value, DType dtype) {
  if (device.type == DeviceType::cpu && device.index == 0) return Tensor::full({}, value, dtype);
  return ops::full({}, value, dtype, device);
}

}  // namespace

Tensor Operand::beside(const Tensor& x) const {
  if (kind == Kind::kTensor) return tensor;
  DType dtype = x.dtype();
  if (kind == Kind::kFloat && !is_floating(dtype)) dtype = DType::f32;
  if (kind == Kind::kInt && dtype == DType::boolean) dtype = DType::i64;
  if (!is_floating(dtype) && dtype != DType::boolean) {  // beyond 2^53 a double is not enough
    const Tensor number = Tensor::empty({}, dtype);
    visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
      if constexpr (std::is_integral_v<T>) *number.data<T>() = static_cast<T>(integer);
    });
    return ops::to(number, x.device());
  }
  return number_on(x.device(), as_double(), dtype);
}

Tensor Operand::term_beside(const Tensor& x) const {
  if (!is_number_beside_floats(x)) return beside(x);
  return number_on(x.device(), as_double(), raw::number_dtype(x.dtype(), as_double()));
}

std::optional<DType> Operand::result_dtype(const Tensor& x) const {
  return is_number_beside_floats(x) ? std::optional(x.dtype()) : std::nullopt;
}

void Operand::check_fits(std::string_view function, const Tensor& x) const {
  if (kind == Kind::kTensor || is_floating(x.dtype()) || x.dtype() == DType::boolean) return;
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_integral_v<T>) {
      constexpr T kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
      constexpr int64_t kLowest = std::is_signed_v<T> ? int64_t{kLow} : -int64_t{kHigh};
      const double whole = std::trunc(real);
      // Of int64 kHigh rounds up to 2^63, which does not fit.
      const bool fits = kind == Kind::kFloat ? whole >= static_cast<double>(kLow) &&
                                                   whole < static_cast<double>(kHigh / 2 + 1) * 2
                                             : integer >= kLowest && integer <= int64_t{kHigh};
      WEFT_CHECK(fits, "{}: expected a number from {} to {}, which {} holds, got {}", function,
                 int64_t{kLow}, int64_t{kHigh}, long_name(x.dtype()),
                 kind == Kind::kFloat ? fmt::format("{}", real) : fmt::format("{}", integer));
    }
  });
}

Tensor Operand::compared_with(const Tensor& x) const {
  return kind == Kind::kInt && !is_floating(x.dtype())
             ? beside(Tensor::empty({0}, DType::i64, x.device()))
             : beside(x);
}

void bind_dtype(nb::module_& m) {
  nb::class_<DTypeObject>(m, "dtype", "The element type of a tensor: weft.float32, ...")
      .def_prop_ro(
          "name", [](const DTypeObject& d) { return long_name(d.dtype); }, "PyTorch's name")
      .def_prop_ro(
          "short_name", [](const DTypeObject& d) { return name(d.dtype); },
          "Weft's own name: \"f32\"")
      .def_prop_ro(
          "itemsize", [](const DTypeObject& d) { return itemsize(d.dtype); }, "Bytes of an element")
      .def_prop_ro("is_floating_point", [](const DTypeObject& d) { return is_floating(d.dtype); })
      .def("__repr__",
           [](const DTypeObject& d) { return fmt::format("weft.{}", long_name(d.dtype)); })
      // Pickled by name: there is one object of each.
      .def("__reduce__", [](const DTypeObject& d) { return long_name(d.dtype); });
  for (const DType dtype : kAllDTypes) {
    nb::object object = nb::cast(DTypeObject{dtype});
    objects[static_cast<size_t>(dtype)] = object.inc_ref().ptr();
    m.attr(text_of(names_of(dtype).name)) = object;
    m.attr(text_of(names_of(dtype).alias)) = object;
  }
  m.def("promote_types", &promote, "a"_a, "b"_a,
        "The type that holds the result of an op on both: the wider of two floats, the float of a "
        "float and an integer, the wider integer. bool gives way to everything.");
}

}  // namespace weft::python
