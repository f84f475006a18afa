// weft.Tensor: what it says of itself, and its values as Python's numbers.
#include <algorithm>
#include <utility>

#include "autograd/narrow_copies.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/exchange.h"

namespace weft::python {
namespace {

nb::object element(const Tensor& x, int64_t offset) {
  return visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) -> nb::object {
    const T value = x.data<T>()[offset];
    if constexpr (std::is_same_v<T, bool>) {
      return nb::bool_(value);
    } else if constexpr (std::is_integral_v<T>) {
      return nb::int_(static_cast<int64_t>(value));
    } else {
      return nb::float_(to_double(value));
    }
  });
}

Tensor on_cpu(const Tensor& x) {
  nb::gil_scoped_release unlocked;
  return ops::to(detach(x), Device{});
}

nb::object item(const Tensor& x) {
  WEFT_CHECK(x.numel() == 1, "item: expected a tensor of one element, got {}", x);
  return element(on_cpu(x), 0);
}

nb::object to_list(const Tensor& x, int dim, int64_t offset) {
  if (dim == x.dim()) return element(x, offset);
  nb::list list;
  for (int64_t i = 0; i < x.shape()[dim]; ++i)
    list.append(to_list(x, dim + 1, offset + i * x.strides()[dim]));
  return list;
}

bool is_sequence(nb::handle data) {
  return nb::isinstance<nb::list>(data) || nb::isinstance<nb::tuple>(data);
}

/// What nested lists hold: their shape, the widest kind of their numbers, and those in order.
struct Numbers {
  Shape shape;
  Operand::Kind kind = Operand::Kind::kBool;
  std::vector<Operand> values;

  explicit Numbers(nb::handle data) {
    for (nb::object level = nb::borrow(data); is_sequence(level);) {
      const size_t size = nb::len(level);
      if (shape.size() == kMaxDims)
        throw value_error("tensor: more than {} nested lists", kMaxDims);
      shape.push_back(static_cast<int64_t>(size));
      if (size == 0) break;
      level = level[0];
    }
    read(data, 0);
    if (values.empty()) kind = Operand::Kind::kFloat;
  }

 private:
  void read(nb::handle data, int dim) {
    if (is_sequence(data)) {
      // A copy: reading an element may call Python, which may change the list.
      const nb::tuple items(nb::borrow(data));
      const auto size = static_cast<int64_t>(items.size());
      if (dim == shape.size() || size != shape[dim]) {
        throw value_error("tensor: a list of {} elements in dimension {}, where the first has {}",
                          size, dim, dim < shape.size() ? shape[dim] : 0);
      }
      for (nb::handle item : items) read(item, dim + 1);
      return;
    }
    if (dim != shape.size()) {
      throw value_error("tensor: a number in dimension {}, where the first has a list", dim);
    }
    Operand value;
    if (nb::isinstance<Tensor>(data)) data = held_.emplace_back(item(nb::cast<Tensor>(data)));
    if (!read_number(data, value)) {
      throw type_error("tensor: expected numbers, got {} of type {}", nb::repr(data).c_str(),
                       type_of(data));
    }
    kind = std::max(kind, value.kind);
    values.push_back(value);
  }

  std::vector<nb::object> held_;
};
static_assert(Operand::Kind::kBool < Operand::Kind::kInt &&
              Operand::Kind::kInt < Operand::Kind::kFloat);

Tensor tensor_of_numbers(nb::handle data, const MaybeDType& dtype) {
  const Numbers numbers(data);
  const DType natural = numbers.kind == Operand::Kind::kFloat ? DType::f32
                        : numbers.kind == Operand::Kind::kInt ? DType::i64
                                                              : DType::boolean;
  const Tensor x = Tensor::empty(numbers.shape, dtype.value_or(natural));
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) {
    T* to = x.data<T>();
    for (const Operand& value : numbers.values) {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        if (value.kind != Operand::Kind::kFloat) {
          if (!std::in_range<T>(value.integer)) {
            throw value_error("tensor: {} does not fit in {}", value.integer, x.dtype());
          }
          *to++ = static_cast<T>(value.integer);
          continue;
        }
      }
      *to++ = from_double<T>(value.as_double());
    }
  });
  return x;
}

