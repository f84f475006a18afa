"""Labelled images and batches of them, prepared ahead by worker threads."""

from weft._weft.data import *  # noqa: F401, F403
