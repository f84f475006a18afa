"""Fabric: a plain training loop on one device or many. Trainer: none of your own."""

from weft._weft.train import *  # noqa: F401, F403
