// A program's calls of a model that was set up, by any arguments.
#pragma once

#include "python/casters.h"
#include "train/fabric.h"

namespace weft::python {

/// model(*arguments, **options) of a model that has a route (nn/module.h). Where its strategy calls
/// functions, any arguments go: the tensors among them, also in tuples, lists, dicts and
/// dataclasses, are moved and cast as the Fabric says, and so are those that come back. Elsewhere
/// one tensor goes in and out; else a TypeError names the strategy.
nb::object call_set_up(nb::handle model, const nb::args& arguments, const nb::kwargs& options);

/// module(*arguments, **options) of one without a route for which a function stands in: of one
/// tensor, or a TypeError.
nb::object call_stand_in(nb::handle module, const nb::args& arguments, const nb::kwargs& options);

/// The same for fabric.forward(model, ...), which gives the logits of some classes, too.
nb::object forward_of(train::Fabric& fabric, nb::handle model, const nb::args& arguments,
                      const nb::kwargs& options);

/// What function() returns, called as the model would be. A TypeError where it holds no tensor.
nb::object forward_of(train::Fabric& fabric, nn::Module& model, const nb::callable& function);

/// From here on forward() of a model that was set up, of a class written in Python, throws an Error
/// where the program calls it outside of a call of the model, and it would run otherwise there.
void watch_forward(nb::handle model);

}  // namespace weft::python
