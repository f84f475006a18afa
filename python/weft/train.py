"""Fabric: a plain training loop on one device or many."""

from weft._weft.train import *  # noqa: F401, F403
