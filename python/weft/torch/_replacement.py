"""A mode in which torch's functions are other ones."""

import types

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


def _never(tensors):
    return False


# A mode is off while it decides about a function, and this one calls others that are to be replaced. Its own code, but
# for the line that asks for a mode.
_attention_of_heads = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": _never},
    F.multi_head_attention_forward.__name__,
    F.multi_head_attention_forward.__defaults__,
)
_attention_of_heads.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


class Replacement(TorchFunctionMode):
    """functions: by torch's function what is called for it, with the same arguments; it may return NotImplemented, and
    then torch's own is called. That a mode is on also keeps torch's modules from their fused forms."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.multi_head_attention_forward:
            with self:
                return _attention_of_heads(*args, **kwargs)
        replacement = self.functions.get(function)
        if replacement is not None:
            result = replacement(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return function(*args, **kwargs)
