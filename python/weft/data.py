"""Labelled images and batches of them, prepared ahead by worker threads; tensors; texts, and windows of their bytes."""

from weft._weft.data import *  # noqa: F401, F403
