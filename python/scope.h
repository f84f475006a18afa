// C++ scopes as Python's context managers.
#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "python/casters.h"

namespace weft::python {

/// `with` enters a Scope(arguments...), which is left at the end of the block. Blocks of one object
/// may nest; they end on the thread that they began on.
template <class Scope, class... Arguments>
class Context {
 public:
  explicit Context(Arguments... arguments) : arguments_(std::move(arguments)...) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void enter() {
    scopes_.push_back(
        std::apply([](const auto&... a) { return std::make_unique<Scope>(a...); }, arguments_));
  }
  void exit() {
    WEFT_CHECK(!scopes_.empty(), "a context was left that was never entered");
    scopes_.pop_back();
  }

 private:
  std::tuple<Arguments...> arguments_;
  std::vector<std::unique_ptr<Scope>> scopes_;
};

template <class C>
nb::class_<C> bind_context(nb::module_& m, const char* name, const char* text = "") {
  return nb::class_<C>(m, name, text)
      .def("__enter__", on_self<C>(&C::enter))
      .def("__exit__", [](C& c, const nb::args&) { c.exit(); });
}

template <class Scope, class... Arguments>
void bind_scope(nb::module_& m, const char* name, const char* text = "") {
  bind_context<Context<Scope, Arguments...>>(m, name, text).def(nb::init<Arguments...>());
}

}  // namespace weft::python
