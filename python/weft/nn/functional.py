"""The operations of layers, with PyTorch's arguments."""

from weft._weft import gelu, log_softmax, relu, sigmoid, silu, softmax, tanh  # noqa: F401
from weft._weft.functional import *  # noqa: F401, F403
