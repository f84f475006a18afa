"""Gradients: modes, grad(), checkpointing, and functions whose gradient is written in Python."""

import contextlib

from weft import _weft
from weft._weft import Tensor


class _Scope(contextlib.ContextDecorator):
    """A C++ scope: for a block, or for the function that it decorates."""

    def __init__(self, scope):
        self._scope = scope

    def __enter__(self):
        self._scope.__enter__()
        return self

    def __exit__(self, *error):
        self._scope.__exit__(*error)


class set_grad_enabled(_Scope):
    """Turns recording on or off."""

    def __init__(self, mode):
        super().__init__(_weft._GradMode(mode))


class no_grad(set_grad_enabled):
    """Records nothing."""

    def __init__(self):
        super().__init__(False)


class enable_grad(set_grad_enabled):
    """Records, inside of no_grad()."""

    def __init__(self):
        super().__init__(True)


inference_mode = no_grad


class detect_anomaly(_Scope):
    """Checks every recorded op and every gradient for NaN: the first one to make one is an Error that names it."""

    def __init__(self, mode=True):
        super().__init__(_weft._AnomalyMode(mode))


class autocast(_Scope):
    """Matrix products run on bfloat16 or float16 operands; sums, normalisations and losses in float32."""

    def __init__(self, device_type="cpu", dtype=None, enabled=True):
        if isinstance(device_type, _weft.dtype):  # autocast(weft.bfloat16)
            dtype = device_type
        super().__init__(_weft._Autocast((dtype or _weft.bfloat16) if enabled else _weft.float32))


def _several(tensors):
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=False):
    """The gradients of the outputs with respect to the inputs, as a tuple. No .grad changes.

    An input that played no part is an Error, or None where allow_unused is set."""
    gradients = [] if grad_outputs is None else _several(grad_outputs)
    retain = create_graph if retain_graph is None else retain_graph
    return tuple(
        _weft._grad(_several(outputs), _several(inputs), gradients, retain, create_graph, allow_unused)
    )


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False):
    """Adds the gradients of all tensors to their leaves."""
    tensors = _several(tensors)
    gradients = [None] * len(tensors) if grad_tensors is None else _several(grad_tensors)
    if len(gradients) != len(tensors):
        raise ValueError(f"backward: expected a gradient, or None, for each of {len(tensors)} tensors, got {len(gradients)}")
    for i, (tensor, gradient) in enumerate(zip(tensors, gradients)):
        last = i + 1 == len(tensors)
        tensor.backward(gradient, (create_graph if retain_graph is None else retain_graph) or not last, create_graph)


def checkpoint(function, *inputs):
    """function(*inputs), keeping only the inputs: what lies between is computed again for the gradient."""
    return _weft._checkpoint(lambda tensors: function(*tensors), list(inputs))


def fused(function, *inputs):
    """function(*inputs), whose elementwise operations run in one pass over memory, forward and backward, with the
    bits that they have one by one. Only the inputs are kept; the gradient runs the function again. A tensor that
    requires a gradient must be among the inputs."""
    return _weft._fused(lambda tensors: function(*tensors), list(inputs))


class Context:
    """What forward() leaves for backward()."""

    def __init__(self):
        self._saved = ()
        self.needs_input_grad = ()

    def save_for_backward(self, *tensors):
        """Inputs, outputs or other tensors, or None. Changing one in place before backward is an Error."""
        self._saved = tensors

    @property
    def saved_tensors(self):
        return tuple(self._saved)


class Function:
    """An operation with a gradient of its own:

        class Exp(weft.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, dy):
                (y,) = ctx.saved_tensors
                return dy * y

        y = Exp.apply(x)

    backward returns a gradient, or None, for each argument of forward. Written with weft's operations it can be
    differentiated itself."""

    @staticmethod
    def forward(ctx, *arguments):
        raise NotImplementedError("Function: forward is not defined")

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("Function: backward is not defined")

    @classmethod
    def apply(cls, *arguments):
        ctx = Context()
        places = [i for i, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        inputs = [arguments[i] for i in places]
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        with no_grad():
            results = cls.forward(ctx, *arguments)
        if not _weft.is_grad_enabled() or not any(ctx.needs_input_grad):
            return results
        outputs = [results] if isinstance(results, Tensor) else list(results)

        def backward(gradients, saved, needs):
            ctx._saved = saved
            given = cls.backward(ctx, *gradients)
            given = (given,) if given is None or isinstance(given, Tensor) else tuple(given)
            if len(given) < len(arguments):
                raise RuntimeError(
                    f"{cls.__name__}: backward returned {len(given)} gradients for {len(arguments)} arguments"
                )
            return [given[i] if need else None for i, need in zip(places, needs)]

        recorded = _weft._record(cls.__name__, inputs, outputs, list(ctx._saved), backward)
        ctx._saved = ()
        return recorded[0] if isinstance(results, Tensor) else tuple(recorded)
