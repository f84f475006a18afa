"""Weft: a tensor and autograd engine, under PyTorch's names.

    import weft

    x = weft.tensor([[1.0, 2.0]], requires_grad=True)
    (x @ x.T).sum().backward()
    x.grad
"""

import importlib as _importlib
import os as _os

# Idle OpenMP threads give up their core at once; it reads this when it is loaded, with the module below.
_os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from weft import _printing
from weft._weft import *  # noqa: F403
from weft._weft import __version__  # noqa: F401
from weft.autograd import (  # noqa: F401
    autocast,
    checkpoint,
    enable_grad,
    fused,
    inference_mode,
    no_grad,
    set_grad_enabled,
)

# By their full names: parts of the extension module have the same short ones.
import weft.amp  # noqa: E402
import weft.data  # noqa: E402
import weft.dist  # noqa: E402
import weft.kernels  # noqa: E402
import weft.models  # noqa: E402
import weft.nn  # noqa: E402
import weft.numerics  # noqa: E402
import weft.optim  # noqa: E402
import weft.train  # noqa: E402

Tensor.__repr__ = _printing.represent
Tensor.__str__ = _printing.text


def __getattr__(name):
    # PyTorch takes seconds to import, and need not be there; `python -m weft.compare` imports that one itself.
    if name in ("compare", "torch"):
        return _importlib.import_module("weft." + name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
