"""The kernels' variants.

    kernels.variants("softmax")                            # rows as dicts, best first
    with kernels.use("gemm", "gemm_cpu_eigen"):            # that variant, in all threads
        y = a @ b"""

from weft._weft import Error
from weft._weft import kernels as _kernels
from weft.autograd import _Scope


def variants(op=None):
    """The rows of an op's list, or of all ops': dicts of op, name, device, dtypes and condition."""
    rows = [row for row in _kernels.variants() if op in (None, row["op"])]
    if not rows:
        raise Error(f"variants: no op {op!r}; known are {', '.join(sorted({r['op'] for r in _kernels.variants()}))}")
    return rows


class use(_Scope):
    """Dispatch takes this variant of the op. Problems that it does not fit are errors."""

    def __init__(self, op, variant):
        known = [row["name"] for row in variants(op)]
        if variant not in known:
            raise Error(f"use: {op} has no variant {variant!r}; known are {', '.join(known)}")
        super().__init__(_kernels._ForcedVariant(op, variant))
