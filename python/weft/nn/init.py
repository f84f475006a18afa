"""Initialisers: each fills a tensor in place from this thread's generator and returns it."""

from weft._weft.init import *  # noqa: F401, F403
