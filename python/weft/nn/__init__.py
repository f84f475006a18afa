"""Layers, losses and modules of one's own. Names, parameters and defaults are PyTorch's."""

import copy
import functools
import inspect
import types
import weakref

from weft import _weft
from weft._weft import Tensor
from weft._weft.nn import *  # noqa: F401, F403
from weft._weft.nn import Module
from weft.nn import functional, init, utils  # noqa: F401


class _IsParameter(type):
    def __instancecheck__(cls, x):
        return isinstance(x, Tensor) and x.is_leaf and x.requires_grad


class Parameter(metaclass=_IsParameter):
    """A tensor that a module registers when it is assigned to an attribute: a leaf that requires a gradient.

    Parameter(data) is such a tensor on the data's memory; there is no class of its own behind it."""

    def __new__(cls, data, requires_grad=True):
        return data.detach().requires_grad_(requires_grad)


class _Forward:
    """forward() of a model that was set up: an Error where no call of the model leads to it.

    It lies in the model's __dict__, before the class's own: other modules pay nothing. It does not keep the model."""

    def __init__(self, model, own):
        functools.update_wrapper(self, own or type(model).forward)
        self._model, self._own = weakref.ref(model), own

    def _unwatched(self):
        model = self._model()
        if model is None:
            raise _weft.Error(f"{self.__qualname__}(): expected to be called while its model is there, which is gone")
        return self._own or types.MethodType(type(model).forward, model)

    @property
    def __signature__(self):
        return inspect.signature(self._unwatched())

    def __call__(self, *arguments, **options):
        forward = self._unwatched()
        self._model()._check_call()
        return forward(*arguments, **options)

    def __deepcopy__(self, memo):
        return _Forward(copy.deepcopy(self._model(), memo), self._own)


def _watch_forward(model):
    """Of a class written in Python: C++'s own look for themselves."""
    own = vars(model).get("forward")
    is_pythons = own is not None or isinstance(model.forward, types.MethodType)
    if is_pythons and not isinstance(own, _Forward) and hasattr(type(model), "__weakref__"):
        vars(model)["forward"] = _Forward(model, own)


class _Loss(Module):
    def __init__(self, **options):
        super().__init__()
        self._options = options

    def forward(self, input, target):
        return type(self)._function(input, target, **self._options)


class CrossEntropyLoss(_Loss):
    def __init__(self, weight=None, *, ignore_index=-100, reduction="mean", label_smoothing=0.0):
        super().__init__(ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)
        self.register_buffer("weight", weight)

    def forward(self, input, target):
        return functional.cross_entropy(input, target, self.weight, **self._options)


class MSELoss(_Loss):
    _function = staticmethod(functional.mse_loss)

    def __init__(self, reduction="mean"):
        super().__init__(reduction=reduction)


class L1Loss(MSELoss):
    _function = staticmethod(functional.l1_loss)


class BCEWithLogitsLoss(MSELoss):
    _function = staticmethod(functional.binary_cross_entropy_with_logits)


class Sigmoid(Module):
    def forward(self, x):
        return x.sigmoid()


class Softmax(Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return x.softmax(self.dim)


class ModuleList(Module):
    """Modules in order, named "0", "1", ...; it has no forward() of its own."""

    def __init__(self, modules=()):
        super().__init__()
        self._size = 0
        for module in modules:
            self.append(module)

    def append(self, module):
        self.add_module(str(self._size), module)
        self._size += 1
        return self

    def __len__(self):
        return self._size

    def __getitem__(self, i):
        return self.children()[i]

    def __iter__(self):
        return iter(self.children())


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules=()):
        super().__init__()
        for name, module in dict(modules).items():
            self[name] = module

    def __setitem__(self, name, module):
        self.add_module(name, module)

    def __getitem__(self, name):
        return dict(self.named_children())[name]

    def __len__(self):
        return len(self.children())

    def __iter__(self):
        return iter(self.keys())

    def keys(self):
        return [name for name, _ in self.named_children()]

    def items(self):
        return self.named_children()

    def values(self):
        return self.children()