/// PyTorch's tensor(): always a copy.
Tensor make_tensor(nb::handle data, const MaybeDType& dtype, const MaybeDevice& device,
                   bool requires_grad) {
  Operand number;
  Tensor x;
  if (is_sequence(data) || read_number(data, number)) {
    x = tensor_of_numbers(data, dtype);
  } else {
    x = ops::clone(detach(import_array(data)));
  }
  if (dtype) x = ops::cast(x, *dtype);
  if (device) x = ops::to(x, *device);
  if (requires_grad) x.set_requires_grad(true);
  return x;
}

/// The same without a copy where that is possible.
Tensor as_tensor(nb::handle data, const MaybeDType& dtype, const MaybeDevice& device) {
  Operand number;
  Tensor x = is_sequence(data) || read_number(data, number) ? tensor_of_numbers(data, dtype)
                                                            : import_array(data);
  if (dtype) x = ops::cast(x, *dtype);
  return device ? ops::to(x, *device) : x;
}

/// x.to(dtype), x.to(device), x.to(device, dtype) or x.to(other).
Tensor to(const Tensor& x, const nb::args& where, MaybeDType dtype, MaybeDevice device, bool copy) {
  for (nb::handle argument : where) {
    if (nb::isinstance<Tensor>(argument)) {
      const auto& other = nb::cast<const Tensor&>(argument);
      dtype.object = other.dtype();
      device.object = other.device();
    } else if (DType given; read_dtype(argument, given)) {
      dtype.object = given;
    } else {
      device = nb::cast<MaybeDevice>(argument);
    }
  }
  nb::gil_scoped_release unlocked;
  Tensor y = x;
  if (dtype) y = ops::cast(y, *dtype);
  if (device) y = ops::to(y, *device);
  return copy && y.is_same(x) ? ops::clone(x) : y;
}

std::string scientific(double value, DType dtype) {
  return visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (int digits = 0;; ++digits) {
      const std::string text = fmt::format("{:.{}e}", value, digits);
      if (digits >= 17 || to_double(from_double<T>(std::strtod(text.c_str(), nullptr))) == value)
        return text;
    }
  });
}

}  // namespace

