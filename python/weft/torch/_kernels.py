"""Weft's kernels as PyTorch's custom operators, torch.ops.weft.*: forward, backward, and shapes for compilers.

Memory is shared by DLPack in both directions; results are new tensors. Tensors are on the CPU, or on a GPU that this
build of Weft computes on. The operators can be differentiated once; linear and matmul as often as one likes."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor
from torch.library import custom_op

from weft import _weft
from weft._weft import functional as _functional
from weft._weft import torch as _kernels


def shared(x):
    """The same memory as a Weft tensor; None stays None."""
    return None if x is None else _weft.from_dlpack(x.detach())


def returned(y):
    return torch.from_dlpack(y)


def _like(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@custom_op("weft::matmul", mutates_args=())
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a [..., M, K] times b [..., K, N]."""
    return returned(_weft.matmul(shared(a), shared(b)))


@matmul.register_fake
def _(a, b):
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"weft::matmul: {a.shape} and {b.shape} do not fit together")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


def _matmul_backward(ctx, dy):
    a, b = ctx.saved_tensors
    da = matmul(dy, b.mT).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
    db = matmul(a.mT, dy).sum_to_size(b.shape) if ctx.needs_input_grad[1] else None
    return da, db


matmul.register_autograd(_matmul_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


@custom_op("weft::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """x W^T + b: x [..., in], W [out, in], b [out]."""
    return returned(_functional.linear(shared(x), shared(weight), shared(bias)))


linear.register_fake(lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])))


def _linear_backward(ctx, dy):
    x, weight = ctx.saved_tensors
    rows = dy.reshape(-1, dy.shape[-1])
    dx = matmul(rows, weight).reshape(x.shape) if ctx.needs_input_grad[0] else None
    dweight = matmul(rows.mT, x.reshape(-1, x.shape[-1])) if ctx.needs_input_grad[1] else None
    return dx, dweight, rows.sum(0) if ctx.needs_input_grad[2] else None


linear.register_autograd(_linear_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2]))


@custom_op("weft::layer_norm", mutates_args=())
def layer_norm(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float
) -> Tuple[Tensor, Tensor, Tensor]:
    """{y, mean, 1 / standard deviation} over the last dimension."""
    y, mean, rstd = _kernels.layer_norm(shared(x), shared(weight), shared(bias), eps)
    return returned(y), returned(mean), returned(rstd)


def _statistics(x, shape):
    return x.new_empty(shape, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


@layer_norm.register_fake
def _(x, weight, bias, eps):
    rows = x.shape[:-1]
    return _like(x), _statistics(x, rows), _statistics(x, rows)


@custom_op("weft::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Optional[Tensor], mean: Tensor, rstd: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    """{dx, dweight, dbias}; the last two in float32, or in float64 beside float64."""
    gradients = _kernels.layer_norm_backward(*(shared(t) for t in (dy, x, weight, mean, rstd)))
    return tuple(returned(g) for g in gradients)


@layer_norm_backward.register_fake
def _(dy, x, weight, mean, rstd):
    width = (x.shape[-1],)
    return _like(x), _statistics(x, width), _statistics(x, width)


def _save_layer_norm(ctx, inputs, output):
    x, weight, bias, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, weight, mean, rstd)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.mark_non_differentiable(mean, rstd)


def _layer_norm_backward(ctx, dy, dmean, drstd):
    x, weight, mean, rstd = ctx.saved_tensors
    dx, dweight, dbias = layer_norm_backward(dy, x, weight, mean, rstd)
    return (
        dx,
        None if weight is None else dweight.to(weight.dtype),
        None if ctx.bias_dtype is None else dbias.to(ctx.bias_dtype),
        None,
    )


layer_norm.register_autograd(_layer_norm_backward, setup_context=_save_layer_norm)


@custom_op("weft::softmax", mutates_args=())
def softmax(x: Tensor, dim: int, log: bool) -> Tensor:
    """softmax, or its logarithm, along one dimension."""
    return returned(_kernels.softmax(shared(x), dim, log))


softmax.register_fake(lambda x, dim, log: _like(x))


@custom_op("weft::softmax_backward", mutates_args=())
def softmax_backward(dy: Tensor, y: Tensor, dim: int, log: bool) -> Tensor:
    return returned(_kernels.softmax_backward(shared(dy), shared(y), dim, log))


softmax_backward.register_fake(lambda dy, y, dim, log: _like(y))


def _save_softmax(ctx, inputs, output):
    _, ctx.dim, ctx.log = inputs
    ctx.save_for_backward(output)


softmax.register_autograd(
    lambda ctx, dy: (softmax_backward(dy, ctx.saved_tensors[0], ctx.dim, ctx.log), None, None),
    setup_context=_save_softmax,
)


@custom_op("weft::gelu", mutates_args=())
def gelu(x: Tensor, approximate: str) -> Tensor:
    return returned(_weft.gelu(shared(x), approximate=approximate))


gelu.register_fake(lambda x, approximate: _like(x))


@custom_op("weft::gelu_backward", mutates_args=())
def gelu_backward(dy: Tensor, x: Tensor, approximate: str) -> Tensor:
    return returned(_kernels.gelu_backward(shared(dy), shared(x), approximate == "tanh"))


gelu_backward.register_fake(lambda dy, x, approximate: _like(x))


def _save_gelu(ctx, inputs, output):
    x, ctx.approximate = inputs
    ctx.save_for_backward(x)


gelu.register_autograd(
    lambda ctx, dy: (gelu_backward(dy, ctx.saved_tensors[0], ctx.approximate), None), setup_context=_save_gelu
)


def _heads_like(x):
    """What attention writes: [B, T, H, D] in memory, seen as [B, H, T, D]."""
    batch, heads, tokens, depth = x.shape
    return x.new_empty((batch, tokens, heads, depth)).transpose(1, 2)


@custom_op("weft::scaled_dot_product_attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], causal: bool, scale: float
) -> Tuple[Tensor, Tensor]:
    """{out, lse} of q, k, v [B, H, T, D]; mask: bool, true where a query sees a key, or added to the scores."""
    out, lse = _kernels.attention(shared(q), shared(k), shared(v), shared(mask), causal, scale)
    return returned(out), returned(lse)


@attention.register_fake
def _(q, k, v, mask, causal, scale):
    return _heads_like(q), _statistics(q, q.shape[:-1])


@custom_op("weft::scaled_dot_product_attention_backward", mutates_args=())
def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> Tuple[Tensor, Tensor, Tensor]:
    """{dq, dk, dv}."""
    given = (shared(t) for t in (dout, q, k, v, mask, out, lse))
    return tuple(returned(g) for g in _kernels.attention_backward(*given, causal, scale))


@attention_backward.register_fake
def _(dout, q, k, v, mask, out, lse, causal, scale):
    return _heads_like(q), _heads_like(k), _heads_like(v)


def _save_attention(ctx, inputs, output):
    *operands, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*operands, *output)
    ctx.mark_non_differentiable(output[1])


def _attention_backward(ctx, dout, dlse):
    gradients = attention_backward(dout, *ctx.saved_tensors, ctx.causal, ctx.scale)
    return *gradients, None, None, None


attention.register_autograd(_attention_backward, setup_context=_save_attention)


@custom_op("weft::conv2d", mutates_args=())
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    stride: List[int],
    padding: List[int],
    dilation: List[int],
    groups: int,
) -> Tensor:
    """x [N, C, H, W], weight [O, C / groups, Kh, Kw], bias [O]."""
    pairs = (tuple(p) for p in (stride, padding, dilation))
    return returned(_functional.conv2d(shared(x), shared(weight), shared(bias), *pairs, groups))


@conv2d.register_fake
def _(x, weight, bias, stride, padding, dilation, groups):
    size = [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    return x.new_empty((x.shape[0], weight.shape[0], *size))


@custom_op("weft::conv2d_backward", mutates_args=())
def conv2d_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: List[int],
    padding: List[int],
    dilation: List[int],
    groups: int,
    wanted: List[bool],
) -> Tuple[Tensor, Tensor, Tensor]:
    """{dx, dweight, dbias}, each empty where it is not wanted."""
    gradients = _kernels.conv2d_backward(
        shared(dy), shared(x), shared(weight), tuple(stride), tuple(padding), tuple(dilation), groups, *wanted
    )
    return tuple(returned(g) for g in gradients)


@conv2d_backward.register_fake
def _(dy, x, weight, stride, padding, dilation, groups, wanted):
    wants_dx, wants_dweight, wants_dbias = wanted
    return (
        x.new_empty(x.shape if wants_dx else (0,)),
        x.new_empty(weight.shape if wants_dweight or wants_dbias else (0,)),
        x.new_empty(weight.shape[:1] if wants_dbias else (0,)),
    )


def _save_conv2d(ctx, inputs, output):
    x, weight, bias, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight)


def _conv2d_backward(ctx, dy):
    wanted = list(ctx.needs_input_grad[:3])
    gradients = conv2d_backward(dy, *ctx.saved_tensors, *ctx.geometry, wanted)
    return *(g if wants else None for g, wants in zip(gradients, wanted)), None, None, None, None


conv2d.register_autograd(_conv2d_backward, setup_context=_save_conv2d)
