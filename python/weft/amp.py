"""Mixed precision: autocast and loss scaling."""

from weft._weft.optim import GradScaler  # noqa: F401
from weft.autograd import autocast  # noqa: F401
