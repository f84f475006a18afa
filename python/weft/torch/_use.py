"""weft.torch.use: torch's functions inside a model, replaced by Weft's kernels."""

import math
import types
import warnings

import torch
import torch.nn.functional as F

from weft._weft import Error
from weft.torch import _kernels
from weft.torch._replacement import Replacement

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _stays(function, reason):
    """A call that Weft does not take is PyTorch's, and that is said once."""
    if not torch.compiler.is_compiling():
        warnings.warn(f"weft.torch: {function} stays with PyTorch: {reason}", stacklevel=4)
    return NotImplemented


def _unfit(*tensors):
    """What keeps Weft from taking these operands, or nothing."""
    tensors = [t for t in tensors if t is not None]
    for t in tensors:
        if t.dtype not in _DTYPES:
            return f"its operands are {t.dtype}"
        if t.device.type != "cpu" or t.layout != torch.strided:
            return f"its operands are on {t.device}, {t.layout}"
        if t.dtype != tensors[0].dtype:
            return f"its operands are of {tensors[0].dtype} and {t.dtype}"
    return None


def _autocast(*tensors):
    """As torch.autocast has the operands of a matrix product."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(t.to(dtype) if t is not None and t.dtype == torch.float32 else t for t in tensors)


def _linear(input, weight, bias=None):
    input, weight, bias = _autocast(input, weight, bias)
    if reason := _unfit(input, weight, bias):
        return _stays("linear", reason)
    return _kernels.linear(input, weight, bias)


def _matmul(input, other):
    input, other = _autocast(input, other)
    if input.dim() < 2 or other.dim() < 2:
        return _stays("matmul", "an operand is a vector")
    if reason := _unfit(input, other):
        return _stays("matmul", reason)
    return _kernels.matmul(input, other)


def _bmm(input, mat2):
    return _matmul(input, mat2)


def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    # Its mixtures: parameters may be wider than what is normalised.
    if reason := _unfit(input) or (weight is not None and _unfit(weight)) or (bias is not None and _unfit(bias)):
        return _stays("layer_norm", reason)
    if (input.dtype == torch.float64) != all(t is None or t.dtype == torch.float64 for t in (weight, bias)):
        if weight is not None or bias is not None:
            return _stays("layer_norm", "its operands mix float64 and others")
    shape = tuple(normalized_shape)
    if tuple(input.shape[input.dim() - len(shape) :]) != shape:
        return NotImplemented  # PyTorch says what is wrong
    flat = input.reshape(*input.shape[: input.dim() - len(shape)], math.prod(shape))
    weight, bias = (None if t is None else t.reshape(-1) for t in (weight, bias))
    return _kernels.layer_norm(flat, weight, bias, eps)[0].reshape(input.shape)


def _softmax_as(log):
    def softmax(input, dim=None, _stacklevel=3, dtype=None):
        if dtype is not None:
            input = input.to(dtype)
        if dim is None:
            return NotImplemented
        if reason := _unfit(input):
            return _stays("log_softmax" if log else "softmax", reason)
        if input.dim() == 0:
            return _stays("log_softmax" if log else "softmax", "its operand has no dimension")
        return _kernels.softmax(input, dim, log)

    return softmax


def _torch_softmax_as(log):
    def softmax(input, dim, dtype=None):
        return _softmax_as(log)(input, dim, dtype=dtype)

    return softmax


def _gelu(input, approximate="none"):
    if reason := _unfit(input):
        return _stays("gelu", reason)
    return _kernels.gelu(input, approximate)


def _attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    name = "scaled_dot_product_attention"
    query, key, value = _autocast(query, key, value)
    if reason := _unfit(query, key, value):
        return _stays(name, reason)
    if query.dim() != 4 or key.dim() != 4 or value.shape != key.shape:
        return _stays(name, f"its operands are {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}")
    if query.shape[0] != key.shape[0] or (query.shape[1] != key.shape[1] and not enable_gqa):
        return _stays(name, f"its operands {tuple(query.shape)} and {tuple(key.shape)} broadcast")
    if attn_mask is not None and attn_mask.requires_grad:
        return _stays(name, "its mask requires a gradient")
    if dropout_p > 0:
        return _stays(name, "it has dropout, whose random numbers are PyTorch's")
    if attn_mask is not None and (is_causal or scale == 0):
        return NotImplemented
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return _kernels.attention(query, key, value, attn_mask, is_causal, scale)[0]


def _pair(value):
    return [value] * 2 if isinstance(value, int) else list(value) * (2 // len(value))


def _conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    input, weight, bias = _autocast(input, weight, bias)
    if isinstance(padding, str):
        kernel, dilations = weight.shape[2:], _pair(dilation)
        total = [d * (k - 1) for k, d in zip(kernel, dilations)] if padding == "same" else [0, 0]
        if any(t % 2 for t in total):
            return _stays("conv2d", "its padding is not symmetric")
        padding = [t // 2 for t in total]
    if reason := _unfit(input, weight, bias):
        return _stays("conv2d", reason)
    if input.dim() != 4:
        return _stays("conv2d", f"its input is {tuple(input.shape)}, not [N, C, H, W]")
    return _kernels.conv2d(input, weight, bias, _pair(stride), _pair(padding), _pair(dilation), groups)


_REPLACED = {
    "linear": {F.linear: _linear},
    "matmul": {
        torch.matmul: _matmul,
        torch.Tensor.matmul: _matmul,
        torch.Tensor.__matmul__: _matmul,
        torch.bmm: _bmm,
        torch.Tensor.bmm: _bmm,
    },
    "layer_norm": {F.layer_norm: _layer_norm, torch.layer_norm: _layer_norm},
    "softmax": {
        F.softmax: _softmax_as(False),
        torch.softmax: _torch_softmax_as(False),
        torch.Tensor.softmax: _torch_softmax_as(False),
    },
    "log_softmax": {
        F.log_softmax: _softmax_as(True),
        torch.log_softmax: _torch_softmax_as(True),
        torch.Tensor.log_softmax: _torch_softmax_as(True),
    },
    "gelu": {F.gelu: _gelu},
    "scaled_dot_product_attention": {F.scaled_dot_product_attention: _attention},
    "conv2d": {F.conv2d: _conv2d, torch.conv2d: _conv2d},
}


def ops():
    """The names that use() takes."""
    return list(_REPLACED)


def use(model, ops=None):
    """Makes a torch model run Weft's kernels for the named ops, and for all of them if none are named; returns it.

    Whatever the model's forward calls counts: layers, functions, torch.nn.MultiheadAttention. Gradients are Weft's
    kernels, too. Parameters, hooks and state dicts stay as they are, and torch.compile takes the model with the kernels
    as opaque operators. A call that Weft does not take (a GPU's tensors, an integer dtype, a mask with a gradient) stays with
    PyTorch; a warning says so once. use(model, []) gives the model back its own forward."""
    names = list(_REPLACED) if ops is None else list(ops)
    for name in names:
        if name not in _REPLACED:
            raise Error(f"use: no op {name!r}; known are {', '.join(_REPLACED)}")
    if not isinstance(model, torch.nn.Module):
        raise Error(f"use: expected a torch.nn.Module, got {type(model).__name__}")
    if hasattr(model.forward, "_weft_forward"):
        own = model.forward._weft_forward
        if getattr(own, "__func__", None) is type(model).forward:
            del model.forward
        else:
            model.forward = own
    if not names:
        return model
    functions = {function: new for name in names for function, new in _REPLACED[name].items()}
    own = model.forward
    # A copy of the model is to run itself.
    of_self = own.__func__ if getattr(own, "__self__", None) is model else lambda self, *a, **k: own(*a, **k)

    def forward(self, *args, **kwargs):
        with Replacement(functions):
            return of_self(self, *args, **kwargs)

    forward._weft_forward = own
    model.forward = types.MethodType(forward, model)
    return model
