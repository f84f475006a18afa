"""Gradient clipping."""

from weft._weft.optim import clip_grad_norm_, clip_grad_value_, grad_norm  # noqa: F401
