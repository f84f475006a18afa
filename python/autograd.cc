// The tape, from Python: backward and grad, hooks, modes, and functions whose gradient is written
// in Python (python/weft/autograd.py makes classes of them).
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/checkpoint.h"
#include "autograd/fused.h"
#include "autograd/tape.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/exchange.h"
#include "python/scope.h"

namespace weft::python {
namespace {

using MaybeTensors = std::vector<MaybeTensor>;

Tensors tensors_of(const MaybeTensors& all) {
  Tensors tensors;
  for (const MaybeTensor& t : all) tensors.push_back(t.tensor);
  return tensors;
}

/// A hook that can be taken away, with all that it refers to: the tape itself keeps hooks as long
/// as the tensor.
template <class F>
class Hook {
 public:
  explicit Hook(F function) : kept_(std::make_shared<Kept>(new F(std::move(function)))) {}
  /// Null once it was taken away. Whoever calls it holds it meanwhile.
  std::shared_ptr<F> function() const { return *kept_; }
  std::function<void()> remover() const {
    return [kept = std::weak_ptr(kept_)] {
      if (const auto alive = kept.lock()) alive->reset();
    };
  }

 private:
  using Kept = std::shared_ptr<F>;
  std::shared_ptr<Kept> kept_;
};

struct HookHandle {
  std::function<void()> remove;
};

HookHandle add_hook(const Tensor& x, std::function<MaybeTensor(const Tensor&)> function) {
  WEFT_CHECK(x.requires_grad(), "register_hook: {} requires no gradient", x);
  const Hook hook(std::move(function));
  register_hook(x, [hook](const Tensor& gradient) {
    const auto function = hook.function();
    return function ? (*function)(gradient).tensor : Tensor();
  });
  return {hook.remover()};
}

HookHandle add_ready_hook(const Tensor& x, std::function<void()> function) {
  const Hook hook(std::move(function));
  register_ready_hook(x, [hook] {
    if (const auto function = hook.function()) (*function)();
  });
  return {hook.remover()};
}

/// (gradients of the outputs, saved tensors, which inputs need one) -> a gradient for each input.
using PythonBackward =
    std::function<MaybeTensors(const MaybeTensors&, const MaybeTensors&, const std::vector<bool>&)>;

/// record() for an operation whose outputs and gradient Python has computed.
Tensors record_function(const std::string& name, const Tensors& inputs, const Tensors& outputs,
                        const MaybeTensors& saved, PythonBackward backward) {
  Tensors fresh, kept;
  for (const Tensor& y : outputs) {
    fresh.push_back(detach(y));
    const auto is_its = [&](const Tensor& x) { return x.storage() == y.storage(); };
    if (std::ranges::any_of(inputs, is_its)) mark_shared(fresh.back());
  }
  std::vector<bool> is_kept;
  for (const MaybeTensor& s : saved) {
    is_kept.push_back(s.tensor.defined());
    if (!s.tensor.defined()) continue;
    // An output is to be saved as the tensor that carries the history.
    const auto output =
        std::ranges::find_if(outputs, [&](const Tensor& y) { return y.is_same(s.tensor); });
    kept.push_back(output == outputs.end() ? s.tensor : fresh[output - outputs.begin()]);
  }
  const auto count = static_cast<int>(inputs.size()), results = static_cast<int>(outputs.size());
  std::vector<Device> devices;
  for (const Tensor& x : inputs) devices.push_back(x.device());
  return record(
      name, inputs, fresh, kept, [=, backward = std::move(backward)](const Backward& b) -> Tensors {
        MaybeTensors gradients, saved;
        for (int i = 0; i < results; ++i) gradients.push_back({b.dy(i)});
        int next = 0;
        for (bool has : is_kept) saved.push_back({has ? b.saved(next++) : Tensor()});
        std::vector<bool> needs;
        for (int i = 0; i < count; ++i) needs.push_back(b.needs(i));
        Tensors result = tensors_of(backward(gradients, saved, needs));
        WEFT_CHECK(static_cast<int>(result.size()) == count,
                   "Function: backward returned {} gradients for {} tensors", result.size(), count);
        for (int i = 0; i < count; ++i) {
          WEFT_CHECK(!result[i].defined() || result[i].device() == devices[i],
                     "Function: backward returned {} for input {}, expected it on {}", result[i], i,
                     devices[i]);
        }
        return result;
      });
}

}  // namespace

void bind_autograd(nb::module_& m, nb::class_<Tensor>& tensor) {
  nb::class_<HookHandle>(m, "HookHandle", "What takes a hook away.")
      .def(
          "remove", [](HookHandle& h) { h.remove(); },
          "The hook is called no more, and what it refers to is released.");
  tensor
      .def_prop_rw(
          "requires_grad", &Tensor::requires_grad,
          [](Tensor& x, bool value) { x.set_requires_grad(value); },
          "Whether what is computed from it is recorded for backward.")
      .def_prop_rw(
          "grad", [](const Tensor& x) { return x.grad(); },
          [](const Tensor& x, const MaybeTensor& gradient) {
            const Tensor& g = gradient;
            WEFT_CHECK(!g.defined() || (g.shape() == x.shape() && g.dtype() == x.dtype() &&
                                        g.device() == x.device()),
                       "grad: expected the shape, dtype and device of {}, got {}", x, g);
            if (g.defined()) check_writable("grad", g);
            x.set_grad(g);
          },
          nb::for_setter(nb::arg("gradient").none()),
          "The accumulated gradient; None until backward() has run.")
      .def_prop_ro(
          "is_leaf",
          [](const Tensor& x) { return !x.requires_grad() || x.autograd()->requires_grad; },
          "Whether no recorded op made it.")
      .def_prop_ro(
          "grad_fn",
          [](const Tensor& x) -> std::optional<std::string> {
            if (!x.autograd() || !x.autograd()->grad_fn) return {};
            return x.autograd()->grad_fn->name;
          },
          "The name of the recorded op that made it, or None.")
      .def("requires_grad_", on_self<Tensor, bool>(&Tensor::set_requires_grad),
           "requires_grad"_a = true, "Sets requires_grad of a leaf, and returns the tensor.")
      .def("detach", &detach, "The same data without history.")
      .def("retain_grad", &retain_grad, "Keeps the gradient of an intermediate result in grad.")
      .def("register_hook", &add_hook, "hook"_a,
           "Calls hook(gradient) when backward has the gradient of this tensor; a tensor that it "
           "returns replaces it.")
      .def("register_post_accumulate_grad_hook", &add_ready_hook, "hook"_a,
           "Calls hook() once per backward, when a leaf's grad is complete.")
      .def(
          "backward",
          [](const Tensor& x, const MaybeTensor& gradient, std::optional<bool> retain_graph,
             bool create_graph) {
            backward(x, gradient,
                     {.retain_graph = retain_graph.value_or(create_graph),
                      .create_graph = create_graph});
          },
          "gradient"_a = nb::none(), "retain_graph"_a = nb::none(), "create_graph"_a = false,
          Unlocked(),
          "Adds d(self)/d(leaf) to the grad of every leaf that requires one. Without a gradient "
          "self must have one element.");
  m.def(
      "_grad",
      [](const Tensors& outputs, const Tensors& inputs, const MaybeTensors& gradients,
         bool retain_graph, bool create_graph, bool allow_unused) {
        return grad(outputs, inputs, tensors_of(gradients),
                    {.retain_graph = retain_graph,
                     .create_graph = create_graph,
                     .allow_unused = allow_unused});
      },
      Unlocked());
  m.def("_checkpoint", &checkpoint, Unlocked());
  m.def("_fused", &ops::fused, Unlocked());
  m.def("_record", &record_function);
  m.def("is_grad_enabled", &grad_enabled, "Whether this thread records operations.");
  m.def("_autocast_dtype", &autocast_dtype);

  bind_scope<GradMode, bool>(m, "_GradMode");
  bind_scope<AnomalyMode, bool>(m, "_AnomalyMode");
  bind_scope<Autocast, DType>(m, "_Autocast");
}

}  // namespace weft::python
