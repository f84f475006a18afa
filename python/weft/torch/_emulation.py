"""weft.torch.emulate: any torch model in the arithmetic of a GPU's tensor cores.

What is a matrix product is read off the operators that reach PyTorch's dispatcher, below autograd, so that backward is
emulated as forward is. Everything else is PyTorch's own."""

import contextlib
import math

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from weft import _weft, numerics
from weft._weft import Error
from weft.torch._replacement import Replacement

aten = torch.ops.aten

_FORMATS = ("fp16", "bf16", "tf32", "e4m3", "e5m2")


def _is_emulated(*tensors):
    """Integers and float64 are no tensor core's."""
    return all(t.dtype.is_floating_point and t.dtype != torch.float64 for t in tensors if t is not None)


class _Products:
    """Matrix products of a GPU, and what they cost in accuracy."""

    def __init__(self, gpu, format, promotion_interval, measures):
        self.gpu, self.format, self.promotion_interval = gpu, format, promotion_interval
        self.measures = measures
        self.rows = {}  # by (layer, operator, pass)
        self.place = ("", "", "")

    def __call__(self, a, b):
        """a [..., M, K] b [..., K, N] in float32, on a's device."""
        on_cpu = [t.detach().resolve_conj().resolve_neg().cpu() for t in (a, b)]
        y = torch.from_dlpack(
            numerics.gemm(
                self.gpu,
                *(_weft.from_dlpack(t) for t in on_cpu),
                format=self.format,
                promotion_interval=self.promotion_interval,
            )
        )
        if self.measures:
            self.measure(*on_cpu, y)
        return y.to(a.device)

    def rounded(self, x):
        """The operand as a tensor core reads it."""
        rounding = "toward_zero" if self.format == "tf32" else "nearest_even"
        return torch.from_dlpack(numerics.round(_weft.from_dlpack(x.float()), self.format, rounding))

    def measure(self, a, b, y):
        row = self.rows.setdefault(self.place, _Sums())
        exact = a.double() @ b.double()
        row.calls += 1
        row.longest = max(row.longest, a.shape[-1])
        row.squares += exact.square().sum().item()
        row.error += (y.double() - exact).square().sum().item()
        row.sum_error += (y.double() - self.rounded(a) @ self.rounded(b)).square().sum().item()


class _Sums:
    def __init__(self):
        self.calls = self.longest = 0
        self.squares = self.error = self.sum_error = 0.0


class Report(list):
    """A dict for each layer, operator and pass, in the order in which they first ran:

    layer, operator, backward (bool), calls, k (the longest sum), and two norms relative to the exact result's:
    error, what the results differ from those in float64, and sum_error, the part of it that rounding the operands does
    not explain. Both are of the products before they are rounded to the model's dtype."""

    def __str__(self):
        head = ("layer", "operator", "pass", "calls", "k", "error", "of the sums")
        lines = [head] + [
            (
                row["layer"] or "-",
                row["operator"],
                "backward" if row["backward"] else "forward",
                str(row["calls"]),
                str(row["k"]),
                f"{row['error']:.2e}",
                f"{row['sum_error']:.2e}",
            )
            for row in self
        ]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))).rstrip()
            for line in lines
        )


def _relative(error, squares):
    return math.sqrt(error / squares) if squares > 0 else math.sqrt(error)


# The operators. Each takes the products' arithmetic, then what the operator takes, and gives its result, or
# NotImplemented for what no tensor core computes.


def _mm(product, a, b, out_dtype=None):
    return product(a, b).to(out_dtype or a.dtype) if _is_emulated(a, b) else NotImplemented


def _addmm(product, c, a, b, beta=1, alpha=1):
    """beta c + alpha a b as an epilogue has it: in float32, rounded once."""
    if not _is_emulated(c, a, b):
        return NotImplemented
    y = product(a, b)
    y = y if alpha == 1 else y * alpha
    if beta != 0:
        y = y + (c.float() if beta == 1 else c.float() * beta)
    return y.to(a.dtype)


def _addmm_activation(product, c, a, b, beta=1, alpha=1, use_gelu=False):
    y = _addmm(product, c, a, b, beta, alpha)
    return y if y is NotImplemented else F.gelu(y, approximate="tanh") if use_gelu else y.relu()


def _mv(product, a, v):
    return product(a, v[:, None])[:, 0].to(a.dtype) if _is_emulated(a, v) else NotImplemented


def _addmv(product, c, a, v, beta=1, alpha=1):
    if not _is_emulated(c, a, v):
        return NotImplemented
    return _addmm(product, c.expand(a.shape[0])[:, None], a, v[:, None], beta, alpha)[:, 0]


def _dot(product, a, b):
    return product(a[None], b[:, None])[0, 0].to(a.dtype) if _is_emulated(a, b) else NotImplemented


def _addbmm(product, c, a, b, beta=1, alpha=1):
    """One sum over the batch and k."""
    rows = a.transpose(0, 1).reshape(a.shape[1], -1)
    return _addmm(product, c, rows, b.reshape(-1, b.shape[2]), beta, alpha)


