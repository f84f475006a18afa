// Docstrings: the comments of the headers, so that each is written once (docstrings.py, BUILD).
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <utility>

namespace weft::python {

/// What a header says of "ops::softmax", "nn::Linear" or "optim::Optimizer::step"; "" where it says
/// nothing.
const char* comment_on(std::string_view name);
/// The same; throws InternalError where there is nothing: the name is another one now.
const char* docs(std::string_view name);

/// m.def() with the header's comment on ops::NAME; a docstring among `extra` takes its place.
template <class F, class... Extra>
void define_op(nanobind::module_& m, const char* name, F&& f, const Extra&... extra) {
  m.def(name, std::forward<F>(f), comment_on("ops::" + std::string(name)), extra...);
}

}  // namespace weft::python
