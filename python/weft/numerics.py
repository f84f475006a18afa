"""Number formats, and the arithmetic of GPUs' tensor cores bit for bit, on whole arrays.

Every function takes tensors, numbers and NumPy's arrays; where an argument is an array the result is one, too.

    numerics.round(x, "e4m3")                              # x in a format
    numerics.gemm("h100", a, b, format="bf16")             # as an H100 multiplies
    numerics.dot("b200", a, b, format="e4m3")
    with numerics.matmul("h100"):                          # every product of this thread
        loss = model(images)"""

from weft import _weft
from weft._weft import Tensor
from weft._weft import numerics as _numerics
from weft._weft.numerics import Format, accumulations, format_names, gpus  # noqa: F401
from weft.autograd import _Scope


def _is_array(x):
    return not isinstance(x, Tensor) and hasattr(x, "__array_interface__")


def _call(function, arrays, *arguments):
    given = [None if a is None else a.detach() if isinstance(a, Tensor) else _weft.as_tensor(a) for a in arrays]
    result = function(*given, *arguments)
    return result.numpy() if any(_is_array(a) for a in arrays) else result


def _format(name):
    return name if isinstance(name, Format) else Format(name)


def encode(x, format, rounding="nearest_even", saturate=False, flush_subnormals=False, seed=0):
    """The codes of x in a format, int64. Stochastic rounding draws element i's bits from (seed, i)."""
    return _call(_format(format)._encode, [x], rounding, saturate, flush_subnormals, seed)


def decode(codes, format):
    """The values of codes, float64 and exact."""
    return _call(_format(format)._decode, [codes])


def round(x, format, rounding="nearest_even", saturate=False, flush_subnormals=False, seed=0):
    """decode(encode(x)): x rounded to a format, as float64."""
    return _call(_format(format)._round, [x], rounding, saturate, flush_subnormals, seed)


_INPUTS = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "fp32": "tf32", "e4m3": "f8e4m3", "e5m2": "f8e5m2"}
_OUTPUTS = {"fp32": "f32", "fp16": "f16"}


def takes(gpu, format):
    """Whether a GPU's tensor cores take operands of a format."""
    return _numerics._takes(gpu, _INPUTS.get(format, format))


def gemm(gpu, a, b, c=None, format="bf16", output="fp32", promotion_interval=0):
    """a b + c as that GPU's tensor cores form it: a [..., M, K], b [..., K, N], c and the result [..., M, N], float32.

    a and b are rounded to `format` first. promotion_interval: after so many products the sum is added to a float32
    accumulator on the general cores, as kernels for fp8 do."""
    input_dtype, output_dtype = _INPUTS.get(format, format), _OUTPUTS.get(output, output)
    return _call(
        lambda a, b, c: _numerics._gemm(gpu, a, b, c, input_dtype, output_dtype, promotion_interval), [a, b, c]
    )


def dot(gpu, a, b, format="bf16", output="fp32"):
    """The dot products along the last dimension of a and b, [..., K]."""

    def rows(a, b, c):
        return _numerics._gemm(
            gpu, a.unsqueeze(-2), b.unsqueeze(-1), c, _INPUTS.get(format, format), _OUTPUTS.get(output, output), 0
        ).squeeze((-2, -1))

    return _call(rows, [a, b, None])


class matmul(_Scope):
    """Every matrix product, convolution and attention of this thread is summed as named: ieee, exact, h100, ..."""

    def __init__(self, accumulation="ieee", allow_tf32=False):
        super().__init__(_numerics._MatmulNumerics(accumulation, allow_tf32))