def _linear(product, x, weight, bias=None):
    if not _is_emulated(x, weight, bias):
        return NotImplemented
    y = product(x.reshape(-1, x.shape[-1]), weight.t())
    y = y if bias is None else y + bias.float()
    return y.reshape(*x.shape[:-1], weight.shape[0]).to(x.dtype)


class _Windows:
    """The windows of a convolution over any number of dimensions: images [N, C, D...] as columns [N, G, C / G K..., P...],
    K... and P... flattened, and back."""

    def __init__(self, size, kernel, stride, padding, dilation, groups):
        self.kernel, self.stride, self.padding, self.dilation, self.groups = kernel, stride, padding, dilation, groups
        self.padded = [s + 2 * p for s, p in zip(size, padding)]
        self.result = [
            (s - d * (k - 1) - 1) // u + 1 for s, k, u, d in zip(self.padded, kernel, stride, dilation)
        ]

    def places(self):
        """Each element of the kernel, in row-major order, with the slices of the padded image that it meets."""
        for index in torch.cartesian_prod(*(torch.arange(k) for k in self.kernel)).reshape(-1, len(self.kernel)).tolist():
            yield tuple(
                slice(i * d, i * d + (n - 1) * u + 1, u)
                for i, d, n, u in zip(index, self.dilation, self.result, self.stride)
            )

    def columns(self, image):
        pads = [p for padding in reversed(self.padding) for p in (padding, padding)]
        padded = F.pad(image, pads)
        seen = [padded[(slice(None), slice(None), *place)] for place in self.places()]
        return torch.stack(seen, 2).reshape(image.shape[0], self.groups, -1, math.prod(self.result))

    def image(self, columns, channels):
        """The transposed map: what each window says of an element is added, in the order of the kernel's elements."""
        parts = columns.reshape(columns.shape[0], channels, math.prod(self.kernel), *self.result)
        padded = columns.new_zeros(columns.shape[0], channels, *self.padded)
        for i, place in enumerate(self.places()):
            padded[(slice(None), slice(None), *place)] += parts[:, :, i]
        inner = (slice(p, s - p) for p, s in zip(self.padding, self.padded))
        return padded[(slice(None), slice(None), *inner)]


