#include "python/model_call.h"

#include <utility>

#include "python/containers.h"
#include "python/modules.h"

namespace weft::python {
namespace {

using nn::Module;
using train::Fabric;

/// Why a layer that was cut over ranks, or that computes again, takes no other arguments.
constexpr const char* kStandIn = "expected one tensor: a function stands in for this layer's own";

/// "Net(Tensor, mask=None)".
std::string text_of(nb::handle model, const nb::args& arguments, const nb::kwargs& options) {
  std::string list;
  const auto add = [&](const std::string& text) { list += (list.empty() ? "" : ", ") + text; };
  for (nb::handle argument : arguments) add(type_of(argument));
  for (const auto& [name, value] : options) {
    add(fmt::format("{}={}", nb::cast<std::string>(name), type_of(value)));
  }
  return fmt::format("{}({})", type_of(model), list);
}

/// Null: there are other arguments than one tensor.
const Tensor* one_tensor(const nb::args& arguments, const nb::kwargs& options) {
  const bool is_one =
      arguments.size() == 1 && options.size() == 0 && nb::isinstance<Tensor>(arguments[0]);
  return is_one ? &nb::cast<const Tensor&>(arguments[0]) : nullptr;
}

/// What call() returns, without the interpreter's lock, of one tensor.
template <class Call>
nb::object of_one_tensor(const std::string& why, nb::handle model, const nb::args& arguments,
                         const nb::kwargs& options, const Call& call) {
  const Tensor* const x = one_tensor(arguments, options);
  if (!x) {
    throw type_error("{}: {}", text_of(model, arguments, options), why);
  }
  const Tensor y = [&] {
    const nb::gil_scoped_release unlocked;
    return call(*x);
  }();
  return nb::cast(y);
}

using Led = std::function<Tensors(const std::function<Tensors()>&)>;

/// What call() returns, with its tensors as lead() hands them on.
nb::object led(const Led& lead, const std::function<nb::object()>& call) {
  nb::object result;
  Tensors before;
  const Tensors after = [&] {
    const nb::gil_scoped_release unlocked;
    return lead([&] {
      const nb::gil_scoped_acquire locked;
      result = call();
      with_each_leaf(result, [&](nb::handle leaf) {  // as often as below
        if (nb::isinstance<Tensor>(leaf)) before.push_back(nb::cast<Tensor>(leaf));
        return nb::borrow(leaf);
      });
      return before;
    });
  }();
  auto next = after.begin();
  return with_each_leaf(result, [&](nb::handle leaf) {
    if (!nb::isinstance<Tensor>(leaf)) return nb::borrow(leaf);
    const Tensor& y = *next++;
    return y.is_same(nb::cast<const Tensor&>(leaf)) ? nb::borrow(leaf) : nb::cast(y);
  });
}

/// A call that the Fabric's strategy shares out as a function.
nb::object call_function(const Fabric& fabric, const Led& lead, nb::handle model,
                         const nb::args& arguments, const nb::kwargs& options) {
  auto& module = nb::cast<Module&>(model);
  // What comes first may be an image of bytes.
  bool is_first = arguments.size() > 0 && nb::isinstance<Tensor>(arguments[0]);
  const auto input = [&](nb::handle leaf) -> nb::object {
    if (!nb::isinstance<Tensor>(leaf)) return nb::borrow(leaf);
    const auto& x = nb::cast<const Tensor&>(leaf);
    const Tensor here = fabric.input(x, std::exchange(is_first, false));
    return here.is_same(x) ? nb::borrow(leaf) : nb::cast(here);
  };
  // Containers that a model keeps or fills are the caller's, where nothing in them moves.
  const nb::object moved = with_each_leaf(arguments, input);
  const nb::object moved_options = with_each_leaf(options, input);
  return led(lead, [&]() -> nb::object {
    const auto given = nb::borrow<nb::args>(moved);
    const auto named = nb::borrow<nb::kwargs>(moved_options);
    // What has no function of Python's.
    if (module.has_stand_in() || model.type().is(nb::type<Module>())) {
      return of_one_tensor(kStandIn, model, given, named,
                           [&](const Tensor& x) { return module.unrouted(x); });
    }
    return model.attr("forward")(*given, **named);
  });
}

}  // namespace

nb::object call_stand_in(nb::handle module, const nb::args& arguments, const nb::kwargs& options) {
  return of_one_tensor(kStandIn, module, arguments, options,
                       [&](const Tensor& x) { return nb::cast<Module&>(module)(x); });
}

nb::object call_set_up(nb::handle model, const nb::args& arguments, const nb::kwargs& options) {
  auto& module = nb::cast<Module&>(model);
  Fabric* const fabric = Fabric::of(module);
  if (fabric && fabric->strategy().calls_functions()) {
    const auto lead = [&](const std::function<Tensors()>& call) {
      return fabric->lead(module, call);
    };
    return call_function(*fabric, lead, model, arguments, options);
  }
  const std::string why =
      fabric ? fmt::format(
                   "expected one tensor: strategy {} calls a model as model(x), and hands one on; "
                   "put all into it, or train with ddp, fsdp or tp, which take any arguments",
                   fabric->options().strategy.name)
             : "expected one tensor: a model that was dispatched, or whose Fabric is gone, is "
               "called as model(x)";
  return of_one_tensor(why, model, arguments, options, [&](const Tensor& x) { return module(x); });
}

void watch_forward(nb::handle model) {
  nb::module_::import_("weft.nn").attr("_watch_forward")(model);
}

nb::object forward_of(Fabric& fabric, nb::handle model, const nb::args& arguments,
                      const nb::kwargs& options) {
  auto& module = nb::cast<Module&>(model);
  if (!fabric.strategy().calls_functions()) return call_set_up(model, arguments, options);
  const auto lead = [&](const std::function<Tensors()>& call) {
    return fabric.forward(module, call);
  };
  return call_function(fabric, lead, model, arguments, options);
}

nb::object forward_of(Fabric& fabric, Module& model, const nb::callable& function) {
  const auto lead = [&](const std::function<Tensors()>& call) {
    return fabric.forward(model, call);
  };
  return led(lead, [&]() -> nb::object {
    const nb::object result = function();
    bool has_tensors = false;
    for_each_leaf(result, [&](nb::handle leaf) { has_tensors |= nb::isinstance<Tensor>(leaf); });
    if (has_tensors) return result;
    throw type_error("forward: expected a tensor from the function, got a {}", type_of(result));
  });
}

}  // namespace weft::python