void bind_tensor(nb::module_& m, nb::class_<Tensor>& tensor) {
  m.def("tensor", &make_tensor, "data"_a, nb::kw_only(), "dtype"_a = nb::none(),
        "device"_a = nb::none(), "requires_grad"_a = false,
        "A copy of numbers, nested lists, arrays or a tensor. Without a dtype Python's floats are "
        "float32, ints int64; an array keeps its own.");
  m.def("as_tensor", &as_tensor, "data"_a, "dtype"_a = nb::none(), "device"_a = nb::none(),
        "As tensor(), but shares memory with arrays that have the dtype and lie on the device.");
  m.attr("asarray") = m.attr("as_tensor");
  m.def("_shortest", &scientific,
        "The fewest digits, as 1.25e+00, that are read back as this value of the dtype.");

  tensor.def_prop_ro("shape", &Tensor::shape, "The sizes, a tuple.")
      .def_prop_ro("dtype", &Tensor::dtype, "What the elements are.")
      .def_prop_ro(
          "device", [](const Tensor& x) { return x.device(); }, "Where they lie.")
      .def_prop_ro("ndim", &Tensor::dim, "How many dimensions there are.")
      .def_prop_ro("nbytes", &Tensor::nbytes, "Bytes of the elements.")
      .def_prop_ro("itemsize", &Tensor::itemsize, "Bytes of one element.")
      .def_prop_ro(
          "T",
          [](const Tensor& x) {
            Shape order;
            for (int i = x.dim() - 1; i >= 0; --i) order.push_back(i);
            return ops::permute(x, order);
          },
          "The dimensions in reverse: a view.")
      .def_prop_ro(
          "mT", [](const Tensor& x) { return ops::transpose(x, -2, -1); },
          "The matrices of the last two dimensions transposed: a view.")
      .def_prop_ro("_version", &Tensor::version, "How often the storage was changed in place.")
      .def("dim", &Tensor::dim, "How many dimensions there are.")
      .def("numel", &Tensor::numel, "How many elements there are.")
      .def("nelement", &Tensor::numel, "How many elements there are.")
      .def("element_size", &Tensor::itemsize, "Bytes of one element.")
      .def("storage_offset", &Tensor::offset,
           "Where the first element lies in the storage, in elements.")
      .def(
          "data_ptr",
          [](const Tensor& x) {
            forbid_narrow_copies(x);  // who writes there does not say so
            return reinterpret_cast<uintptr_t>(x.raw());
          },
          "The address of the first element.")
      .def("is_contiguous", &Tensor::is_contiguous,
           "Whether the elements lie in row-major order without gaps.")
      .def(
          "is_floating_point", [](const Tensor& x) { return is_floating(x.dtype()); },
          "Whether the dtype is floating.")
      .def("is_same", &Tensor::is_same, "other"_a,
           "Whether both are handles on one tensor, gradient and all.")
      .def(
          "size",
          [](const Tensor& x, std::optional<int64_t> dim) -> nb::object {
            return dim ? nb::int_(x.size(*dim)) : nb::cast(x.shape());
          },
          "dim"_a = nb::none(), "Of a dimension; of all, a tuple.")
      .def(
          "stride",
          [](const Tensor& x, std::optional<int64_t> dim) -> nb::object {
            return dim ? nb::int_(x.stride(*dim)) : nb::cast(x.strides());
          },
          "dim"_a = nb::none(), "In elements.")
      .def("item", &item, "The only element as a Python number. Waits for a device.")
      .def(
          "tolist",
          [](const Tensor& x) {
            const Tensor values = on_cpu(x);
            return to_list(values, 0, 0);
          },
          "Nested lists of Python numbers; of no dimensions a number.")
      .def("to", &to, "where"_a, "dtype"_a = nb::none(), "device"_a = nb::none(), "copy"_a = false,
           "x.to(dtype), x.to(device), x.to(device, dtype) or x.to(other).")
      .def("__len__",
           [](const Tensor& x) {
             if (x.dim() == 0) throw nb::type_error("len() of a tensor of no dimensions");
             return x.shape()[0];
           })
      .def("__bool__",
           [](const Tensor& x) {
             if (x.numel() != 1) {
               throw value_error("the truth of {} is ambiguous: use any() or all()", x);
             }
             return on_cpu(x).item() != 0;
           })
      .def("__float__", [](const Tensor& x) { return nb::float_(item(x)); })
      .def("__int__", [](const Tensor& x) { return nb::int_(item(x)); })
      .def("__index__",
           [](const Tensor& x) {
             if (is_floating(x.dtype()) || x.numel() != 1) {
               throw type_error("only an integer tensor of one element is an index, got {}", x);
             }
             return nb::int_(item(x));
           })
      .def("__hash__",
           [](const Tensor& x) {
             return static_cast<Py_ssize_t>(std::hash<const void*>()(x.id()) >> 4);
           })
      .def("__deepcopy__",
           [](const Tensor& x, nb::dict memo) {
             // By the tensor: of one there may be several objects.
             const nb::int_ key(reinterpret_cast<uintptr_t>(x.id()));
             if (memo.contains(key)) return nb::object(memo[key]);
             WEFT_CHECK(!x.requires_grad() || x.autograd()->requires_grad,
                        "deepcopy: {} is the result of a recorded op; use detach().clone()", x);
             Tensor y = ops::clone(detach(x));
             if (x.requires_grad()) y.set_requires_grad(true);
             const nb::object copied = nb::cast(y);
             memo[key] = copied;
             return copied;
           })
      .def("__copy__", [](const Tensor& x) { return x; });
}

}  // namespace weft::python