def _weights_of(weight, groups):
    """[O, C / G, K...] as [G, O / G, C / G K...]."""
    return weight.reshape(groups, weight.shape[0] // groups, -1)


def _filtered(product, windows, image, weight):
    y = product(_weights_of(weight, windows.groups), windows.columns(image))
    return y.reshape(image.shape[0], weight.shape[0], *windows.result)


def _spread(product, windows, y, weight, channels):
    """The transposed convolution of y."""
    columns = product(_weights_of(weight, windows.groups).mT, y.reshape(y.shape[0], windows.groups, -1, math.prod(windows.result)))
    return windows.image(columns, channels)


def _weight_gradient(product, windows, image, dy, shape):
    """The images' products, added in float32 one after another."""
    columns = windows.columns(image)
    dy = dy.reshape(dy.shape[0], windows.groups, -1, math.prod(windows.result))
    total = torch.zeros(shape, dtype=torch.float32, device=image.device)
    for n in range(image.shape[0]):
        total += product(dy[n], columns[n].mT).reshape(shape)
    return total


def _all(values, count):
    return list(values) * (count // len(values))


def _windows_of(image_size, weight, stride, padding, dilation, groups):
    dims = len(weight.shape) - 2
    return _Windows(
        image_size, list(weight.shape[2:]), *(_all(v, dims) for v in (stride, padding, dilation)), groups
    )


def _transposed_size(x, weight, stride, padding, dilation, output_padding):
    dims = x.dim() - 2
    stride, padding, dilation, more = (_all(v, dims) for v in (stride, padding, dilation, output_padding))
    return [
        (s - 1) * u - 2 * p + d * (k - 1) + o + 1
        for s, u, p, d, k, o in zip(x.shape[2:], stride, padding, dilation, weight.shape[2:], more)
    ]


def _with_bias(y, bias):
    return y if bias is None else y + bias.float().reshape(1, -1, *[1] * (y.dim() - 2))


def _convolution(product, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    if not _is_emulated(x, weight, bias):
        return NotImplemented
    if transposed:
        size = _transposed_size(x, weight, stride, padding, dilation, output_padding)
        windows = _windows_of(size, weight, stride, padding, dilation, groups)
        y = _spread(product, windows, x, weight, weight.shape[1] * groups)
    else:
        windows = _windows_of(x.shape[2:], weight, stride, padding, dilation, groups)
        y = _filtered(product, windows, x, weight)
    return _with_bias(y, bias).to(x.dtype)


def _convolution_backward(
    product, dy, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    if not _is_emulated(dy, x, weight):
        return NotImplemented
    image, result = (dy, x) if transposed else (x, dy)
    windows = _windows_of(image.shape[2:], weight, stride, padding, dilation, groups)
    dx = dweight = dbias = None
    if output_mask[0]:
        dx = _filtered(product, windows, dy, weight) if transposed else _spread(product, windows, dy, weight, x.shape[1])
        dx = dx.to(x.dtype)
    if output_mask[1]:
        dweight = _weight_gradient(product, windows, image, result, weight.shape).to(weight.dtype)
    if output_mask[2]:
        dbias = dy.float().sum([0, *range(2, dy.dim())]).to(dy.dtype)
    return dx, dweight, dbias


# By their names in aten; those in place have an underscore more.
_OPERATORS = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "addbmm": _addbmm,
    "_addmm_activation": _addmm_activation,
    "mv": _mv,
    "addmv": _addmv,
    "dot": _dot,
    "vdot": _dot,
    "linear": _linear,
    "convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
}
# Kernels that hold matrix products which cannot be taken out of them.
_WHOLE = (
    "_scaled_dot_product",
    "_native_multi_head_attention",
    "_transformer_encoder_layer",
    "_scaled_mm",
    "_scaled_grouped_mm",
    "_grouped_mm",
    "_int_mm",
    "_weight_int",
    "_trilinear",
    "mkldnn_",
    "cudnn_",
    "miopen_",
    "_cudnn_rnn",
    "_flash_attention",
    "_efficient_attention",
    "_mkldnn",
    "_thnn_",
)


class _Dispatch(TorchDispatchMode):
    def __init__(self, product, tracker):
        super().__init__()
        self.product, self.tracker = product, tracker

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = function.overloadpacket.__name__ if function.namespace == "aten" else ""
        in_place = name.endswith("_") and not name.endswith("__")
        name = name[:-1] if in_place else name
        operator = _OPERATORS.get(name)
        if operator is None:
            if name.startswith(_WHOLE):
                raise Error(f"emulate: {function} holds matrix products that cannot be emulated one by one")
            if function.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
                # In the inference mode operators come whole.
                with self:
                    return function.decompose(*args, **kwargs)
            return function(*args, **kwargs)
        self.product.place = (self.layer(), name, self.tracker.is_bw)
        out = args[0] if in_place else kwargs.get("out")
        result = operator(self.product, *args, **{key: value for key, value in kwargs.items() if key != "out"})
        if result is NotImplemented:
            return function(*args, **kwargs)
        return result if out is None else out.resize_(result.shape).copy_(result)

    def layer(self):
        """The innermost module that is running, by its path in the model."""
        name = max(self.tracker.parents - {"Global"}, key=lambda name: name.count("."), default="")
        return name.partition(".")[2] or name


def _attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Attention in its plain form, as fused kernels round it: scores and probabilities in float32, the scale behind the
    first product. The products reach the dispatcher one by one."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        else:
            scores = scores + attn_mask
    weights = scores.softmax(-1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # A query that sees no key.
        weights = weights.masked_fill(~attn_mask.any(-1, keepdim=True), 0)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return (weights @ value.to(wide)).to(query.dtype)


@contextlib.contextmanager
def _without_onednn():
    """Its recurrent layers are whole operators."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


class emulate:
    """Every matrix product, convolution and attention inside has the bits of a GPU's tensor cores.

        with weft.torch.emulate("h100", "bf16") as gpu:
            loss = model(images).sum()
            loss.backward()
        print(gpu.report())

    gpu: of weft.numerics.gpus(). format: what the operands are rounded to, of fp16 bf16 tf32 e4m3 e5m2, whatever the
    model's dtype; of fp8 no scale is taken. Each product is that of weft.numerics.gemm, which docs/numerics.md
    describes; its float32 result gets the bias in float32 and is rounded to the model's dtype once. A convolution is the
    product of its weights with the columns of its windows, in the order of channel, then row and column of the kernel;
    its gradients are the transposed products, those of an image after another. Attention is two products with a softmax
    in float32 between. Operands in float64, and integers, are PyTorch's own.

    measures: keep what report() says; it costs a product in float64 beside each."""

    def __init__(self, gpu, format="bf16", measures=True, promotion_interval=0):
        if format not in _FORMATS:
            raise Error(f"emulate: no format {format!r}; known are {', '.join(_FORMATS)}")
        if not numerics.takes(gpu, format):
            raise Error(f"emulate: the tensor cores of {gpu} take no {format}")
        self._product = _Products(gpu, format, promotion_interval, measures)
        self._entered = []

    def __enter__(self):
        if self._entered:
            raise Error("emulate: this context is entered already")
        tracker = ModuleTracker()
        dispatch = _Dispatch(self._product, tracker)
        attention = Replacement({F.scaled_dot_product_attention: _attention})
        for context in (_without_onednn(), tracker, attention, dispatch):
            context.__enter__()
            self._entered.append(context)
        return self

    def __exit__(self, *error):
        while self._entered:
            self._entered.pop().__exit__(*error)

    def report(self):
        """What the products so far differ from float64, layer by layer: a Report."""
        if not self._product.measures:
            raise Error("report: emulate(measures=False) keeps no figures")
        return Report(
            {
                "layer": layer,
                "operator": operator,
                "backward": backward,
                "calls": sums.calls,
                "k": sums.longest,
                "error": _relative(sums.error, sums.squares),
                "sum_error": _relative(sums.sum_error, sums.squares),
            }
            for (layer, operator, backward), sums in self._product.rows.items()
        )
