// The extension module weft._weft. The package weft around it (python/weft) adds what has to be
// written in Python.
#include <exception>
#include <typeinfo>

#include "core/signal_stack.h"
#include "core/version.h"
#include "kernels/instruction_set.h"
#include "python/bindings.h"
#include "python/casters.h"

NB_MODULE(_weft, m) {
  using namespace weft;
  using namespace weft::python;
  nb::set_leak_warnings(false);  // hooks and modules in reference cycles live as long as Python

  ensure_signal_stack();  // Python's own handlers take it
  kernels::apply_instruction_set_of_environment();

  m.attr("__version__") = WEFT_VERSION;
  nb::exception<Error>(m, "Error", PyExc_RuntimeError);
  nb::exception<InternalError>(m, "InternalError", PyExc_RuntimeError);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_cast&) {
      PyErr_SetString(PyExc_TypeError,
                      "an item of an argument, or what a function returned, has another type than "
                      "expected");
    }
  });
  bind_dtype(m);
  nb::class_<Device>(m, "device", "Where a tensor lives: device(\"cpu\"), device(\"cuda:1\")")
      .def("__init__", [](Device* self, const Device& other) { new (self) Device(other); })
      .def("__init__",
           [](Device* self, const std::string& text) { new (self) Device(parse_device(text)); })
      .def(nb::init_implicit<const Device&>())
      .def_prop_ro("type", [](const Device& d) { return name(d.type); })
      .def_ro("index", &Device::index)
      .def("__str__", [](const Device& d) { return to_string(d); })
      .def("__repr__", [](const Device& d) { return fmt::format("device(\"{}\")", d); })
      .def("__hash__", [](const Device& d) { return d.index * 16 + static_cast<int>(d.type); })
      .def("__eq__", [](const Device& a, const Device& b) { return a == b; })
      .def("__reduce__", [](const Device& d) {
        return nb::make_tuple(nb::type<Device>(), nb::make_tuple(to_string(d)));
      });
  nb::implicitly_convertible<std::string, Device>();

  nb::class_<Tensor> tensor(
      m, "Tensor", nb::type_slots(buffer_slots()),
      "A handle on storage, shape, strides, dtype and device. Views share storage and never copy.");
  bind_tensor(m, tensor);
  bind_exchange(m, tensor);
  bind_indexing(tensor);
  bind_ops(m, tensor);
  bind_autograd(m, tensor);
  bind_nn(m);
  bind_functional(m.def_submodule("functional"));
  bind_optim(m.def_submodule("optim"));
  bind_numerics(m.def_submodule("numerics"));
  bind_kernels(m.def_submodule("kernels"));
  bind_training(m);
  bind_torch(m.def_submodule("torch"));
  bind_dist(m.def_submodule("dist"));
}
